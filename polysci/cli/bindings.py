"""Options that bind what a model leaves open: sizes of dimensions and values of inputs."""

from __future__ import annotations

import argparse
from itertools import product
from typing import Any

from polysci.cli import layers as shared
from polysci.errors import SpecError


def binding_options(command: argparse.ArgumentParser) -> None:
    """Add ``--dim`` and ``--value``."""
    command.add_argument(
        "--dim", type=_dim, action="append", default=[], metavar="NAME=N,N",
        help="bind a free dimension, by its name or as INPUT.AXIS; may be repeated. With several "
        "sizes -o writes one C library that has an entry for each",
    )  # fmt: skip
    command.add_argument(
        "--value", type=_value, action="append", default=[], metavar="NAME=V",
        help="bind an input to a constant: a number for all elements, or numbers separated by "
        "commas; may be repeated",
    )  # fmt: skip


def check_bindings(arguments: argparse.Namespace) -> None:
    """Raise SpecError for a name that is bound twice."""
    for option in ("dim", "value"):
        names = [name for name, _ in getattr(arguments, option)]
        if twice := [name for name in names if names.count(name) > 1]:
            raise SpecError(f"--{option} {twice[0]}: given more than once")


def dims_of(arguments: argparse.Namespace) -> dict[str, int]:
    """The sizes of ``--dim``. Raises SpecError where one has several."""
    for name, sizes in arguments.dim:
        if len(sizes) > 1:
            words = ",".join(map(str, sizes))
            raise SpecError(
                f"--dim {name}={words}: several sizes are for a library; it needs -o DIR"
            )
    return {name: sizes[0] for name, sizes in arguments.dim}


def several_sizes(arguments: argparse.Namespace) -> list[dict[str, int]]:
    """Every choice of the sizes that ``--dim`` has several of; none where it has one each."""
    lists = {name: sizes for name, sizes in arguments.dim if len(sizes) > 1}
    return [dict(zip(lists, sizes, strict=True)) for sizes in product(*lists.values()) if lists]


def binding_words(arguments: argparse.Namespace) -> list[str]:
    """The options as they were written."""
    words: list[str] = []
    for name, sizes in arguments.dim:
        words += ["--dim", f"{name}={','.join(map(str, sizes))}"]
    for name, value in arguments.value:
        numbers = value if isinstance(value, list) else [value]
        words += ["--value", f"{name}={','.join(map(_text, numbers))}"]
    return words


def _text(number: bool | int | float) -> str:
    return str(number).lower() if isinstance(number, bool) else repr(number)


def _dim(text: str) -> tuple[str, tuple[int, ...]]:
    """``NAME=N`` or ``NAME=N,N``; argparse prints the error."""
    name, equals, sizes = text.rpartition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"expected NAME=N, as in batch=1, got {text!r}")
    return name, tuple(dict.fromkeys(shared.positive(size) for size in sizes.split(",")))


def _value(text: str) -> tuple[str, Any]:
    """``NAME=V`` or ``NAME=V,V``; argparse prints the error."""
    name, equals, numbers = text.rpartition("=")
    try:
        values = [_number(number) for number in numbers.split(",")]
    except ValueError:
        values = []
    if not name or not equals or not values:
        raise argparse.ArgumentTypeError(
            f"expected NAME=V of numbers, as in rate=16000 or sizes=2,3, got {text!r}"
        )
    return name, values if "," in numbers else values[0]


def _number(text: str) -> bool | int | float:
    if text in ("true", "false"):
        return text == "true"
    try:
        return int(text)
    except ValueError:
        return float(text)
