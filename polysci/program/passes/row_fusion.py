"""Choose stages that run together, some rows at a time, so that what lies between stays in a cache.

A tensor may stay inside a row fusion where the rows that each of its readers reads for a row of its
result are a window that moves on with the rows. Stages that such tensors join are chains. A chain
is divided into row fusions, each of which one result alone leaves, and stages by themselves in the
way that costs least: dynamic programming over all runs of neighbours, each priced by
``cost.fusion``. Those whose bound exceeds the time of their members apart are not priced.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import prod
from types import MappingProxyType
from typing import Final, Protocol

from polysci.cost.fusion import FusedWork, FusionCosts, MemberWork
from polysci.cost.group_fusion import HeldTile
from polysci.loop_ir.expressions import reductions
from polysci.numerics.dtypes import precision_named
from polysci.ops.problem import Problem
from polysci.program.passes.buffers import PlacedProgram
from polysci.program.passes.operands import Rows, part_height
from polysci.program.passes.row import Fusion, FusionGroup
from polysci.program.passes.row_counts import count_rows
from polysci.program.passes.row_links import Member, RowLinks
from polysci.program.passes.row_turns import RowTurns, read_names, reads_among, rows_of_loops
from polysci.program.stages import LayerStage, LoopStage, RowFusion, Stage
from polysci.space.schedule import Schedule

LONGEST: Final = 8  # members of a row fusion
HEIGHTS: Final = (1, 2, 4, 8, 16, 32, 64)  # rows that its layers make at a time
RIVALS: Final = 3  # divisions of a chain that are worth to be timed


@dataclass(frozen=True, slots=True)
class RowCode:
    """Code of a layer that makes ``step`` rows at a time.

    ``seconds`` are those predicted of all rows, ``least`` those of multiplications at the peak.
    """

    step: int
    seconds: float
    least: float
    tile: HeldTile | None = None  # of groups that hold rows


class PriceRows(Protocol):
    """Return what is predicted of a layer, ``height`` rows at a time, or why it cannot be so."""

    def __call__(
        self, layer: LayerStage, placed: PlacedProgram, schedule: Schedule, height: int
    ) -> RowCode | str: ...


class RefuseCode(Protocol):
    """Return why there is no code of a layer, ``height`` rows at a time; empty where there is."""

    def __call__(
        self, layer: LayerStage, placed: PlacedProgram, schedule: Schedule, height: int
    ) -> str: ...


@dataclass(frozen=True, slots=True)
class Setting:
    """Schedules and predicted seconds by problem, the machine, and which code there is.

    ``fuser`` makes row fusions for its kind of device.
    """

    schedules: Mapping[str, Schedule]
    seconds: Mapping[str, float]
    costs: FusionCosts
    price_rows: PriceRows
    refuse_code: RefuseCode
    fuser: type[RowFuser]


@dataclass(frozen=True, slots=True)
class FusionVerdict:
    """The decision about a tensor between two stages: that it stays inside, or why it does not."""

    refusal: str = ""


@dataclass(frozen=True, slots=True, order=True)
class Run:
    """Neighbours in a chain, from ``start`` to before ``end``; layers make ``height`` rows."""

    start: int
    end: int
    height: int = 0

    def of(self, members: tuple[Member, ...]) -> tuple[Member, ...]:
        """Return the members of the run."""
        return members[self.start : self.end]


Division = tuple[Run, ...]
PricedRuns = dict[tuple[int, int], tuple[float, Run]]  # by the numbers of their first and end


@dataclass(frozen=True, slots=True)
class Chain:
    """Stages that rows join, each behind those it reads, and divisions, the cheapest first."""

    members: tuple[Member, ...]
    divisions: tuple[Division, ...]

    def fusions(self, number: int) -> list[RowFusion]:
        """Return the row fusions of a division, of the last where there are fewer."""
        runs = self.divisions[min(number, len(self.divisions) - 1)]
        return [RowFusion(its.of(self.members), its.height) for its in runs if its.height]


@dataclass(frozen=True, slots=True)
class FusionSpace:
    """All chains of a program; what was considered of each tensor and each run of neighbours."""

    placed: PlacedProgram
    chains: tuple[Chain, ...]
    links: tuple[Fusion, ...]
    groups: Mapping[tuple[str, ...], FusionGroup]  # by the tensors inside

    def divide(self, number: int = 0) -> PlacedProgram:
        """Return the program with one division of every chain, the last where it has fewer."""
        return _with(self.placed, [it for chain in self.chains for it in chain.fusions(number)])

    def layers(self) -> Iterator[tuple[LayerStage, int]]:
        """Return the layers of row fusions of all divisions, and the rows they make at a time."""
        return _layers(self.chains)

    def considered(self) -> tuple[Fusion | FusionGroup, ...]:
        """Return what was considered, where every chain is divided in the cheapest way."""
        stages = self.divide().program.stages
        done = {stage.internal for stage in stages if isinstance(stage, RowFusion)}
        inside = {name for names in done for name in names}
        links = [
            fusion if fusion.refusal or fusion.tensor in inside
            else replace(fusion, refusal=self._why_apart(fusion.tensor))
            for fusion in self.links
        ]  # fmt: skip
        return (*links, *self.judged(stages))

    def judged(
        self, stages: Iterable[Stage],
        measured: Mapping[tuple[str, ...], tuple[float, float]] = MappingProxyType({}),
    ) -> list[FusionGroup]:  # fmt: skip
        """Return all runs; which are among ``stages``, and the seconds of those ``measured``."""
        done = {stage.internal for stage in stages if isinstance(stage, RowFusion)}
        return [
            replace(its, done=names in done, measured=measured.get(names))
            for names, its in self.groups.items()
        ]

    def _why_apart(self, tensor: str) -> str:
        """Return why a tensor that could stay inside a row fusion does not."""
        holding = [names for names in self.groups if tensor in names]
        if not holding:
            return "a row fusion ends there"
        least = self.groups[min(holding, key=len)]
        return least.refusal or "another division of its neighbours costs less"


def fuse_rows(
    placed: PlacedProgram, setting: Setting, decided: Mapping[str, FusionVerdict] | None = None
) -> FusionSpace:
    """Return the row fusions that are possible, the cheapest first, and all that was considered.

    ``decided`` says of tensors, by name, whether they are to lie inside a row fusion.
    """
    return setting.fuser(count_rows(placed), setting, decided or {}).run()


def cheapest_divisions(
    length: int, price: Callable[[int, int], tuple[float, Run] | None]
) -> list[Division]:
    """Return the RIVALS cheapest divisions of so many neighbours into runs of up to LONGEST.

    ``price`` returns the seconds of those from the first number to before the second one.
    """
    best: list[list[tuple[float, Division]]] = [[(0.0, ())]]
    for end in range(1, length + 1):
        ways = []
        for start in range(max(0, end - LONGEST), end):
            if priced := price(start, end):
                seconds, run = priced
                ways += [(spent + seconds, (*runs, run)) for spent, runs in best[start]]
        best.append(sorted(ways)[:RIVALS])
    return [runs for _, runs in best[-1]]


@dataclass(frozen=True, slots=True)
class LoopWork:
    """The elements that a loop computes or reduces; buffer and bytes of what it moves.

    The first of them is what it writes.
    """

    elements: int
    tensors: tuple[tuple[str, int], ...]

    @staticmethod
    def of(placed: PlacedProgram, loop: LoopStage) -> LoopWork:
        values, places = placed.program.values, placed.places
        names = [name for name in (loop.output, *loop.inputs) if name in values]
        return LoopWork(
            values[loop.output].size * terms_of(loop),
            tuple(
                (places[name].buffer if name in places else name, values[name].bytes)
                for name in names
            ),
        )


@dataclass(slots=True)
class RowFuser:
    """``refused``: why layers have no code that makes some rows at a time, by identity."""

    placed: PlacedProgram
    setting: Setting
    decided: Mapping[str, FusionVerdict]
    links: RowLinks = field(init=False)
    codes: dict[tuple[int, int], RowCode | str] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)
    asked: dict[tuple[int, int], str] = field(default_factory=dict)  # why there is no code
    groups: dict[tuple[str, ...], FusionGroup] = field(default_factory=dict)
    loops: dict[int, LoopWork] = field(default_factory=dict)  # by identity
    steps: dict[tuple[int, int], int] = field(default_factory=dict)  # and height
    known_rows: dict[str, Rows] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.links = self.links_without(
            {name: its.refusal for name, its in self.decided.items() if its.refusal}
        )

    def links_without(self, refused: Mapping[str, str]) -> RowLinks:
        """Return what may join stages; ``refused`` says why some tensors may not."""
        return RowLinks(self.placed, refused)

    def run(self) -> FusionSpace:
        """Return the chains of the tensors that may stay inside, and all that was considered."""
        links = [*self.links.find()]
        chains = tuple(its for members in self.links.chains() for its in self.chains(members))
        told = tuple(replace(its, refusal=its.refusal or self.why_never(its)) for its in links)
        return FusionSpace(self.placed, chains, told, self.groups)

    def chains(self, members: tuple[Member, ...]) -> list[Chain]:
        """Return the parts that runs join of a chain; no division holds a layer without code."""
        runs = self.runs(members)
        while True:  # code is made of the cheapest divisions alone, and may be refused
            parts = [self.chain(members, runs, *part) for part in _parts(len(members), runs)]
            refused = [*filter(self.has_no_code, _layers(parts))]
            if not refused:
                return parts
            self.refused |= {id(layer): self.asked[id(layer), height] for layer, height in refused}
            for start, end in [*runs]:
                run = members[start:end]
                if len(run) > 1 and any(id(its) in self.refused for its in run):
                    del runs[start, end]
                    del self.groups[tuple(member.output for member in run[:-1])]

    def has_no_code(self, row: tuple[LayerStage, int]) -> bool:
        """Return whether a layer has no code that makes so many rows at a time."""
        layer, height = row
        if (id(layer), height) not in self.asked:
            schedule = self.setting.schedules[layer.problem.key]
            why = self.setting.refuse_code(layer, self.placed, schedule, height)
            self.asked[id(layer), height] = why
        return bool(self.asked[id(layer), height])

    def why_never(self, link: Fusion) -> str:
        """Return why no run that was priced holds a tensor; empty where one does."""
        if any(link.tensor in names for names in self.groups):
            return ""
        maker = self.links.joined[link.tensor]
        for member in (maker, *self.links.members_reading(link.tensor)):
            if isinstance(member, LayerStage) and (why := self.refuse_layer(member)):
                return why
        size = self.placed.program.values[link.tensor].bytes
        return "" if self.moves(link.tensor) else f"{size} bytes stay in the L2 cache"

    def refuse_layer(self, layer: LayerStage) -> str:
        """Return why a layer cannot make some rows at a time; empty if it can."""
        if id(layer) in self.refused:
            return self.refused[id(layer)]
        code = self.code(layer, HEIGHTS[0])
        return code if isinstance(code, str) else ""

    def code(self, layer: LayerStage, height: int) -> RowCode | str:
        """Return what is predicted of a layer, some rows at a time, or why it cannot be so."""
        key = id(layer), height
        if key not in self.codes:
            schedule = self.setting.schedules[layer.problem.key]
            self.codes[key] = self.setting.price_rows(layer, self.placed, schedule, height)
        return self.codes[key]

    # How a chain is divided.

    def runs(self, members: Sequence[Member]) -> PricedRuns:
        """Return all runs of neighbours that may be row fusions or stages by themselves."""
        spans = (
            (start, end) for end in range(1, len(members) + 1)
            for start in range(max(0, end - LONGEST), end)
        )  # fmt: skip
        priced = {(start, end): self.price(members, start, end) for start, end in spans}
        return {span: its for span, its in priced.items() if its}

    def chain(self, members: Sequence[Member], runs: PricedRuns, first: int, end: int) -> Chain:
        """Return neighbours and the cheapest ways to divide them, and last that into stages."""
        moved = {
            (start - first, stop - first): (seconds, Run(start - first, stop - first, run.height))
            for (start, stop), (seconds, run) in runs.items() if first <= start and stop <= end
        }  # fmt: skip
        part, length = tuple(members[first:end]), end - first
        cheapest = cheapest_divisions(length, lambda start, stop: moved.get((start, stop)))
        apart = tuple(Run(at, at + 1) for at in range(length))
        free = not cheapest or not any(map(self.is_wanted, part))
        return Chain(part, tuple(dict.fromkeys((*cheapest, *([apart] if free else [])))))

    def is_wanted(self, member: Member) -> bool:
        """Return whether it was decided that what a stage makes stays inside."""
        verdict = self.decided.get(member.output)
        return verdict is not None and not verdict.refusal

    def price(self, members: Sequence[Member], start: int, end: int) -> tuple[float, Run] | None:
        """Return the seconds of a run of members, a row fusion; None where it must not be one."""
        run = members[start:end]
        if self.is_wanted(run[-1]):
            return None
        if len(run) == 1:
            return self.alone(run[0]), Run(start, end)
        wanted = all(map(self.is_wanted, run[:-1]))
        if not self.is_closed(run) or not (wanted or self.saves(run)):
            return None
        layers = [member for member in run if isinstance(member, LayerStage)]
        if any(map(self.refuse_layer, layers)) or not self.turns(run, HEIGHTS[0]).in_step:
            return None
        costs, names = self.setting.costs, tuple(member.output for member in run[:-1])
        height, *others = self.heights(run)
        work = self.work(run, height)
        pruned = not wanted and costs.prunes(work)
        for other in () if pruned else others:
            if self.has_rows(run, other):
                height, work = min(
                    (height, work), (other, self.work(run, other)),
                    key=lambda its: costs.together(its[1]),
                )  # fmt: skip
        bound, together = costs.bound(work), costs.together(work)
        refusal = self.refuse_room(work) or ("" if wanted else self.refuse_cost(work))
        refusal = refusal or self.keep_apart(run)
        self.groups[names] = FusionGroup(
            tuple(member.name for member in run), bound, together, work.alone, refusal=refusal,
            pruned=pruned,
        )  # fmt: skip
        return None if refusal else (together + costs.hurdle(work), Run(start, end, height))

    def heights(self, run: Sequence[Member]) -> Sequence[int]:
        """Return the rows that layers of a run may make at a time.

        The first ones bound what it takes with others.
        """
        return HEIGHTS

    def has_rows(self, run: Sequence[Member], height: int) -> bool:
        """Return whether all layers of a run have code that makes so many rows at a time."""
        layers = (member for member in run if isinstance(member, LayerStage))
        return not any(isinstance(self.code(layer, height), str) for layer in layers)

    def refuse_room(self, work: FusedWork) -> str:
        """Return why the rows that wait between members have no room; empty if they have."""
        return ""

    def is_closed(self, run: Sequence[Member]) -> bool:
        """Return whether the last member's result alone leaves a run."""
        inside = {id(member) for member in run}
        return all(
            member.output in self.links.joined
            and all(id(its) in inside for its in self.links.members_reading(member.output))
            for member in run[:-1]
        )

    def saves(self, run: Sequence[Member]) -> bool:
        """Return whether the first and the last member need not move something: else fewer do."""
        return all(any(map(self.moves, self.kept(run, at))) for at in (0, len(run) - 1))

    def kept(self, run: Sequence[Member], at: int) -> list[str]:
        """Return what others of a run make or read, too, of all that a member reads and makes."""
        others = [member for member in run if member is not run[at]]
        known = {name for its in others for name in (its.output, *self.links.read(its))}
        return [name for name in (*self.links.read(run[at]), run[at].output) if name in known]

    def moves(self, buffer: str) -> bool:
        """Return whether a buffer has no room in L2."""
        return self.setting.costs.moving(self.placed.program.values[buffer].bytes) > 0

    def refuse_cost(self, work: FusedWork) -> str:
        """Return why members cost no less together than apart; empty if they do."""
        costs, apart = self.setting.costs, work.alone
        bound, together, hurdle = costs.bound(work), costs.together(work), costs.hurdle(work)
        if costs.prunes(work):
            least = _us(bound / costs.safe)
            return f"no code takes less than {least} together, apart they take {_us(apart)}"
        if together + hurdle < apart:
            return ""
        risk = f"{_us(hurdle)} are at risk"
        return f"{_us(together)} together and {_us(apart)} apart are predicted, {risk}"

    def keep_apart(self, run: Sequence[Member]) -> str:
        """Return which stage keeps members from running together; or nothing.

        One in between keeps others from moving to the last one, which may write what others read.
        """
        positions, stages = self.links.positions, self.placed.program.stages
        last, inside = positions[id(run[-1])], {id(member) for member in run}
        written = self.placed.buffers_of((run[-1].output,))
        for member in run[:-1]:
            if written & set(self.links.read(member)):
                return f"{run[-1].name} changes what is read"
            for other in stages[positions[id(member)] + 1 : last]:
                if id(other) not in inside and self.placed.must_keep_order(member, other):
                    return f"{other.name} changes what is read"
        return ""

    # What the costs depend on.

    def alone(self, member: Member) -> float:
        """Return the predicted seconds of a stage by itself."""
        if isinstance(member, LayerStage):
            seconds, count = self.setting.seconds[member.problem.key], len(member.stack)
            return self.setting.costs.stack(seconds, count) if count else seconds
        return self.loop(member, ())

    def loop(self, member: LoopStage, without: Collection[str]) -> float:
        """Return the predicted seconds of a loop that finds some tensors in a near cache."""
        if id(member) not in self.loops:
            self.loops[id(member)] = LoopWork.of(self.placed, member)
        work = self.loops[id(member)]
        written, read = (
            tuple(size for buffer, size in tensors if buffer not in without)
            for tensors in (work.tensors[:1], work.tensors[1:])
        )
        return self.setting.costs.loop(work.elements, read, written)

    def shared(self, run: Sequence[Member]) -> list[str]:
        """Return the buffers around a run of which several members read a window of rows.

        Those that have room in L2 anyhow are left out, and so is what keeps no step with the rest.
        """
        inside, readers = {member.output for member in run}, dict[str, list[Member]]()
        for member in run:
            for buffer in self.links.read(member):
                if buffer not in inside and self.moves(buffer):
                    readers.setdefault(buffer, []).append(member)
        several = [name for name, its in readers.items() if len(its) > 1 and all(
            self.links.window(member, name) for member in its
        )]  # fmt: skip
        return [name for name in several if self.turns_of(run, [name], HEIGHTS[0]).in_step]

    def turns(self, run: Sequence[Member], height: int) -> RowTurns:
        """Return how the members of a run take turns."""
        return self.turns_of(run, (), height)

    def turns_of(self, run: Sequence[Member], shared: Sequence[str], height: int) -> RowTurns:
        """Return how members take turns, behind buffers around them, whose rows are there."""
        tensors, rows = [*shared, *(member.output for member in run)], list[int]()
        for name in tensors:
            rows.append(self.rows(name).height)
        steps = (*(1 for _ in shared), *(self.step(member, height) for member in run))
        reads = reads_among(tensors, run, self.links.read, self.links.window)
        return RowTurns(tuple(rows), steps, reads)

    def work(self, run: Sequence[Member], height: int) -> FusedWork:
        """Return the features of members that run together."""
        values, shared = self.placed.program.values, self.shared(run)
        turns = self.turns_of(run, shared, height)
        waiting = [*shared, *(member.output for member in run[:-1])]
        rings = sum(
            rows * (values[name].bytes // extent)
            for rows, extent, name in zip(turns.held(), turns.heights, waiting, strict=False)
        )
        kept, members = {member.output for member in run[:-1]}, list[MemberWork]()
        again = turns.overlap()[len(shared) :]
        for member, rows in zip(run, again, strict=True):
            members.append(self.member(member, height, rows, kept))
            kept |= {*shared} & {*self.links.read(member)}
        return FusedWork(tuple(members), values[run[-1].output].bytes, rings)

    def member(self, member: Member, height: int, again: int, kept: Collection[str]) -> MemberWork:
        """Return the features of one member.

        ``again``: rows that two threads compute where they meet; ``kept``: tensors that others
        make or read just before.
        """
        alone, rows = self.alone(member), self.rows(member.output)
        values = self.placed.program.values
        repeated = again * (self.setting.costs.threads - 1) / rows.height
        if isinstance(member, LoopStage):
            return MemberWork(alone, alone, alone - self.loop(member, kept), 0.0, repeated)
        code = self.code(member, height)
        assert isinstance(code, RowCode)
        costs, read = self.setting.costs, (it for it in self.links.read(member) if it in kept)
        moved = sum(costs.moving(values[name].bytes) for name in read)
        if member.output in kept:
            moved += costs.writing(values[member.output].bytes)
        part = part_height(member, rows)
        turns = rows.height // part * -(-part // code.step)
        return MemberWork(
            alone, code.seconds, moved, code.least, repeated, _weights(member.problem), turns
        )

    def rows(self, name: str) -> Rows:
        """Return a tensor that may stay inside, or that a member makes, as rows."""
        if name not in self.known_rows:
            rows = self.placed.rows_of(name)
            assert rows is not None
            self.known_rows[name] = rows
        return self.known_rows[name]

    def step(self, member: Member, height: int) -> int:
        """Return the rows that a member makes at a time."""
        key = id(member), height
        if key not in self.steps:
            self.steps[key] = self.rows_at_a_time(member, height)
        return self.steps[key]

    def rows_at_a_time(self, member: Member, height: int) -> int:
        """Return the rows that a member makes at a time, the first time that it is asked for."""
        if isinstance(member, LoopStage):
            return rows_of_loops(self.placed, member)
        code, rows = self.code(member, height), self.placed.rows_of(member.output)
        if isinstance(code, str) or rows is None:
            return 1
        return min(code.step, part_height(member, rows))


def terms_of(stage: LoopStage) -> int:
    """Return how many elements are reduced to one of a loop's."""
    return prod(size for it in reductions(stage.expr)[:1] for _, size in it.over)


def _us(seconds: float) -> str:
    return f"{seconds * 1e6:.0f} us"


def _weights(problem: Problem) -> int:
    """Return the bytes of a layer's weights."""
    return prod(problem.w_shape) * precision_named(problem.dtype).w.bytes


def _layers(chains: Iterable[Chain]) -> Iterator[tuple[LayerStage, int]]:
    """Yield the layers of row fusions of all divisions, and the rows they make at a time."""
    for chain in chains:
        for number in range(len(chain.divisions)):
            for fusion in chain.fusions(number):
                for member in fusion.members:
                    if isinstance(member, LayerStage):
                        yield member, fusion.height


def _parts(length: int, runs: PricedRuns) -> Iterator[tuple[int, int]]:
    """Yield first and end of the neighbours that runs join."""
    joined = {at for start, end in runs for at in range(start + 1, end)}  # within a run
    borders = [at for at in range(length + 1) if at not in joined]
    yield from (part for part in pairwise(borders) if part[1] - part[0] > 1)


def _with(placed: PlacedProgram, fusions: Sequence[RowFusion]) -> PlacedProgram:
    """Return the program with row fusions, each where its last member stood."""
    last = {id(fusion.members[-1]): _with_views(placed, fusion) for fusion in fusions}
    gone = {id(member) for fusion in fusions for member in fusion.members[:-1]}
    stages = [last.get(id(s), s) for s in placed.program.stages if id(s) not in gone]
    return replace(placed, program=replace(placed.program, stages=tuple(stages)))


def _with_views(placed: PlacedProgram, fusion: RowFusion) -> RowFusion:
    """Return a row fusion that knows by which other names its members read what they make."""
    names = (
        name for member in fusion.members for buffer in fusion.internal
        for name in read_names(placed, member, buffer) if name != buffer
    )  # fmt: skip
    return replace(fusion, views=tuple(dict.fromkeys(names)))
