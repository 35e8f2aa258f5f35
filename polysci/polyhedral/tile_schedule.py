"""The one isl form of a schedule's tile loops: legality, generated loops and working sets read it.

A loop over ``dim`` with step ``s`` iterates over the origins ``dim - dim mod s`` of its tiles. From
this follow the time of a point (``time``), the schedule tree whose abstract syntax tree becomes C
(``tree``), and the point that a time stands for (``point``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import islpy as isl

PACKING = "pack_"  # begins isl's name of the instances of packing


@dataclass(frozen=True, slots=True)
class Loop:
    """One tile loop, ``dim[:step][*]``; ``*`` marks it parallel.

    ``dim[:step]@axis`` is mapped to an axis of a device's groups (``bx``, ``by``) or of the
    work-items of a group (``tx``, ``ty``).
    """

    dim: str
    step: int = 1
    parallel: bool = False
    axis: str = ""

    def __str__(self) -> str:
        step = f":{self.step}" if self.step != 1 else ""
        mark = f"@{self.axis}" if self.axis else "*" if self.parallel else ""
        return f"{self.dim}{step}{mark}"


@dataclass(frozen=True, slots=True)
class TileSchedule:
    """The loops of a schedule over a box of ``extents``, outermost first, then its points.

    ``names`` are the loops' iterators: ``k0``, ``k1`` for the levels over k. ``packings`` are the
    operands that are packed inside loops, and the number of loops around each packing. ``text`` is
    the schedule's. With ``private_sums`` each turn of a parallel loop over a reduction sums into a
    copy of the result.
    """

    extents: Mapping[str, int]
    loops: tuple[Loop, ...]
    packings: Mapping[str, int] = field(default_factory=dict)
    text: str = ""
    private_sums: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(_levels(loop.dim for loop in self.loops))

    @property
    def looped(self) -> tuple[str, ...]:
        """Dimensions with at least one loop, by their outermost one."""
        return tuple(dict.fromkeys(loop.dim for loop in self.loops))

    @property
    def trips(self) -> tuple[int, ...]:
        """Tell how often each loop runs at most, for one iteration of the loops around it."""
        current, trips = dict(self.extents), list[int]()
        for loop in self.loops:
            trips.append(-(-current[loop.dim] // loop.step))
            current[loop.dim] = loop.step
        return tuple(trips)

    @property
    def tile(self) -> dict[str, int]:
        """Extent of every dimension inside all loops."""
        return dict(self.extents) | {loop.dim: loop.step for loop in self.loops}

    def time(self) -> str:
        """isl text ``[n, k, ..] -> [time]``: the origins of all tile loops, then the point."""
        origins = (f"{loop.dim} - {loop.dim} mod {loop.step}" for loop in self.loops)
        return f"[{', '.join(self.extents)}] -> [{', '.join([*origins, *self.extents])}]"

    def point(self, positions: Sequence[int], lows: Sequence[int], name: str) -> isl.MultiAff:
        """The point of ``name`` at a time that counts iterations: one number a loop, then a point.

        ``positions`` are those of the times that vary, ``lows`` the first value of every dimension.
        It inverts ``time`` up to the loops' steps, and needs no division.
        """
        axes = [(loop.dim, loop.step) for loop in self.loops] + [(dim, 1) for dim in self.extents]
        terms = {dim: [str(low)] for dim, low in zip(self.extents, lows, strict=True)}
        for position in positions:
            dim, step = axes[position]
            terms[dim].append(f"{step}*t{position}")
        times = ", ".join(f"t{position}" for position in positions)
        values = ", ".join(" + ".join(summands) for summands in terms.values())
        return isl.MultiAff(f"{{ [{times}] -> {name}[{values}] }}")

    def tree(
        self, tiles: Sequence[isl.Set], fixed: int = 0, ends: Sequence[str] = ()
    ) -> isl.Schedule:
        """A band of one member a loop over the origins of register tiles, and packing in its place.

        ``tiles`` are what ``tiles`` makes, one set a kind of tile; full and partial tiles are
        separated. The first ``fixed`` loops and ``ends`` are parameters.
        """
        union = isl.UnionSet.from_set(tiles[0])
        for kind in tiles[1:]:
            union = union.union(isl.UnionSet.from_set(kind))
        schedule = isl.Schedule.from_domain(union)
        for position in reversed(range(fixed, len(self.loops))):
            node = schedule.get_root().child(0)
            node = node.insert_partial_schedule(self._member(position, len(tiles)))
            node = node.band_member_set_ast_loop_type(0, isl.ast_loop_type.separate)
            schedule = node.get_schedule()
        for depth in sorted({*self.packings.values()}, reverse=True):
            node = schedule.get_root().child(0)
            for _ in range(fixed, depth):
                node = node.child(0)
            copies = isl.ScheduleNode.from_extension(self._packing(depth, fixed, ends))
            schedule = node.graft_before(copies).get_schedule()
        return schedule

    def tiles(
        self, kinds: Sequence[Mapping[str, range]], fixed: int = 0, ends: Sequence[str] = ()
    ) -> list[isl.Set]:
        """The origins of register tiles: ``T0``, ``T1``, .. one set a kind, given by its ranges.

        Along the dimensions of ``ends`` only those before a parameter, ``end_name`` of each.
        """
        origins = ", ".join(map(_origin, self.looped))
        names = [*self.names[:fixed], *map(end_name, ends)]
        bound = [
            f"{_origin(loop.dim)} - {_origin(loop.dim)} mod {loop.step} = {name}"
            for loop, name in zip(self.loops, self.names[:fixed], strict=False)
        ]
        bound += [f"{_origin(dim)} < {end_name(dim)}" for dim in ends]
        head = f"[{', '.join(names)}] -> " if names else ""
        sets = []
        for index, kind in enumerate(kinds):
            bounds = [*(_within(dim, kind[dim]) for dim in self.looped), *bound]
            text = f"{head}{{ T{index}[{origins}] : {' and '.join(bounds) or 'true'} }}"
            sets.append(isl.Set(text))
        return sets

    def context(self, fixed: int, ends: Sequence[str] = ()) -> isl.Set:
        """Return the constraints on the first ``fixed`` loops, and on ``ends``, as parameters."""
        bounds = [self._bounds(position) for position in range(fixed)]
        bounds += [f"1 <= {end_name(dim)} <= {self.extents[dim]}" for dim in ends]
        names = ", ".join([*self.names[:fixed], *map(end_name, ends)])
        return isl.Set(f"[{names}] -> {{ : {' and '.join(bounds) or 'true'} }}")

    def _bounds(self, position: int) -> str:
        name, loop = self.names[position], self.loops[position]
        return f"0 <= {name} < {self.extents[loop.dim]} and {name} mod {loop.step} = 0"

    def _member(self, position: int, kinds: int) -> isl.MultiUnionPwAff:
        """Return the loop's values, for tiles that start at multiples of the innermost step."""
        loop = self.loops[position]
        value = origin = _origin(loop.dim)
        if any(inner.dim == loop.dim for inner in self.loops[position + 1 :]):
            value = f"{origin} - {origin} mod {loop.step}"
        origins = ", ".join(map(_origin, self.looped))
        maps = "; ".join(f"T{kind}[{origins}] -> [({value})]" for kind in range(kinds))
        return isl.MultiUnionPwAff(f"[{{{maps}}}]")

    def _packing(self, depth: int, fixed: int, ends: Sequence[str]) -> isl.UnionMap:
        """The instances of what is packed inside so many loops, one for each of their iterations.

        They are named after the operands: ``pack_A``, ``pack_B``, ``pack_AB``.
        """
        loops = self.loops[:depth]
        operands = "".join(of for of, place in self.packings.items() if place == depth)
        bounds, inside = list[str](), dict[str, tuple[str, int]]()
        for position, (name, loop) in enumerate(zip(self.names, loops, strict=False)):
            bounds.append(self._bounds(position))
            bounds += [f"{name} < {end_name(loop.dim)}"] * (loop.dim in ends)
            if loop.dim in inside:
                outer, step = inside[loop.dim]
                bounds.append(f"{name} - {name} mod {step} = {outer}")
            inside[loop.dim] = (name, loop.step)
        names = self.names[: len(loops)]
        known = [*names[:fixed], *map(end_name, ends)]
        head = f"[{', '.join(known)}] -> " if known else ""
        own = ", ".join(names[fixed:])
        bound = " and ".join(bounds) or "true"
        return isl.UnionMap(f"{head}{{ [{own}] -> {PACKING}{operands}[{own}] : {bound} }}")


def _levels(dims: Iterator[str]) -> Iterator[str]:
    """Yield every dimension with the number of times that it came before."""
    seen: dict[str, int] = {}
    for dim in dims:
        level = seen[dim] = seen.get(dim, -1) + 1
        yield f"{dim}{level}"


def end_name(dim: str) -> str:
    """The parameter at which a dimension ends, where its extent is only the most it can be."""
    return f"{dim}_end"


def _origin(dim: str) -> str:
    """isl's name for the origin along a dimension, which may look like an iterator itself."""
    return f"{dim}_"


def _within(dim: str, origins: range) -> str:
    name = _origin(dim)
    if len(origins) == 1:
        return f"{name} = {origins[0]}"
    return f"{origins[0]} <= {name} <= {origins[-1]} and {name} mod {origins.step} = 0"
