"""The command line: parse, call, print. ``polysci COMMAND --help`` lists the options."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NoReturn

from polysci.border.files import open_closed_streams, output_fault
from polysci.border.guard import is_expected, report_of
from polysci.cli import (
    bench,
    check,
    compile,
    conformance,
    digest,
    doctor,
    explain,
    export,
    farm,
    learn,
    machine,
    optimize,
    quantize,
    rank,
    report,
    wisdom,
)
from polysci.errors import SpecError, UnsupportedError, cut_message
from polysci.text.names import suggest
from polysci.version import __version__

SHELLS = ("bash", "zsh")
_FOLDERS = ("DIR",)  # words of a metavar
_FILES = ("FILE", "MODEL")


class Formatter(argparse.HelpFormatter):
    """Fills a description, and leaves a text of several lines as it is."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if "\n" in text.strip() else super()._fill_text(text, width, indent)


class Parser(argparse.ArgumentParser):
    """argparse's parser with short errors; its commands and actions are parsers of this kind."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"formatter_class": Formatter, "allow_abbrev": False, **options})

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
        print(completion_script(parser, str(values)))
        parser.exit(0)


COMMANDS = (
    *(optimize, compile, quantize, bench, rank, explain, report, check, export, digest),
    *(wisdom, learn, machine, farm, conformance, doctor),
)
BAD_INPUT, FAILED, INTERRUPTED = 2, 1, 130

_EPILOG = """\
examples:
  polysci optimize mb1ic64ih56oc64kh3ph1         a layer in benchdnn's grammar
  polysci optimize resnet50 --threads 2          all of models/resnet50.txt
  polysci optimize my_nest.c                     a loop nest written in C
  polysci bench resnet50 --against torch         in turns with oneDNN
  polysci explain mb1ic64ih56oc64kh3ph1          why this schedule
  polysci export resnet50 -o resnet50            one .c and one .h
  polysci compile model.onnx --compare openvino  a network and OpenVINO
  polysci compile model.onnx -o model            the network as a C project
  polysci compile model.onnx --isa wasm128 -o web   the same for browsers
  polysci doctor                                 check the installation

environment: CC, POLYSCI_CACHE_DIR, POLYSCI_ISA, POLYSCI_NUM_THREADS,
             POLYSCI_WASM_CC
