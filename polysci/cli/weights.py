"""--weights of polysci compile: narrower weights of products, and what they lose."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Final

from polysci.cli import bindings
from polysci.cli import layers as shared
from polysci.errors import SpecError

if TYPE_CHECKING:
    from polysci.graph.graph import Graph
    from polysci.quantize import ChosenWeights

AUTO: Final = "auto"
F32: Final = "f32"


def weights_options(command: argparse.ArgumentParser) -> None:
    """Add the options that say how weights are stored."""
    command.add_argument(
        "--weights", default=F32, metavar="TYPE",
        help="store constant weights of products of matrices so, and multiply f32: bf16, int8, "
        "int4, or blocks of 16 to 256 with a scale (s4x32, s8x64), and a zero point (u4x32); with "
        "inputs rounded to 8 bits int8a8, int4a8, u4a8x32, and a8 beside weights that are narrow "
        "already; auto: for each product the fastest that --max-loss permits, on --data (f32)",
    )  # fmt: skip
    command.add_argument(
        "--max-loss", type=float, metavar="X",
        help="with --weights auto: the most that an output may lose, as in 0.01",
    )  # fmt: skip
    command.add_argument(
        "--data", metavar="FILE.npz",
        help="with --weights auto: inputs to measure losses on, as polysci quantize takes them",
    )  # fmt: skip


def check_weights_options(arguments: argparse.Namespace) -> None:
    """Raise SpecError for options of which one needs the other."""
    auto = getattr(arguments, "weights", F32) == AUTO
    for option in ("max-loss", "data"):
        value = getattr(arguments, option.replace("-", "_"), None)
        if auto and value is None:
            raise SpecError(f"--weights auto: needs --{option}, as in --weights auto --max-loss "
                            "0.01 --data samples.npz")  # fmt: skip
        if value is not None and not auto:
            raise SpecError(f"--{option} {value}: an option of --weights auto")
    if auto and bindings.several_sizes(arguments):
        raise SpecError("--weights auto: losses are measured for one size; give --dim one number")


def narrow(arguments: argparse.Namespace, graph: Graph) -> Graph:
    """Return the graph with weights in the types that the options ask for; say what that loses."""
    check_weights_options(arguments)
    weights = getattr(arguments, "weights", F32)
    return _choose(arguments, graph) if weights == AUTO else _round(graph, weights)


def _choose(arguments: argparse.Namespace, graph: Graph) -> Graph:
    from polysci.quantize import choose_weights

    chosen = choose_weights(
        graph, arguments.data, arguments.max_loss, threads=arguments.threads or 1,
        say=shared.say,
    )  # fmt: skip
    shared.say(_table(chosen, shared.table_width(arguments)))
    shared.say(f"loss of the network: {chosen.loss:.3g}, on {chosen.samples} samples")
    return chosen.graph


def _table(chosen: ChosenWeights, width: int | None) -> str:
    """One line a product: its type, what it loses by itself so, and in the other types."""
    from polysci.text.tables import fit

    types = list(dict.fromkeys(kind for row in chosen.products for kind in row.losses))
    head = ["product", "weights", "loss", *(f"in {kind}" for kind in types)]
    rows = [
        [row.name, row.weights, f"{row.loss:.2e}",
         *(f"{row.losses[kind]:.2e}" if kind in row.losses else "" for kind in types)]
        for row in chosen.products
    ]  # fmt: skip
    return fit([head, *rows], width, clip=head[:1], left=head[:2])


def _round(graph: Graph, weights: str) -> Graph:
    """Return the graph with weights in one type."""
    from polysci.graph.passes.rounded_weights import round_weights, rounds_inputs

    graph, rows = round_weights(graph, weights)
    if weights == F32:
        return graph
    if rounded := sum(map(rounds_inputs, graph.nodes)):
        shared.say(f"inputs rounded to 8 bits: {rounded} products")
    losses = {row.node: row.loss for row in rows if row.loss is not None}
    if rows:
        shared.say(f"weights in {weights}: {len(losses)} of {len(rows)} products")
    if losses:
        worst = max(losses, key=lambda node: losses[node])
        shared.say(f"they are off by up to {losses[worst]:.2e} of their size, in {worst}")
    return graph
