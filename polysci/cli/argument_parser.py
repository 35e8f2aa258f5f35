"""A parser of arguments whose errors are one line and suggest what was probably meant."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from polysci.text.lengths import cut_message
from polysci.text.suggestions import suggest


class Formatter(argparse.HelpFormatter):
    """Fills a description, and leaves a text of several lines as it is."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if "\n" in text.strip() else super()._fill_text(text, width, indent)


class Parser(argparse.ArgumentParser):
    """argparse's parser with short errors; its commands and actions are parsers of this kind."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"formatter_class": Formatter, **options})

    def error(self, message: str) -> NoReturn:
        """Print one line and end with status 2."""
        self.exit(2, f"{self.prog}: error: {cut_message(message)} ({self.prog} --help)\n")

    def _print_message(self, message: str, file: Any = None) -> None:
        """Print; argparse's own drops the error of a full disk or a closed pipe."""
        print(message, end="", file=file or sys.stderr)

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Refuse unknown arguments at once, so that the error is that of the command."""
        known, unknown = super().parse_known_args(args, namespace)
        if unknown:
            hint = suggest(unknown[0].partition("=")[0], self._option_string_actions)
            self.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
        return known, unknown

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        choices = [str(choice) for choice in action.choices or ()]
        if choices and value not in choices:
            known = ", ".join(choices)
            raise argparse.ArgumentError(
                action, f"{value!r} is none of {known}{suggest(str(value), choices)}"
            )