"""

# The examples that close the help of every command; a test parses each.
EXAMPLES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "optimize": (
            "polysci optimize mb1ic64ih56oc64kh3ph1",
            "polysci optimize resnet50 --threads 2 --time-limit 600",
            "polysci optimize resnet50 --scheduler tcp://192.0.2.1:8786",
        ),
        "compile": (
            "polysci compile model.onnx -o model --dim batch=1 --value rate=16000",
            "polysci compile model.onnx --compare onnxruntime,openvino",
            "polysci compile model.onnx --isa wasm128 -o web",
        ),
        "quantize": (
            "polysci quantize model.onnx --data samples.npz -o int8.onnx",
            "polysci quantize a.onnx --data x.npz -o b.onnx --dtype auto --max-loss 0.01",
        ),
        "bench": (
            "polysci bench mb1ic64ih56oc64kh3ph1 --against torch",
            "polysci bench resnet50 --against torch --dtype int8 --json -o bench.json",
            "polysci bench resnet50 --against torch,onednn --cold",
        ),
        "rank": (
            "polysci rank --list",
            "polysci rank mb1ic64ih56oc64kh3ph1 --ranker traffic --ranker polydl",
            "polysci rank mb1ic64ih56oc64kh3ph1 --measure --top 5",
        ),
        "explain": (
            "polysci explain mb1ic64ih56oc64kh3ph1",
            "polysci explain mb1ic64ih56oc64kh3ph1 --isa neon --source",
            "polysci explain model.onnx",
        ),
        "report": (
            "polysci report resnet50 --level estimate -o resnet50.html",
            "polysci report resnet50 --threads 2 -o resnet50.html",
        ),
        "check": (
            "polysci check mb1ic64ih56oc64kh3ph1",
            "polysci check mb1ic64ih56oc64kh3ph1 --all 5 --mode exact",
        ),
        "export": (
            "polysci export resnet50 -o resnet50",
            "polysci export mb1ic64ih56oc64kh3ph1 --isas avx512,avx2,portable -o layer",
            "polysci export mb1ic64ih56oc64kh3ph1 --python -o layer",
        ),
        "digest": (
            "polysci digest model.onnx -o model.txt",
            "polysci digest model.onnx --against model.txt --device opencl:0",
        ),
        "wisdom": (
            "polysci wisdom list",
            "polysci wisdom export wisdom.json",
            "polysci wisdom compare wisdom.json other.json",
        ),
        "learn": (
            "polysci learn",
            "polysci learn --threads 1 --json",
        ),
        "machine": (
            "polysci machine",
            "polysci machine --calibrate --kernels",
            "polysci machine -o here.toml",
        ),
        "farm": (
            "polysci farm worker tcp://192.0.2.1:8786",
            "polysci farm status tcp://192.0.2.1:8786",
        ),
        "conformance": (
            "polysci conformance",
            "polysci conformance --match test_resize --isa portable",
        ),
        "doctor": (
            "polysci doctor",
            "polysci doctor --isa avx2",
        ),
    }
)  # fmt: skip


def parser() -> argparse.ArgumentParser:
    """The whole grammar of the command line."""
    top = Parser(
        prog="polysci",
        description="Fast CPU code for convolutions, loop nests and ONNX networks.",
        epilog=_EPILOG,
    )
    top.add_argument("--version", action="version", version=f"polysci {__version__}")
    top.add_argument("--traceback", action="store_true", help="show where an error was raised")
    top.add_argument(
        "--print-completion", action=PrintCompletion, choices=SHELLS,
        help="print a script that completes commands and options in this shell",
    )  # fmt: skip
    commands = top.add_subparsers(metavar="COMMAND", required=True, dest="command")
    for module in COMMANDS:
        name, about = module.__name__.rpartition(".")[2], [module.HELP, getattr(module, "MORE", "")]
        notes = [getattr(module, "NOTES", ""), epilog(name)]
        command = commands.add_parser(
            name, help=module.HELP, description=". ".join(filter(None, about)),
            epilog="\n".join(filter(None, notes)),
        )  # fmt: skip
        module.add(command)
        command.set_defaults(run=module.run)
    return top


def epilog(command: str) -> str:
    """The examples of a command, a line each."""
    return "\n".join(["examples:", *(f"  {line}" for line in EXAMPLES[command])])


def completion_script(parser: argparse.ArgumentParser, shell: str) -> str:
    """The completion script of a parser. Raises UnsupportedError where shtab is not installed."""
    try:
        import shtab
    except ImportError:
        raise UnsupportedError(
            "--print-completion needs shtab: pip install 'polysci[completion]'"
        ) from None
    names = _option_choices()
    for action in _actions(parser):
        metavar = str(action.metavar)
        if action.dest in names and action.choices is None:
            action.choices = names[action.dest]
        elif any(word in metavar for word in _FILES):
            action.complete = shtab.FILE  # type: ignore[attr-defined]
        elif metavar in _FOLDERS:
            action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
    return str(shtab.complete(parser, shell))


def _option_choices() -> dict[str, list[str]]:
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


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit status.

    0: done. 1: the work failed, or standard output did not take its result. 2: bad input.
    130: Ctrl-C.
    """
    open_closed_streams()
    try:
        status = _run(sys.argv[1:] if argv is None else argv)
    except SystemExit as error:
        if _lost_output():
            raise SystemExit(error.code or FAILED) from None
        raise
    return status or FAILED if _lost_output() else status


def _run(argv: Sequence[str]) -> int:
    try:
        if not argv:
            parser().print_help()
            return 0
        arguments = parser().parse_args(argv)
        status: int = arguments.run(arguments)
        return status
    except BrokenPipeError:  # ``| head`` has read what it wants
        return FAILED
    except KeyboardInterrupt:
        print("polysci: interrupted; what was measured is kept", file=sys.stderr)
        return INTERRUPTED
    except Exception as error:
        if "--traceback" in argv:
            raise
        error = error if is_expected(error) else report_of(error)
        message = cut_message(str(error) or type(error).__name__)
        print(f"polysci: error: {message}", file=sys.stderr)
        return BAD_INPUT if isinstance(error, SpecError) else FAILED


def _lost_output() -> bool:
    """Say that standard output failed, if it did; return whether it did."""
    fault = output_fault()
    if fault and not isinstance(fault, BrokenPipeError):
        print(f"polysci: error: standard output: {fault.strerror}", file=sys.stderr)
    return fault is not None
