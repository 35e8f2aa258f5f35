"""Working sets: what a loop order keeps between two uses of an element, counted exactly by isl."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod

import islpy as isl
import numpy as np

from polysci.cost.published import CONVENTIONS, Sizes
from polysci.errors import SpecError
from polysci.polyhedral.scop import KINDS, Scop, Statement, bound_operations
from polysci.polyhedral.tile_schedule import TileSchedule

Point = tuple[int, ...]
Run = tuple[int | None, int | None]  # first and last value along an axis; None: as far as it goes
_SET, _IN, _OUT = isl.dim_type.set, isl.dim_type.in_, isl.dim_type.out
_KIND_OF = {
    ("write", "read"): "flow",
    ("read", "write"): "anti",
    ("write", "write"): "output",
    ("read", "read"): "input",
}


@dataclass(frozen=True, slots=True)
class PlacedStatement:
    """A statement in time: when it runs, and the element each access touches at that time."""

    statement: Statement
    domain: isl.Set
    accesses: tuple[isl.Map, ...]  # one for each of the statement's, over all times


@dataclass(frozen=True, slots=True)
class Share:
    """A thread's part of a parallel loop: ``size`` iterations; ``parts`` threads have one."""

    size: int
    parts: int


@dataclass(frozen=True, slots=True)
class Order:
    """Loops, outermost first, and every statement placed in them.

    ``shares`` say how threads divide the outermost loops, one for each that is parallel.
    """

    name: str
    loops: tuple[str, ...]
    placed: tuple[PlacedStatement, ...]
    shares: tuple[Share, ...] = ()


def text_order(scop: Scop) -> Order:
    """Return the order of the text; places that never vary, such as a lone loop's, are left out."""
    with bound_operations(f"order of {scop.name}"):
        times = [s.schedule.intersect_domain(s.domain) for s in scop.statements]
        ranges = [time.range() for time in times]
        if not ranges:
            raise SpecError(f"{scop.name}: no statement, so no order")
        every = ranges[0]
        for other in ranges[1:]:
            every = every.union(other)
        varying = [axis for axis in range(every.dim(_SET)) if not _constant(every, axis)]
        placed = []
        for statement, time in zip(scop.statements, times, strict=True):
            kept = _keep(time, varying)
            when = kept.reverse()
            accesses = tuple(when.apply_range(access.map) for access in statement.accesses)
            placed.append(PlacedStatement(statement, kept.range(), accesses))
    return Order(scop.name, tuple(_place(scop, axis) for axis in varying), tuple(placed))


def _constant(times: isl.Set, axis: int) -> bool:
    return bool(times.dim_min_val(axis).eq(times.dim_max_val(axis)))


def _keep(time: isl.Map, axes: Sequence[int]) -> isl.Map:
    """Return the map with those output dimensions alone."""
    for axis in reversed(range(time.dim(isl.dim_type.out))):
        if axis not in axes:
            time = time.project_out(isl.dim_type.out, axis, 1)
    return time


def _place(scop: Scop, axis: int) -> str:
    """Odd places are loops, named by the first statement that has them; even ones are positions."""
    depth, odd = divmod(axis, 2)
    if not odd:
        return f"position {depth}"
    return next(s.iterators[depth] for s in scop.statements if depth < len(s.iterators))


def order_of_tiles(scop: Scop, tiles: TileSchedule, threads: int = 1) -> Order:
    """Return the order of a one-statement Scop in tiles: tile loops, then the points inside.

    The points of a register tile run in the order of the text. Loops that run once are left out.
    """
    dims = [*(loop.dim for loop in tiles.loops), *tiles.extents]
    trips = [*tiles.trips, *tiles.tile.values()]
    shares = thread_share(trips[: sum(loop.parallel for loop in tiles.loops)], threads)
    varying = [i for i, trip in enumerate(trips) if trip > 1]
    with bound_operations(f"order of {scop.name} under {tiles.text}"):
        placed = _place_points(scop.statements[0], tiles, trips, varying)
    return Order(
        scop.name,
        tuple(_names([dims[i] for i in varying])),
        (placed,),
        tuple(share for share, trip in zip(shares, trips, strict=False) if trip > 1),
    )


