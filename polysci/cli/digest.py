"""polysci digest: every tensor of a network as a few numbers, to compare devices by."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from polysci.cli import bindings
from polysci.cli import compile as compile_command
from polysci.cli import compile_targets as targets
from polysci.cli import layers as shared
from polysci.errors import SpecError

if TYPE_CHECKING:
    from polysci.network.digest import Digest

HELP = "print a digest of every tensor of a model, or compare it with another device's"
MORE = (
    "The model runs on made-up inputs, the same everywhere. A digest is text: minimum, maximum and "
    "strided sums of each tensor. --against names the first tensor that another run has otherwise."
)


def add(command: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    command.add_argument("model", metavar="MODEL", help="a model, as 'polysci compile' takes it")
    what = command.add_mutually_exclusive_group()
    what.add_argument("-o", "--output", metavar="FILE", help="write the digest to FILE")
    what.add_argument(
        "--against", metavar="FILE",
        help="compare with the digest of this file; the status is 1 if a tensor differs",
    )  # fmt: skip
    compile_command.reading_options(command)
    command.add_argument(
        "--dtype", type=targets.named_dtype, choices=targets.DTYPES, default="f32",
        help="type of weights and of tensors between layers (f32)",
    )  # fmt: skip
    shared.level_option(command, "estimate")
    shared.algorithm_option(command)
    shared.machine_options(command, described=False)
    shared.device_option(command)


def run(arguments: argparse.Namespace) -> int:
    """Compile, run, print the digest or the tensors that differ; 1 if there are any."""
    from polysci.border.files import read_text
    from polysci.network.digest import parse

    shared.check_writable(arguments.output)
    if arguments.against is None:
        shared.write(str(_digest(arguments)), arguments.output)
        return 0
    expected = parse(read_text(arguments.against), f"{arguments.against!r:.200}")
    return _compare(arguments, expected)


def _digest(arguments: argparse.Namespace, expected: Digest | None = None) -> Digest:
    """Return the digest of the model, which that of another model is told from ahead."""
    from polysci.network.compiled import rebuild_network
    from polysci.network.digest import digest_network, hash_graph
    from polysci.network.prepare import read_graph
    from polysci.peers.networks.compare import inputs_for

    bindings.check_bindings(arguments)
    graph = hash_graph(
        read_graph(
            arguments.model, bindings.dims_of(arguments), dict(arguments.value),
            external=arguments.external_data, most=dict(arguments.most),
        )
    )  # fmt: skip
    name = Path(arguments.model).stem
    if expected is not None and expected.graph != graph:
        raise SpecError(
            f"--against {arguments.against}: it is of model {expected.model!r:.80}, graph and "
            f"weights {expected.graph}, and {name!r:.80} is {graph}"
        )
    if expected is not None and expected.dtype != arguments.dtype:
        raise SpecError(
            f"--against {arguments.against}: it is of --dtype {expected.dtype}, and this run is "
            f"of {arguments.dtype}"
        )
    network = compile_command.network_of(arguments)
    inputs = inputs_for(network, arguments.model)
    return digest_network(rebuild_network(network, apart=True), name, graph, inputs)


def _compare(arguments: argparse.Namespace, expected: Digest) -> int:
    from polysci.network.digest import compare, shared_tensors

    digest = _digest(arguments, expected)
    wrong = compare(digest, expected)
    both, own, others = shared_tensors(digest, expected)
    for at, tensor in enumerate(wrong):
        print(f"{tensor}{'' if at else '; the first that is wrong: the likely cause'}")
    result = f"{len(wrong)} of {both} tensors differ" if wrong else f"all {both} tensors agree"
    alone = f"; fused otherwise: {own} only here, {others} only there" if own or others else ""
    print(f"{result} with {arguments.against}{alone}")
    return int(bool(wrong))
