"""The published rankers: bytes of working sets, placed in caches, times a level's price.

Working sets are counted in closed form: all dependences of thousands of schedules at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from polysci.cost.estimate import Context
from polysci.errors import SpecError
from polysci.polyhedral.contraction import Contraction, Operand
from polysci.polyhedral.footprint import FLOAT, Count, extent_of
from polysci.space.enumerate import Family
from polysci.target.target import Target
from polysci.text.names import suggest

# Cycles to L1, L2, L3 and memory of the published machine (Tavarageri et al., PolyScientist,
# arXiv 2002.02145, and the programs published with it).
LATENCIES = (4.0, 14.0, 60.0, 84.0)
# Bytes a cycle from L1, L2, L3 and memory of the published machine (Tavarageri et al., PolyDL,
# arXiv 2006.02230, and the programs published with it).
BANDWIDTHS = (192.0, 96.0, 16.0, 55.0)
WEIGHTS = tuple(cycles / rate for cycles, rate in zip(LATENCIES, BANDWIDTHS, strict=True))
CONVENTIONS = ("published", "inclusive")
Caches = tuple[float, float, float]  # bytes of L1 and L2 of one core, and of the shared L3
Box = Mapping[str, Count]


@dataclass(frozen=True, slots=True)
class Sizes:
    """Working sets in elements, arrays of (schedules, dependences); 0 where there is none.

    ``least`` and ``most`` are one thread's, ``least_shared`` and ``most_shared`` all threads'
    together. ``loops`` says which loop of the family carries each dependence; the point loops of
    the register tile follow its tile loops.
    """

    least: Count
    most: Count
    least_shared: Count
    most_shared: Count
    loops: tuple[int, ...]


def working_set_bytes(
    contraction: Contraction, family: Family, threads: int = 1, convention: str = "published"
) -> Sizes:
    """Count working sets in closed form, as ``experiments/exact_working_sets.py`` does by isl.

    A loop carries one dependence, through the operand that its dimension does not index (none
    where all three are indexed). Its first source is the origin; with loops of T iterations inside
    which a box of iterations runs,

    * ``least`` is the box and one point of the next iteration (published: if T > 2);
    * ``most`` is the box times T - 1. Inclusive, the last iteration goes on until each loop inside
      over a dimension that the operand lacks has reached its end, the others standing at 0.

    Equal to the exact form over a box of iterations, tiles that do not divide included, wherever
    no subscript adds two dimensions of which both vary. Where one does (a filter's window):

    * published sizes are exact still, but the reuse of the halo itself, carried by the loops over
      the window's dimensions, is not among them;
    * inclusive ``most`` is an upper bound, at most the whole loop's footprint.

    Guards (padding) are ignored: ``most`` is an upper bound then, while ``least`` may be too small
    by the elements that another first source than the origin sees. Every thread's share is taken to
    be the first one's: an upper bound of shared sizes. Packing and streaming do not change which
    elements are touched.
    Raises SpecError for another convention.
    """
    if convention not in CONVENTIONS:
        raise SpecError(
            f"convention {convention!r}: expected one of {', '.join(CONVENTIONS)} working sets"
        )
    return _Nest(contraction, family, threads).sizes(inclusive=convention == "inclusive")


@dataclass(frozen=True, slots=True)
class _TiledLoop:
    """``trips`` iterations of a step over a dimension: the box around them, and inside each."""

    dim: str
    step: Count
    trips: Count
    around: Box
    inside: Box

    @property
    def runs(self) -> NDArray[np.bool_]:
        """Return where it has more than one iteration."""
        return self.trips > 1

    def box(self) -> Box:
        """Return the extents that all iterations but the last cover."""
        return {**self.inside, self.dim: (self.trips - 1) * self.step}


@dataclass(frozen=True, slots=True)
class _Threads:
    """``parts`` threads side by side along a dimension, ``distance`` of its ``extent`` apart."""

    dim: str
    parts: Count
    distance: Count
    extent: Count


class _Nest:
    """One thread's loops of every schedule of a family."""

    def __init__(self, contraction: Contraction, family: Family, threads: int) -> None:
        self.family = family
        self.operands = (contraction.a, contraction.b, contraction.out)
        extents = {d.name: np.full(1, float(d.extent)) for d in contraction.dims}
        self.threads = list(_shares(family, extents, threads))
        for part in self.threads:
            own = np.minimum(part.distance, extents[part.dim])
            extents[part.dim] = own
        self.loops = list(_loops(family, extents))

    def sizes(self, *, inclusive: bool) -> Sizes:
        size = len(self.family)
        parts: list[list[Count]] = [[], [], [], []]
        carried = [(i, op) for i, loop in enumerate(self.loops) if (op := self._lacking(loop.dim))]
        for threads, low, high in ((False, 0, 1), (True, 2, 3)):
            if threads and not self.threads:
                parts[2], parts[3] = parts[0], parts[1]
                break
            boxes = self._boxes(threads)
            for at, operand in carried:
                runs, far = self.loops[at].runs, np.zeros(1)
                for op in self.operands:
                    far = far + boxes[op.array][at]
                near = self._least(at, threads, inclusive)
                if inclusive:
                    far = far + self._last(at, operand, boxes, threads=threads)
                parts[low].append(np.broadcast_to(np.where(runs, near, 0.0), size))
                parts[high].append(np.broadcast_to(np.where(runs, far, 0.0), size))
        least, most, least_shared, most_shared = (
            np.stack(part, axis=1) if part else np.zeros((size, 0)) for part in parts
        )
        return Sizes(least, most, least_shared, most_shared, tuple(at for at, _ in carried))

    def _lacking(self, dim: str) -> Operand | None:
        """The operand that a dimension does not index."""
        return next((op for op in self.operands if not op.uses(dim)), None)

    def _boxes(self, threads: bool) -> dict[str, list[Count]]:
        """Elements of every operand that all but the last iteration of each loop touch."""
        return {
            op.array: [
                np.where(loop.runs, self._elements(op, loop.box(), threads), 0.0)
                for loop in self.loops
            ]
            for op in self.operands
        }

    def _least(self, at: int, threads: bool, inclusive: bool) -> Count:
        """One iteration of a loop, and the first point of the next unless that is the last."""
        loop = self.loops[at]
        total = np.zeros(1)
        for op in self.operands:
            total = total + self._elements(op, loop.inside, threads)
            if op.uses(loop.dim):
                point = np.where(loop.trips > 2, 1.0, float(inclusive)) * _fresh(op, loop)
                total = total + point * (self._spread(op) if threads else 1.0)
        return total

    def _last(
        self, at: int, lacking: Operand, boxes: Mapping[str, list[Count]], *, threads: bool
    ) -> Count:
        """Elements that only the last iteration touches, until the furthest target is reached."""
        loop, total = self.loops[at], np.zeros(1)
        for op in self.operands:
            if op is not lacking:
                more = self._spread(op) if threads else np.ones(1)
                for runs, box in self._path(at, lacking):
                    more = more + np.where(runs, self._elements(op, box, threads), 0.0)
                all_elements = self._elements(op, loop.around, threads)
                total = total + np.minimum(more, all_elements - boxes[op.array][at])
        return total

    def _path(self, at: int, lacking: Operand) -> Iterator[tuple[NDArray[np.bool_], Box]]:
        """The last iteration on its way: whole boxes, one for each loop that goes to its end."""
        loop = self.loops[at]
        current = {**loop.inside, loop.dim: _rest(loop.around[loop.dim], loop.step)}
        for inner in self.loops[at + 1 :]:
            extent = current[inner.dim]
            step = np.minimum(inner.step, extent)
            if lacking.uses(inner.dim):
                current[inner.dim] = step
                continue
            rest = _rest(extent, step)
            yield extent > step, {**current, inner.dim: extent - rest}
            current[inner.dim] = rest

    def _elements(self, op: Operand, box: Box, threads: bool) -> Count:
        """Distinct elements of an operand in a box: of one thread's, or of all threads'."""
        total = np.ones(1)
        for axis in range(len(op.index)):
            positions = extent_of(op, axis, box)
            for part in self.threads if threads else ():
                if op.index[axis].coef(part.dim):
                    last = part.distance * (part.parts - 1)
                    joined = np.minimum(box[part.dim] + last, part.extent)
                    together = extent_of(op, axis, {**box, part.dim: joined})
                    positions = np.minimum(positions * part.parts, together)
            total = total * positions
        return total

    def _spread(self, op: Operand) -> Count:
        """Return the number of different elements that the threads touch at one time."""
        total = np.ones(1)
        for part in self.threads:
            if op.uses(part.dim):
                total = total * part.parts
        return total


def _shares(family: Family, extents: Box, threads: int) -> Iterator[_Threads]:
    """The grid of :func:`working_sets.thread_share` over the leading parallel loops."""
    if threads == 1:
        return
    left = np.full(len(family), float(threads))
    for position in range(int(family.parallel.max(initial=0))):
        dim, step = family.dims[position], family.steps[:, position].astype(np.float64)
        trips = np.ceil(extents[dim] / step)
        cut = np.where(position < family.parallel, np.minimum(trips, left), 1.0)
        size = np.ceil(trips / cut)
        left = np.floor(left / cut)
        yield _Threads(dim, np.ceil(trips / size), size * step, extents[dim])


def _rest(extent: Count, step: Count) -> Count:
    """Return the part of a dimension that the last of a loop's iterations covers."""
    rest: Count = extent - (np.ceil(extent / step) - 1) * step
    return rest


def _loops(family: Family, extents: Box) -> Iterator[_TiledLoop]:
    """The tile loops, then the points of the register tile in the order of the text."""
    current = extents
    for position, dim in enumerate(family.dims):
        step = np.minimum(family.steps[:, position].astype(np.float64), current[dim])
        trips = np.ceil(current[dim] / step)
        around, current = current, {**current, dim: step}
        yield _TiledLoop(dim, step, trips, around, current)
    for dim in extents:
        trips, point = current[dim], np.ones(1)
        around, current = current, {**current, dim: point}
        if (trips > 1).any():
            yield _TiledLoop(dim, point, trips, around, current)


def _fresh(op: Operand, loop: _TiledLoop) -> Count:
    """1 where the first point of the next iteration touches an element that this one does not.

    Along an axis of two dimensions, ``a*x + b*y``, the point (X, 0) falls on (X - b/g, a/g) if
    that lies inside, g = gcd(a, b): X the step of the loop, in a window of y.
    """
    fresh = np.zeros(1)
    for index in op.index:
        own = abs(index.coef(loop.dim))
        others = [(abs(coef), loop.inside[dim]) for dim, coef in index.terms if dim != loop.dim]
        if own:
            again = np.zeros(1)
            for coef, size in others:
                common = np.gcd(own, coef)
                again = np.maximum(
                    again, (coef // common <= loop.step) & (own // common <= size - 1)
                )
            fresh = np.maximum(fresh, 1.0 - again)
    return fresh


def caches_of(target: Target, threads: int = 1) -> Caches:
    """Bytes of L1 and L2 for one thread, and of the last level for all threads.

    They are 0 of a level that a target with fewer than three caches lacks.
    """
    first, second, last = target.levels
    together = target.sharing(last.name, threads)
    sizes = (
        target.share(first.name, threads),
        target.share(second.name, threads),
        float(last.size * -(-threads // together)),
    )
    l1, l2, l3, *_ = (*sizes[: len(target.caches)], 0.0, 0.0)
    return l1, l2, l3


def optimistic(sizes: Sizes, caches: Caches) -> Count:
    """Bytes in L1, L2, L3 and memory, (schedules, 4): each set alone, in the first that holds it.

    The smallest and the largest working set of a dependence are two sets. L1 and L2 must hold one
    thread's set, L3 and memory the sets of all threads together.
    """
    own = FLOAT * np.concatenate([sizes.least, sizes.most], axis=1)
    shared = FLOAT * np.concatenate([sizes.least_shared, sizes.most_shared], axis=1)
    left, levels = own > 0, list[Count]()
    for size, cache in zip((own, own, shared), caches, strict=True):
        here = left & (size <= cache)
        levels.append(np.where(here, size, 0.0).sum(axis=1))
        left &= ~here
    levels.append(np.where(left, shared, 0.0).sum(axis=1))
    return np.stack(levels, axis=1)


def pessimistic(sizes: Sizes, caches: Caches) -> Count:
    """Bytes in L1, L2, L3 and memory, (schedules, 4): sets in a cache leave less room for others.

    Dependences are sorted by size, smallest working sets first. A level takes the largest set if
    it fits in the remaining room; else it takes the smallest, once, and the largest goes to the
    next level. Sets that fit in no cache count in memory. L3 and memory hold all threads' sets.
    """
    rows = np.arange(len(sizes.least))[:, None]
    order = np.lexsort((sizes.most, sizes.least), axis=1)
    parts = (sizes.least, sizes.most, sizes.least_shared, sizes.most_shared)
    smallest_sets, largest_sets, smallest_shared, largest_shared = (
        FLOAT * part[rows, order] for part in parts
    )
    used = np.zeros((len(sizes.least), 4))
    for at in range(smallest_sets.shape[1]):
        largest = largest_sets[:, at] > 0
        smallest = largest.copy()
        columns = (
            *[(smallest_sets[:, at], largest_sets[:, at])] * 2,
            (smallest_shared[:, at], largest_shared[:, at]),
        )
        for level, ((low, high), cache) in enumerate(zip(columns, caches, strict=True)):
            fits = largest & (used[:, level] + high <= cache)
            used[:, level] += np.where(fits, high, 0.0)
            largest, smallest = largest & ~fits, smallest & ~fits
            part = smallest & (used[:, level] + low <= cache)
            used[:, level] += np.where(part, low, 0.0)
            smallest &= ~part
        used[:, 3] += np.where(largest, largest_shared[:, at], 0.0)
    return used


PLACEMENTS: Mapping[str, Callable[[Sizes, Caches], Count]] = MappingProxyType(
    {"pessimistic": pessimistic, "optimistic": optimistic}
)


def weigh(
    sizes: Sizes, caches: Caches, weights: Sequence[float], placement: str = "pessimistic"
) -> Count:
    """The sum over levels of bytes times ``weights``, of L1, L2, L3 and memory, a schedule each.

    Raises SpecError for a placement that does not exist.
    """
    if placement not in PLACEMENTS:
        raise SpecError(
            f"placement {placement!r}: expected one of {', '.join(PLACEMENTS)}"
            f"{suggest(placement, PLACEMENTS)}"
        )
    cost: Count = PLACEMENTS[placement](sizes, caches) @ np.array(weights)
    return cost


def polyscientist(
    context: Context,
    family: Family,
    *,
    placement: str = "pessimistic",
    convention: str = "published",
) -> Count:
    """Byte-cycles of every schedule, with the cache sizes of the context's target."""
    sizes = working_set_bytes(context.contraction, family, context.threads, convention)
    return weigh(sizes, caches_of(context.target, context.threads), LATENCIES, placement)


def polydl(
    context: Context,
    family: Family,
    *,
    placement: str = "pessimistic",
    convention: str = "published",
) -> Count:
    """Cost of every schedule, with the cache sizes of the context's target."""
    sizes = working_set_bytes(context.contraction, family, context.threads, convention)
    return weigh(sizes, caches_of(context.target, context.threads), WEIGHTS, placement)