def _place_points(
    statement: Statement, tiles: TileSchedule, trips: Sequence[int], varying: Sequence[int]
) -> PlacedStatement:
    lows = [statement.box.dim_min_val(at).to_python() for at in range(len(tiles.extents))]
    point = tiles.point(varying, lows, statement.name)
    bounds = " and ".join(f"0 <= t{i} < {trips[i]}" for i in varying) or "true"
    times = isl.Set(f"{{ [{', '.join(f't{i}' for i in varying)}] : {bounds} }}")
    domain = statement.domain.preimage_multi_aff(point).intersect(times).coalesce()
    accesses = tuple(a.map.preimage_domain_multi_aff(point) for a in statement.accesses)
    return PlacedStatement(statement, domain, accesses)


def _names(dims: Sequence[str]) -> list[str]:
    """``k0, k1`` for the levels over k, outermost first; ``k`` where there is one."""
    seen: dict[str, int] = {}
    names = []
    for dim in dims:
        level = seen.get(dim, 0)
        seen[dim] = level + 1
        names.append(f"{dim}{level}" if dims.count(dim) > 1 else dim)
    return names


def thread_share(trips: Sequence[int], threads: int) -> tuple[Share, ...]:
    """Return how ``threads`` divide the iterations of parallel loops, outermost first, into a grid.

    Each loop is cut into as many equal runs as it has iterations and threads are left; the threads
    left for the loops inside are those of one run. The first thread's share is a box.
    """
    shares, left = [], max(1, threads)
    for trip in trips:
        parts = min(trip, left)
        size = -(-trip // parts)
        shares.append(Share(size, -(-trip // size)))
        left //= parts
    return tuple(shares)


_SET = isl.dim_type.set


def points(part: isl.Set) -> int:
    """Return how many points a bounded set has.

    Raises isl.Error where it has neither the form of disjoint boxes nor few points.
    """
    part = part.coalesce()
    if part.is_empty():
        return 0
    if part.is_box():
        return _box(part)
    pieces: list[isl.BasicSet] = []
    part.make_disjoint().coalesce().foreach_basic_set(pieces.append)
    sets = [isl.Set.from_basic_set(piece) for piece in pieces]
    return sum(_box(piece) if piece.is_box() else _lattice(piece) for piece in sets)


def _bounds(part: isl.Set) -> list[tuple[int, int]]:
    axes = range(part.dim(_SET))
    return [(int(part.dim_min_val(a).to_python()), int(part.dim_max_val(a).to_python()))
            for a in axes]  # fmt: skip


def _box(part: isl.Set) -> int:
    return prod(high - low + 1 for low, high in _bounds(part))


def _lattice(part: isl.Set) -> int:
    """Points of a box of which every axis keeps one in so many; of another set, one by one."""
    bounds = _bounds(part)
    strides = [int(part.get_stride(axis).to_python()) for axis in range(part.dim(_SET))]
    if all(stride <= 1 for stride in strides):
        return int(part.count_val().to_python())
    names = [f"i{axis}" for axis in range(len(bounds))]
    conditions = [
        f"{low} <= {name} <= {high}" + (f" and ({name} - {low}) mod {stride} = 0")
        for name, (low, high), stride in zip(names, bounds, strides, strict=True)
    ]
    whole = isl.Set(f"{{ [{', '.join(names)}] : {' and '.join(conditions)} }}")
    if not whole.is_equal(part.reset_tuple_id()):
        return int(part.count_val().to_python())
    steps = zip(bounds, strides, strict=True)
    return prod((high - low) // stride + 1 for (low, high), stride in steps)


@dataclass(frozen=True, slots=True)
class WorkingSet:
    """The elements that must stay cached for the reuses of one dependence.

    ``array`` is touched again after ``loop`` (the ``level``-th of the order) moves on. ``least``
    is what is touched from the first source of the dependence to its nearest target, ``most`` to
    its furthest. ``least_shared`` and ``most_shared`` are the same of all threads together.
    """

    array: str
    loop: str
    level: int
    kinds: tuple[str, ...]
    least: int
    most: int
    least_shared: int
    most_shared: int

    def __str__(self) -> str:
        kinds = ", ".join(self.kinds)
        return f"{self.array} by {self.loop} ({kinds}): {self.least} to {self.most} elements"


def working_sets(order: Order, convention: str = "published") -> tuple[WorkingSet, ...]:
    """The working sets of all dependences of all four kinds, by array, then from outside inwards.

    A dependence is one basic map of the pairs of iterations that touch an element, all of them and
    not only the nearest, whose outermost differing loop is the same; equal ones count once. With D
    its sources, s the first in D and t the nearest or furthest target of s, its working set are
    the distinct elements touched from s to t: by iterations of D alone (``published``: what the
    carrying loop's last iteration touches is left out), or by all (``inclusive``). After Tavarageri
    et al., PolyScientist, arXiv 2002.02145, and PolyDL, arXiv 2006.02230.

    Where loops are parallel, the dependences are those inside one thread's share, that is inside
    one run of iterations (:func:`thread_share`): threads reuse nothing
    from each other. ``least`` and ``most`` are of the first thread, what its private caches hold.
    Threads move in step: while one goes from s to t, each other goes through the same iterations
    shifted into its own share. ``least_shared`` and ``most_shared`` count what all of them touch,
    what several touch once: what a shared cache holds.

    Raises SpecError for another convention, UnsupportedError when isl gives up.
    """
    if convention not in CONVENTIONS:
        raise SpecError(
            f"convention {convention!r}: expected one of {', '.join(CONVENTIONS)} working sets"
        )
    with bound_operations(f"working sets of {order.name}"):
        return tuple(_Counting(order, convention).sets())


@dataclass(frozen=True, slots=True)
class _Touch:
    """All that touches an array in one way: the access, and whether it reads, writes or both."""

    array: str
    kinds: tuple[str, ...]
    map: isl.Map  # of the times of one thread
    everywhere: isl.Map  # of all times


@dataclass(frozen=True, slots=True)
class _Dependence:
    """Sources, the first of them, and its nearest and furthest target."""

    sources: isl.Set
    first: Point
    near: Point
    far: Point

    def same(self, other: _Dependence) -> bool:
        """Return whether both have the same sources, first source and targets of it."""
        ends = (self.first, self.near, self.far) == (other.first, other.near, other.far)
        return ends and bool(self.sources.is_equal(other.sources))


class _Counting:
    """One order's dependences and how much is touched between two times of it."""

    def __init__(self, order: Order, convention: str) -> None:
        self.order, self.published = order, convention == "published"
        self.shares = order.shares
        self.touches = list(_touches(order))
        self.arrays = list(dict.fromkeys(touch.array for touch in self.touches))
        self.domain = _union([touch.map.domain() for touch in self.touches])
        self.shift = _shift(len(order.loops), order.shares)
        self.counted: dict[str, tuple[int, int]] = {}

    def sets(self) -> Iterator[WorkingSet]:
        """Yield every dependence once, by array, then from outside inwards."""
        for array, level, dependence, kinds in self._distinct():
            least, most = (self._touched(dependence, t) for t in (dependence.near, dependence.far))
            yield WorkingSet(
                array,
                self.order.loops[level],
                level,
                tuple(kind for kind in KINDS if kind in kinds),
                least[0],
                most[0],
                least[1],
                most[1],
            )

    def _distinct(self) -> list[tuple[str, int, _Dependence, list[str]]]:
        """Array, level, dependence and kinds; those that give equal working sets are joined."""
        dependences: list[tuple[str, int, _Dependence, list[str]]] = []
        for source, target in product(self.touches, self.touches):
            if source.array != target.array:
                continue
            kinds = [_KIND_OF[pair] for pair in product(source.kinds, target.kinds)]
            for level, dependence in _dependences(source.map, target.map, len(self.order.loops)):
                for array, other_level, other, known in dependences:
                    if (array, other_level) == (source.array, level) and dependence.same(other):
                        known += kinds
                        break
                else:
                    dependences.append((source.array, level, dependence, list(kinds)))
        return sorted(dependences, key=lambda row: (self.arrays.index(row[0]), row[1]))

    def _touched(self, dependence: _Dependence, last: Point) -> tuple[int, int]:
        """Return elements touched from the first source to ``last``: by one thread, by all."""
        among = dependence.sources if self.published else self.domain
        window = _window(among, dependence.first, last)
        key = str(window)
        if key not in self.counted:
            own = sum(points(part) for part in self._images(window))
            if not any(share.parts > 1 for share in self.shares):
                self.counted[key] = own, own
            else:
                spread = window.apply(self.shift)
                self.counted[key] = own, sum(points(part) for part in self._images(spread))
        return self.counted[key]

    def _images(self, window: isl.Set) -> Iterator[isl.Set]:
        """Yield the touched elements of every array."""
        images: dict[str, list[isl.Set]] = {}
        for touch in self.touches:
            images.setdefault(touch.array, []).append(window.apply(touch.everywhere))
        return map(_union, images.values())


def _touches(order: Order) -> Iterator[_Touch]:
    """Return the accesses of all statements, equal ones together."""
    touches: list[_Touch] = []
    for placed in order.placed:
        own = placed.domain
        for axis, share in enumerate(order.shares):
            own = own.upper_bound_val(_SET, axis, isl.Val(share.size - 1))
        for access, reach in zip(placed.statement.accesses, placed.accesses, strict=True):
            whole = reach.intersect_domain(placed.domain)
            for i, other in enumerate(touches):
                if other.array == access.array and other.everywhere.is_equal(whole):
                    kinds = tuple(dict.fromkeys([*other.kinds, access.kind]))
                    touches[i] = replace(other, kinds=kinds)
                    break
            else:
                own_map = reach.intersect_domain(own)
                touches.append(_Touch(access.array, (access.kind,), own_map, whole))
    return iter(touches)


def _dependences(source: isl.Map, target: isl.Map, depth: int) -> Iterator[tuple[int, _Dependence]]:
    """Pairs of times that touch one element, by the loop that carries them, a basic map each."""
    same = source.apply_range(target.reverse())
    for level in range(depth):
        carried = same.order_lt(_IN, level, _OUT, level)
        if not carried.is_empty():
            pieces: list[isl.BasicMap] = []
            carried.coalesce().foreach_basic_map(pieces.append)
            for piece in pieces:
                pairs = isl.Map.from_basic_map(piece)
                sources = pairs.domain()
                first = sources.lexmin()
                targets = pairs.intersect_domain(first).range()
                ends = (first, targets.lexmin(), targets.lexmax())
                yield level, _Dependence(sources, *map(_coordinates, ends))
        same = same.equate(_IN, level, _OUT, level)


def _coordinates(single: isl.Set) -> Point:
    point = single.sample_point()
    axes = range(single.dim(_SET))
    return tuple(int(point.get_coordinate_val(_SET, axis).to_python()) for axis in axes)


def _window(among: isl.Set, first: Point, last: Point) -> isl.Set:
    """Return the times of ``among`` from ``first`` to ``last``, both included."""
    return _union([_cut(among, box) for box in _boxes(first, last)])


def _boxes(first: Point, last: Point) -> Iterator[list[Run]]:
    """Boxes that partition the lexicographic interval from ``first`` to ``last``."""
    apart = next((i for i, (a, b) in enumerate(zip(first, last, strict=True)) if a != b), None)
    if apart is None:
        yield [(at, at) for at in first]
        return
    same: list[Run] = [(at, at) for at in first[:apart]]
    yield [*same, (first[apart] + 1, last[apart] - 1)]
    for axis in range(apart + 1, len(first)):
        yield [*((at, at) for at in first[:axis]), (first[axis] + 1, None)]
        yield [*((at, at) for at in last[:axis]), (None, last[axis] - 1)]
    for end in (first, last):
        yield [(at, at) for at in end]


def _cut(among: isl.Set, box: Sequence[Run]) -> isl.Set:
    for axis, (low, high) in enumerate(box):
        if low is not None:
            among = among.lower_bound_val(_SET, axis, isl.Val(low))
        if high is not None:
            among = among.upper_bound_val(_SET, axis, isl.Val(high))
    return among


def _shift(depth: int, shares: Sequence[Share]) -> isl.Map:
    """Return the map from a time to the same time of every thread."""
    names = [f"t{i}" for i in range(depth)]
    moved = [
        f"t{i} + {shares[i].size}*h{i}" if i < len(shares) else name for i, name in enumerate(names)
    ]
    within = [f"0 <= h{i} < {share.parts}" for i, share in enumerate(shares)]
    exists = f"exists {', '.join(f'h{i}' for i in range(len(shares)))} : " if shares else ""
    targets = [f"u{i}" for i in range(depth)]
    equal = [f"{target} = {value}" for target, value in zip(targets, moved, strict=True)]
    condition = " and ".join([*equal, *within]) or "true"
    return isl.Map(f"{{ [{', '.join(names)}] -> [{', '.join(targets)}] : {exists}{condition} }}")


def _union(parts: Sequence[isl.Set]) -> isl.Set:
    union = parts[0]
    for part in parts[1:]:
        if not part.is_empty():
            union = union.union(part)
    return union


def from_exact(sets: tuple[WorkingSet, ...]) -> Sizes:
    """The exact working sets of one schedule."""
    rows = [(s.least, s.most, s.least_shared, s.most_shared) for s in sets]
    table = np.array(rows, dtype=np.float64).reshape(len(rows), 4)
    loops = tuple(s.level for s in sets)
    return Sizes(table[None, :, 0], table[None, :, 1], table[None, :, 2], table[None, :, 3], loops)
