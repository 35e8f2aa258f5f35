"""Which copies of A keep rows of it side by side, for calls that sum along none of its rows."""

from __future__ import annotations

from collections.abc import Sequence

from polysci.numerics.dtypes import COMPUTES
from polysci.polyhedral.contraction import Contraction, Dim
from polysci.polyhedral.long_reductions import row_beside
from polysci.target.microkernels import Microkernel


def beside_in_copy(
    contraction: Contraction, strides: Sequence[int], kernel: Microkernel
) -> Dim | None:
    """The row whose positions are neighbours in a packed copy of A, if those of no reduction are.

    Tile registers take rows of words.
    """
    compute = COMPUTES[kernel.compute]
    pairs = compute.name == "bf16" and kernel.family == "brgemm" and not kernel.tile_registers
    return row_beside(contraction, strides, compute.vnni_factor if pairs else 1)
