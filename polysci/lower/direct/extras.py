"""What tiles tell of their results while these are hot: bits, mean and variance of channels."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Final

from polysci.errors import UnsupportedError
from polysci.lower.direct import ctree as c
from polysci.lower.direct.interface import Parameter
from polysci.lower.direct.tiles import check_masks
from polysci.space.resolve import Plan

PLANES: Final = 4  # count, minus a number near the results, sums of differences from it and squares
PIXELS: Final = 4096  # in a row at least, if there are so many: long sums lose digits


@dataclass(frozen=True, slots=True)
class MomentRows:
    """Rows of moments: PLANES of ``channels`` floats each, which the function clears itself.

    Threads have as many rows each, one for every ``size`` elements of y.
    """

    rows: int
    channels: int
    size: int

    @property
    def floats(self) -> int:
        """In a row."""
        return PLANES * self.channels

    def place(self, channel: str, element: str) -> str:
        """C text of where the moments of results from an element of y on begin."""
        return f"{self.floats} * ({element} / {self.size}) + {channel}"

    def clear(self, threads: int) -> list[c.Generable]:
        """The statements with which a thread of several, or the only one, begins."""
        count, own = self.rows * self.floats // threads, "moments"
        head: list[c.Generable] = []
        if threads > 1:
            own = "local.moments"
            head.append(c.Statement(f"{own} += {count} * thread"))
        zero = c.Block([c.Statement(f"{own}[i] = 0")])
        return [*head, c.loop("int64_t i = 0", f"i < {count}", "++i", zero)]


def images_in_row(shape: tuple[int, ...]) -> int:
    """How many images of results of a shape, channels second, share a row of moments."""
    return max(1, PIXELS // max(1, prod(shape[2:])))


@dataclass(frozen=True, slots=True)
class Extras:
    """What else code takes. ``masked``: bits, one an element of y in the order of memory.

    Those of ``gate`` say which results stay, the others become 0, and those of ``mask`` are
    written, 1 where a result is above 0. ``moments``: it writes those of its results. ``adds``: its
    residual is y itself, to which sums are added.
    """

    masked: bool = False
    moments: MomentRows | None = None
    adds: bool = False

    def __bool__(self) -> bool:
        return self.masked or self.moments is not None or self.adds

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        masks = (Parameter("const uint8_t *", "gate"), Parameter("uint8_t *", "mask"))
        return masks * self.masked + (Parameter("float *", "moments"),) * bool(self.moments)

    def check(self, plan: Plan, *, by_rows: bool) -> None:
        """Raise UnsupportedError where a plan's code has no such thing."""
        if self.masked:
            check_masks(plan)
        if self.moments:
            _check_moments(plan, by_rows=by_rows)
        factors = plan.contraction.alpha, plan.contraction.beta
        if self.adds and not (factors == (1, 1) and plan.precision.y == plan.precision.sum):
            raise UnsupportedError(f"schedule {plan.schedule}: y holds no sums to add to")

    def epilogue(self, place: str) -> str:
        """The C of an epilogue that takes them, from that without."""
        if self.masked:
            place = f"ps_masked({place}, g, c)"
        if not self.moments:
            return place
        return f"ps_counted({place}, g, {self.moments.place('n', 'c')}, {self.moments.channels})"

    def beginning(self, plan: Plan, first: str) -> str:
        """The C of whether a tile begins with what y holds; ``first`` says it without extras."""
        if not self.adds or plan.private:
            return first
        return "first | 1" if plan.blocked else "1"

    @property
    def residual(self) -> str:
        """What tiles add to their sums at the end: nothing, where they begin with it."""
        return "0" if self.adds else "residual"

    def begin(self, threads: int) -> list[c.Generable]:
        """The statements with which a thread of several, or the only one, begins."""
        return self.moments.clear(threads) if self.moments else []


NO_EXTRAS: Final = Extras()


def _check_moments(plan: Plan, *, by_rows: bool) -> None:
    """Raise UnsupportedError unless columns are the second axis, and f32 sums end in registers."""
    kernel, contraction = plan.kernel, plan.contraction
    other = kernel.stencil or kernel.tile_registers or contraction.swapped or plan.private
    second = len(contraction.out.index) > 1 and contraction.out.index[1].coef(plan.panel_dim)
    if other or by_rows or plan.precision.integer or not second:
        raise UnsupportedError(
            f"schedule {plan.schedule}: no moments: results of a kernel that sums in f32, its "
            "columns channels, without private copies, have them"
        )
