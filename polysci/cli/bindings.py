"""Options that bind what a model leaves open: sizes of dimensions and values of inputs."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from polysci.cli import layers as shared
from polysci.errors import SpecError
from polysci.text.tables import shorten

if TYPE_CHECKING:
    from polysci.graph.state import KeptState
    from polysci.network.compiled import Network


def binding_options(command: argparse.ArgumentParser) -> None:
    """Add ``--dim``, ``--value`` and ``--most``."""
    command.add_argument(
        "--dim", type=dim, action="append", default=[], metavar="NAME=N,N|N..N",
        help="bind a free dimension, by its name or as INPUT.AXIS; may be repeated. With several "
        "sizes -o writes one C library that has an entry for each, with N..N one whose runs take "
        "all sizes from the first to the last",
    )  # fmt: skip
    command.add_argument(
        "--value", type=_value, action="append", default=[], metavar="NAME=V",
        help="bind an input to a constant: a number for all elements, or numbers separated by "
        "commas; may be repeated",
    )  # fmt: skip
    command.add_argument(
        "--most", type=_most, action="append", default=[], metavar="NAME=N",
        help="bound a size that data decides, as the iterations of a loop or the length of a "
        "range, by the tensor that the refusal names: a run that needs more ends with an error; "
        "may be repeated",
    )  # fmt: skip


def state_options(command: argparse.ArgumentParser) -> None:
    """Add ``--state``, ``--positions`` and ``--mask``."""
    command.add_argument(
        "--state", type=_pair, action="append", default=[], metavar="PAST=PRESENT",
        help="keep an input in the network, where the output PRESENT replaces it, or adds a row to "
        "it; a * in both stands for the number of a layer; may be repeated",
    )  # fmt: skip
    command.add_argument(
        "--positions",
        metavar="INPUT",
        default="",
        help="count the tokens of all runs, and make this input, their positions, of that",
    )
    command.add_argument(
        "--mask",
        metavar="INPUT",
        default="",
        help="make this input of the count of tokens: 1 for rows so far, these included, else 0",
    )


def kept_state(arguments: argparse.Namespace) -> KeptState:
    """Return what the network keeps of the model's inputs."""
    from polysci.graph.state import KeptState

    return KeptState(dict(arguments.state), arguments.positions, arguments.mask)


def _pair(text: str) -> tuple[str, str]:
    past, equals, present = text.partition("=")
    if not (past and equals and present):
        raise argparse.ArgumentTypeError(f"{text!r:.100}: expected PAST=PRESENT")
    return past, present


def input_options(command: argparse.ArgumentParser) -> None:
    """Add ``--input``; ``--seed`` is one of the tuner's options."""
    command.add_argument(
        "--input", metavar="FILE.npz",
        help="with --compare, --check or --debug-layers: run on the arrays of this file, by the "
        "names of the inputs (made up, of numbers that the model can compute with)",
    )  # fmt: skip


def check_inputs(arguments: argparse.Namespace) -> None:
    """Raise SpecError for inputs that nothing runs on, or that are read and made up."""
    runs, seed = arguments.compare or arguments.check or arguments.debug_layers, arguments.seed
    needs = "it needs --compare, --check or --debug-layers"
    if arguments.input is not None and not runs:
        raise SpecError(f"--input: of a run; {needs}")
    if seed is not None and not (runs or arguments.tuner):
        raise SpecError(f"--seed: of a run or a tuner; {needs}, or --tuner")
    if seed is not None and arguments.input is not None and not arguments.tuner:
        raise SpecError("--seed: makes up inputs, and --input reads them; leave out one")
    if seed is not None and seed < 0:
        raise SpecError(f"--seed {shorten(str(seed))}: expected a whole number from 0")


def inputs_of_run(arguments: argparse.Namespace, network: Network) -> dict[str, Any]:
    """The arrays of ``--input``, or made-up ones. Raises SpecError for a file that is wrong."""
    from polysci.network.runner import load_inputs
    from polysci.peers.networks.compare import inputs_for

    if arguments.input is not None:
        return load_inputs(arguments.input, network.inputs)
    return inputs_for(network, arguments.model, arguments.seed or 0)


def check_bindings(arguments: argparse.Namespace) -> None:
    """Raise SpecError for a name that is bound twice."""
    for option in ("dim", "value", "most"):
        names = [name for name, _ in getattr(arguments, option)]
        if twice := [name for name in names if names.count(name) > 1]:
            raise SpecError(f"--{option} {twice[0]}: given more than once")


def dims_of(arguments: argparse.Namespace) -> dict[str, int]:
    """The sizes of ``--dim``. Raises SpecError where one has several."""
    for name, sizes in arguments.dim:
        if len(sizes) > 1:
            listed = ",".join(map(str, sizes))
            if isinstance(sizes, range):
                listed = f"{sizes[0]}..{sizes[-1]}"
            raise SpecError(
                f"--dim {name}={listed}: several sizes are for a library; it needs -o DIR"
            )
    return {name: sizes[0] for name, sizes in arguments.dim}


def several_sizes(arguments: argparse.Namespace) -> bool:
    """Return whether ``--dim`` has several sizes of a dimension."""
    return any(len(sizes) > 1 for _, sizes in arguments.dim)


def has_ranges(arguments: argparse.Namespace) -> bool:
    """Return whether ``--dim`` has a range of sizes."""
    return any(isinstance(sizes, range) for _, sizes in arguments.dim)


def dim(text: str) -> tuple[str, Sequence[int]]:
    """``NAME=N``, ``NAME=N,N`` or ``NAME=N..N``; argparse prints the error."""
    name, equals, sizes = text.rpartition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"expected NAME=N, as in batch=1, got {text!r}")
    first, dots, last = sizes.partition("..")
    if dots:
        ends = shared.positive(first), shared.positive(last)
        if ends[0] >= ends[1]:
            raise argparse.ArgumentTypeError(f"expected NAME=N..M with N below M, got {text!r}")
        return name, range(ends[0], ends[1] + 1)
    return name, tuple(dict.fromkeys(shared.positive(size) for size in sizes.split(",")))


def _most(text: str) -> tuple[str, int]:
    """``NAME=N``; argparse prints the error."""
    name, equals, most = text.rpartition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"expected NAME=N, as in rows=1000, got {text!r}")
    return name, shared.positive(most)


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
