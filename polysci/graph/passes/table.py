"""The passes of graphs, in their order: the same network with fewer operations."""

from __future__ import annotations

from typing import Final

import numpy as np

from polysci.graph.graph import Graph
from polysci.graph.passes.affine import make_affine
from polysci.graph.passes.affine_pairs import merge_affine_pairs
from polysci.graph.passes.byte_tables import make_byte_tables
from polysci.graph.passes.copies import without_copies, without_idle_operations
from polysci.graph.passes.fixed_shapes import fix_shapes
from polysci.graph.passes.folded_weights import fold_weights
from polysci.graph.passes.grouped_heads import group_heads
from polysci.graph.passes.hidden_scores import skip_hidden_scores
from polysci.graph.passes.idle_quantisations import remove_idle_quantisations
from polysci.graph.passes.integer_products import make_integer_products
from polysci.graph.passes.known_zeros import remove_known_zeros
from polysci.graph.passes.late_division import divide_late
from polysci.graph.passes.moved_constants import move_constants
from polysci.graph.passes.narrow_tables import keep_narrow_tables
from polysci.graph.passes.narrow_weights import keep_narrow_weights
from polysci.graph.passes.scaled_products import delay_scales, scale_products
from polysci.program.passes.row import Pass, PassWatch, plain, run_table

FIRST_PASSES: Final[tuple[Pass, ...]] = (
    plain("narrow tables", "rows of a table of 8 bits are dequantised where they are read",
          keep_narrow_tables),
    plain("idle quantisations", "numbers of 8 bits are moved as they are",
          remove_idle_quantisations),
    plain("byte tables", "slow functions of one number of 8 bits become tables",
          make_byte_tables),
    plain("integer products", "dequantised factors multiply as 8-bit numbers",
          make_integer_products),
    plain("narrow weights", "dequantised weights stay narrow where they multiply f32",
          keep_narrow_weights),
    plain("known zeros", "zeros of 8-bit factors leave the products", remove_known_zeros),
)  # fmt: skip
# They run until none of them changes the graph.
REPEATED_PASSES: Final[tuple[Pass, ...]] = (
    plain("copies", "Identity, idle Dropout and idle Cast hand on their input",
          without_copies),
    plain("idle operations", "sums with zeros, products with ones and the like hand on their input",
          without_idle_operations),
    plain("fixed shapes", "Flatten, Squeeze and Unsqueeze become Reshape", fix_shapes),
    plain("moved constants", "Reshape and Concat of constants are computed",
          move_constants),
    plain("affine", "what scales and shifts channels is x * a + b",
          make_affine),
    plain("affine pairs", "two x * a + b in a row become one", merge_affine_pairs),
    plain("folded weights", "x * a + b goes into the weights before it",
          fold_weights),
    plain("scaled products", "weights are scaled, and not what is computed of their products",
          scale_products),
    plain("late scales", "products are scaled, and not factors that are larger",
          delay_scales),
    plain("hidden scores", "attention computes no scores that its mask hides",
          skip_hidden_scores),
    plain("grouped heads", "rows that share an expanded matrix are multiplied together",
          group_heads),
    plain("late division", "softmax divides what it is multiplied to", divide_late),
)  # fmt: skip

BY_SIZE: Final = frozenset(
    ("idle operations", "late scales", "hidden scores")
)  # passes with other nodes for other sizes


@np.errstate(all="ignore")  # infinity, and no number, are constants as well
def simplify(graph: Graph, watch: PassWatch | None = None, *, any_size: bool = False) -> Graph:
    """Return the graph after all passes; ``watch`` hears of each.

    With ``any_size`` graphs of a model that differ in sizes stay alike.
    """
    repeated = [row for row in REPEATED_PASSES if not (any_size and row.name in BY_SIZE)]
    graph, _ = run_table(FIRST_PASSES, graph, watch=watch)
    while True:
        before = graph.nodes
        graph, _ = run_table(repeated, graph, watch=watch)
        if graph.nodes == before:
            return graph
