"""Every command's help ends with examples, and the program takes each of them."""

import shlex

import pytest

from polysci.cli import COMMANDS, EXAMPLES, parser
from polysci.ops import layer_lists, parse_problem
from tests.support.command import done

NAMES = [module.__name__.rsplit(".", 1)[-1] for module in COMMANDS]
LINES = [line for lines in EXAMPLES.values() for line in lines]
LINES += [
    line.strip().partition("  ")[0]
    for line in str(parser().epilog).splitlines()
    if line.startswith("  polysci ")
]


def test_every_command_has_two_or_three_examples() -> None:
    assert list(EXAMPLES) == NAMES
    assert {len(lines) for lines in EXAMPLES.values()} <= {2, 3}
    assert not [line for line in LINES if len(line) > 76]


@pytest.mark.parametrize("command", NAMES)
def test_help_ends_with_the_examples(command: str) -> None:
    text = done(command, "--help", COLUMNS="80")
    assert text.rstrip().endswith("\n".join(f"  {line}" for line in EXAMPLES[command]))
    assert max(map(len, text.splitlines())) <= 80


def test_the_help_of_the_program_has_80_columns() -> None:
    assert max(map(len, done("--help", COLUMNS="80").splitlines())) <= 80


@pytest.mark.parametrize("line", LINES)
def test_the_parser_takes_the_example(line: str) -> None:
    program, *words = shlex.split(line)
    arguments = parser().parse_args(words)
    assert program == "polysci" and arguments.command in NAMES
    for layer in getattr(arguments, "layers", []):
        assert (
            layer.endswith((".c", ".onnx")) or layer in layer_lists.names() or parse_problem(layer)
        )
