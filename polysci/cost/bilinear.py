"""Seconds of a bilinear algorithm: its sums, its products of blocks, and the way of the factors."""

from __future__ import annotations

from dataclasses import dataclass

from polysci.cost.estimate import Context


@dataclass(frozen=True, slots=True)
class BilinearWork:
    """The features of a call: what it computes and moves; sizes are in bytes.

    Each of ``turns``, a band of A by a part of B, forms ``products`` of blocks in ``seconds``
    each. ``operations`` are fused ones of vectors, in sums of A and in those of products. ``sums``
    are bytes of sums of A in all, ``band`` those of a turn, as ``products_bytes`` are of products.
    All packed ``factors``, sums of B, are read once for each of ``bands``; ``packed``: calls pack
    them. A ``streamed`` y is not read before it is written. ``share`` is the busiest thread's part
    of the turns.
    """

    lanes: int
    teams: int
    turns: int
    bands: int
    products: int
    seconds: float
    operations: tuple[int, int]
    x: int
    w: int
    y: int
    sums: int
    band: int
    products_bytes: int
    factors: int
    packed: bool
    streamed: bool
    share: float


@dataclass(frozen=True, slots=True)
class BilinearEstimate:
    """Seconds of a call by parts, of the thread that has most to do."""

    packing: float
    sums: float
    products: float
    factors: float
    back: float
    threads: float

    @property
    def parts(self) -> dict[str, float]:
        return {
            "packing B": self.packing, "sums of A": self.sums, "products": self.products,
            "factors": self.factors, "sums of products": self.back, "threads": self.threads,
        }  # fmt: skip

    @property
    def seconds(self) -> float:
        return sum(self.parts.values())


@dataclass(frozen=True, slots=True)
class BilinearCosts:
    """The work of a call with the machine's coefficients."""

    work: BilinearWork
    context: Context

    def estimate(self) -> BilinearEstimate:
        """Return the prediction; packed factors that L3 does not hold come from memory."""
        work = self.work
        slot = 4e-9 * work.lanes / self.context.machine.peak  # of an operation and its load
        into, back = (count * slot / work.teams for count in work.operations)
        into += (work.x / self._rate(work.x) + work.sums * self._passed) * work.share
        moved = work.turns * work.products_bytes * self._passed / 2  # products hide the stores
        back += (moved + (2 - work.streamed) * work.y / self._far) * work.share
        products = work.turns * work.products * work.seconds * work.share
        regions = 0 if work.teams == 1 else 1 + work.packed
        return BilinearEstimate(
            self._packing(), into, products, self._factors(products), back,
            regions * self.context.fork_seconds,
        )  # fmt: skip

    @property
    def _passed(self) -> float:
        """Seconds in which a byte of a thread's sums or products is written and read again."""
        l2, l3, memory = (1e-9 / rate for rate in self.context.rates)
        held = self.work.band + self.work.products_bytes
        coefficient = self.context.machine.coefficient
        if held <= self.context.usable(self.context.l2):
            return 2 * l2
        beyond = coefficient("bilinear_memory") * memory
        if held <= self.context.target.last_level.size / self.work.teams:
            return min(beyond, coefficient("bilinear_l3") * l3)
        return beyond

    def _packing(self) -> float:
        """Return the seconds in which a call forms and packs the sums of B."""
        work = self.work
        if not work.packed:
            return 0.0
        each = self.context.machine.coefficient("bilinear_packed") / (self.context.rates[0] * 1e9)
        return (work.w / self._rate(work.w) + each * work.factors) / work.teams

    def _factors(self, products: float) -> float:
        """Return what reading the factors takes beyond the products that hide a part of it."""
        work = self.work
        far = work.bands * work.factors / self._far * work.share
        hidden = self.context.machine.coefficient("hidden_memory")
        return max(0.0, far - products) + hidden * min(far, products)

    @property
    def _far(self) -> float:
        """Bytes a second of what a call reads and writes but once: other data take its place."""
        work = self.work
        all_of_it = work.factors + work.x + work.y
        return self._rate(float("inf") if self.context.cold else all_of_it)

    def _rate(self, size: float) -> float:
        """Bytes a second of one thread from the level that holds so many bytes."""
        l2, l3, memory = self.context.rates
        target = self.context.target
        if size <= self.context.usable(self.context.l2):
            return l2 * 1e9
        if size <= target.last_level.size / self.work.teams:
            return l3 * 1e9
        return memory * 1e9
