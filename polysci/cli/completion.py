"""``--print-completion``: a script that completes commands, options, names and files in a shell."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import Any

from polysci.errors import UnsupportedError

SHELLS = ("bash", "zsh")
_FOLDERS = ("DIR",)  # words of a metavar
_FILES = ("FILE", "MODEL")


class PrintCompletion(argparse.Action):
    """Print the script of the shell that is named, and end."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option: str | None = None,
    ) -> None:
        """Raises UnsupportedError where shtab is not installed."""
        print(script(parser, str(values)))
        parser.exit(0)


def script(parser: argparse.ArgumentParser, shell: str) -> str:
    """The completion script of a parser. Raises UnsupportedError where shtab is not installed."""
    try:
        import shtab
    except ImportError:
        raise UnsupportedError(
            "--print-completion needs shtab: pip install 'polysci[completion]'"
        ) from None
    names = _names()
    for action in _actions(parser):
        metavar = str(action.metavar)
        if action.dest in names and action.choices is None:
            action.choices = names[action.dest]
        elif any(word in metavar for word in _FILES):
            action.complete = shtab.FILE  # type: ignore[attr-defined]
        elif metavar in _FOLDERS:
            action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
    return str(shtab.complete(parser, shell))


def _names() -> dict[str, list[str]]:
    """Return the values of options whose choices packages may add to."""
    from polysci.cost import RANKERS
    from polysci.numerics.dtypes import ALIASES, PRECISIONS
    from polysci.target.isas import ISAS

    return {"isa": list(ISAS), "ranker": list(RANKERS), "dtype": [*PRECISIONS, *ALIASES]}


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """The options and arguments of a parser and of its commands."""
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from _actions(command)
