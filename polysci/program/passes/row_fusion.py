"""Choose stages that run together, some rows at a time, so that what lies between stays in a cache.

A tensor may stay inside a row fusion where one stage alone reads it, and the rows that it reads for
each row of its result are a window that moves on with the rows. Stages that such tensors join are
chains. A chain is divided into row fusions and stages by themselves in the way that costs least:
dynamic programming over all runs of neighbours, each priced by ``cost.fusion``. Those whose bound
exceeds the time of their members apart are not priced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from math import prod
from typing import Final, Protocol

from polysci.cost.fusion import FusedWork, FusionCosts, MemberWork
from polysci.cost.group_fusion import HeldTile
from polysci.numerics.dtypes import array_type, precision_named
from polysci.ops.problem import Problem
from polysci.program.passes.buffers import PlacedProgram
from polysci.program.passes.operands import RowWindow, rows_read
from polysci.program.passes.row import Fusion, FusionGroup
from polysci.program.stages import LayerStage, LoopStage, RowFusion
from polysci.space.schedule import Schedule

Member = LayerStage | LoopStage
LONGEST: Final = 8  # members of a row fusion
HEIGHTS: Final = (1, 2, 4, 8, 16)  # rows that its layers make at a time
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
    """The decision about a tensor between two stages: that it stays inside, or why it does not.

    ``measured``: seconds of its stages together, and apart.
    """

    refusal: str = ""
    measured: tuple[float, float] | None = None


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


@dataclass(frozen=True, slots=True)
class Chain:
    """Stages each of which may run together with the next, and divisions, the cheapest first."""

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
        """Yield the layers of row fusions of all divisions, and the rows they make at a time."""
        for chain in self.chains:
            for number in range(len(chain.divisions)):
                for fusion in chain.fusions(number):
                    for member in fusion.members:
                        if isinstance(member, LayerStage):
                            yield member, fusion.height

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
        groups = [replace(its, done=names in done) for names, its in self.groups.items()]
        return (*links, *groups)

    def _why_apart(self, tensor: str) -> str:
        """Return why a tensor that could stay inside a row fusion does not."""
        pair = self.groups.get((tensor,))
        if pair is None:
            return "a row fusion ends there"
        return pair.refusal or "another division of its neighbours costs less"


def fuse_rows(
    placed: PlacedProgram, setting: Setting, decided: Mapping[str, FusionVerdict] | None = None
) -> FusionSpace:
    """Return the row fusions that are possible, the cheapest first, and all that was considered.

    ``decided`` says of tensors, by name, whether they are to lie inside a row fusion.
    """
    asked: dict[tuple[int, int], str] = {}
    while True:  # code is made of the cheapest divisions alone, and may be refused
        refused = {layer: why for (layer, _), why in asked.items() if why}
        space = setting.fuser(placed, setting, decided or {}, refused).run()
        refuses = False
        for layer, height in space.layers():
            if (id(layer), height) not in asked:
                schedule = setting.schedules[layer.problem.key]
                why = setting.refuse_code(layer, placed, schedule, height)
                asked[id(layer), height] = why
                refuses |= bool(why)
        if not refuses:
            return space


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


@dataclass(slots=True)
class RowFuser:
    """``refused``: why layers have no code that makes some rows at a time, by identity."""

    placed: PlacedProgram
    setting: Setting
    decided: Mapping[str, FusionVerdict]
    refused: Mapping[int, str]
    positions: dict[int, int] = field(init=False)  # of stages, by identity
    codes: dict[tuple[int, int], RowCode | str] = field(default_factory=dict)
    groups: dict[tuple[str, ...], FusionGroup] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.positions = {id(stage): at for at, stage in enumerate(self.placed.program.stages)}

    def run(self) -> FusionSpace:
        """Return the chains of the tensors that may stay inside, and all that was considered."""
        values, links = self.placed.program.values, list[Fusion]()
        following, before = dict[int, Member](), set[int]()
        for first, second, why in self.pairs():
            joined = "it reads the rows of another stage" if id(second) in before else ""
            if not (refusal := why or joined):
                following[id(first)] = second
                before.add(id(second))
            saved = 2 * values[first.output].bytes
            links.append(Fusion(first.name, second.name, first.output, saved, refusal))
        chains = list[Chain]()
        for stage in self.placed.program.stages:
            if isinstance(stage, Member) and id(stage) in following and id(stage) not in before:
                members = [stage]
                while after := following.get(id(members[-1])):
                    members.append(after)
                chains.append(Chain(tuple(members), self.divisions(tuple(members))))
        return FusionSpace(self.placed, tuple(chains), tuple(links), self.groups)

    # Which tensors may stay inside.

    def pairs(self) -> Iterator[tuple[Member, Member, str]]:
        """Yield stages, those that read their results, and why these cannot run together."""
        readers, makers = self.placed.program.readers(), self.placed.program.makers()
        for stage in self.placed.program.stages:
            if not isinstance(stage, Member) or len(makers[stage.output]) > 1:
                continue
            every = readers.get(stage.output, [])
            for reader in every:
                if isinstance(reader, Member):
                    several = "several stages read it" if len(every) > 1 else ""
                    yield stage, reader, several or self.refuse_link(stage, reader)

    def refuse_link(self, first: Member, second: Member) -> str:
        """Return why what one stage makes cannot stay between it and the next; empty if it can."""
        name, program = first.output, self.placed.program
        if name in program.outputs:
            return "it is an output"
        verdict = self.decided.get(name)
        if verdict and verdict.refusal:
            return verdict.refusal
        rows, result = self.placed.rows_of(name), self.placed.rows_of(second.output)
        if rows is None or result is None:
            return "it has no rows"
        place = self.placed.places[name]
        whole = place.strides[rows.axis] * rows.height == prod(rows.shape)
        if place.buffer != name or place.first or place.step or not whole:
            return "it is part of another tensor"
        if isinstance(second, LayerStage) and second.x.tensor != name:
            return "the layer adds it, and multiplies another tensor"
        if isinstance(first, LayerStage) and (first.y.step or first.stack):
            return "it is part of another tensor"
        if isinstance(second, LayerStage) and (second.y.step or second.stack or second.w):
            return "it writes part of a tensor"
        layers = [member for member in (first, second) if isinstance(member, LayerStage)]
        if any(layer.weights not in program.constants for layer in layers):
            return "its weights are computed"
        if rows_read(second, name, rows, result) is None:
            return "its rows read no window of rows"
        if self.setting.costs.moving(program.values[name].bytes) == 0 and not verdict:
            return f"{program.values[name].bytes} bytes stay in the L2 cache"
        return next(filter(None, map(self.refuse_layer, layers)), "")

    def refuse_layer(self, layer: LayerStage) -> str:
        """Return why a layer cannot make some rows at a time; empty if it can."""
        code = self.code(layer, HEIGHTS[0])
        return self.refused.get(id(layer), "" if isinstance(code, RowCode) else code)

    def code(self, layer: LayerStage, height: int) -> RowCode | str:
        """Return what is predicted of a layer, some rows at a time, or why it cannot be so."""
        key = id(layer), height
        if key not in self.codes:
            schedule = self.setting.schedules[layer.problem.key]
            self.codes[key] = self.setting.price_rows(layer, self.placed, schedule, height)
        return self.codes[key]

    # How a chain is divided.

    def divisions(self, members: tuple[Member, ...]) -> tuple[Division, ...]:
        """Return the cheapest ways to divide a chain, then the one into stages by themselves."""
        price = partial(self.price, members)
        cheapest = cheapest_divisions(len(members), price)
        apart = tuple(Run(at, at + 1) for at in range(len(members)))
        free = not any(map(self.is_wanted, members[:-1]))
        return tuple(dict.fromkeys((*cheapest, *([apart] if free else []))))

    def is_wanted(self, member: Member) -> bool:
        """Return whether it was decided that what a stage makes stays inside."""
        verdict = self.decided.get(member.output)
        return verdict is not None and not verdict.refusal

    def price(self, members: Sequence[Member], start: int, end: int) -> tuple[float, Run] | None:
        """Return the seconds of a run of members, a row fusion; None where it must not be one."""
        borders = [members[at - 1] for at in (start, end) if 0 < at < len(members)]
        if any(map(self.is_wanted, borders)):
            return None
        run = members[start:end]
        if len(run) == 1:
            return self.alone(run[0]), Run(start, end)
        costs, names = self.setting.costs, tuple(member.output for member in run[:-1])
        works = {height: self.work(run, height) for height in self.heights(run)}
        height = min(works, key=lambda its: costs.together(works[its]))
        work, verdict = works[height], self.decided.get(names[0])
        bound, together = costs.bound(work), costs.together(work)
        wanted = all(map(self.is_wanted, run[:-1]))
        pruned = not wanted and bound + costs.hurdle(work) >= work.alone
        refusal = self.keep_apart(run)
        if not refusal and not wanted:
            refusal = self.refuse_cost(work)
        self.groups[names] = FusionGroup(
            tuple(member.name for member in run), bound, together, work.alone,
            verdict.measured if verdict else None, refusal, pruned,
        )  # fmt: skip
        return None if refusal else (together + costs.hurdle(work), Run(start, end, height))

    def refuse_cost(self, work: FusedWork) -> str:
        """Return why members cost no less together than apart; empty if they do."""
        costs, apart = self.setting.costs, work.alone
        bound, together, hurdle = costs.bound(work), costs.together(work), costs.hurdle(work)
        if bound + hurdle >= apart:
            return f"no code takes less than {_us(bound)} together, apart they take {_us(apart)}"
        if together + hurdle < apart:
            return ""
        risk = f"{_us(hurdle)} are at risk"
        return f"{_us(together)} together and {_us(apart)} apart are predicted, {risk}"

    def keep_apart(self, run: Sequence[Member]) -> str:
        """Return which stage in between keeps members from moving to the last one; or nothing."""
        stages, last = self.placed.program.stages, self.positions[id(run[-1])]
        inside = {id(member) for member in run}
        for member in run[:-1]:
            for other in stages[self.positions[id(member)] + 1 : last]:
                if id(other) not in inside and self.placed.must_keep_order(member, other):
                    return f"{other.name} changes what is read"
        return ""

    # What the costs depend on.

    def heights(self, run: Sequence[Member]) -> Sequence[int]:
        """Return the rows that layers of a run may make at a time."""
        return HEIGHTS

    def alone(self, member: Member) -> float:
        """Return the predicted seconds of a stage by itself."""
        if isinstance(member, LayerStage):
            return self.setting.seconds[member.problem.key]
        values = self.placed.program.values
        sizes = tuple(
            values[name].bytes for name in (member.output, *member.inputs) if name in values
        )
        return self.setting.costs.loop(values[member.output].size, sizes)

    def work(self, run: Sequence[Member], height: int) -> FusedWork:
        """Return the features of members that run together."""
        values, internal = self.placed.program.values, [member.output for member in run[:-1]]
        windows = [self.window(*pair) for pair in pairwise(run)]
        steps = [self.step(member, height) for member in run]
        rings = sum(
            min(window.held(*pair), window.extent) * values[name].bytes // window.extent
            for name, window, pair in zip(internal, windows, pairwise(steps), strict=True)
        )
        fusion, again = RowFusion(tuple(run), height), self.repeated(windows)
        around = (*fusion.inputs, fusion.output)
        return FusedWork(
            tuple(self.member(member, height, rows)
                  for member, rows in zip(run, again, strict=True)),
            tuple(values[name].bytes for name in internal),
            tuple(values[name].bytes for name in around if name in values), rings,
        )  # fmt: skip

    def member(self, member: Member, height: int, repeated: float) -> MemberWork:
        """Return the features of one member; ``repeated``: rows that threads compute twice."""
        alone, rows = self.alone(member), self.placed.rows_of(member.output)
        assert rows is not None
        if isinstance(member, LoopStage):
            return MemberWork(alone, alone, 0.0, repeated / rows.height)
        code = self.code(member, height)
        assert isinstance(code, RowCode)
        return MemberWork(
            alone, code.seconds, code.least, repeated / rows.height, _weights(member.problem),
            -(-rows.height // code.step),
        )  # fmt: skip

    def window(self, first: Member, second: Member) -> RowWindow:
        """Return the rows that a stage reads of what the one before it made."""
        source, result = map(self.placed.rows_of, (first.output, second.output))
        assert source is not None and result is not None
        window = rows_read(second, first.output, source, result)
        assert window is not None
        return window

    def step(self, member: Member, height: int) -> int:
        """Return the rows that a member makes at a time."""
        code = self.code(member, height) if isinstance(member, LayerStage) else None
        return code.step if isinstance(code, RowCode) else 1

    def repeated(self, windows: Sequence[RowWindow]) -> list[float]:
        """Return how many rows of each member two threads compute, where they meet."""
        again = [0.0]
        for window in reversed(windows):
            overlap = max(0, window.span - window.step) * (self.setting.costs.threads - 1)
            again.insert(0, again[0] * window.step + overlap)
        return again


def _us(seconds: float) -> str:
    return f"{seconds * 1e6:.0f} us"


def _weights(problem: Problem) -> int:
    """Return the bytes of a layer's weights."""
    return prod(problem.w_shape) * array_type(precision_named(problem.dtype).w.stored).itemsize


def _with(placed: PlacedProgram, fusions: Sequence[RowFusion]) -> PlacedProgram:
    """Return the program with row fusions, each where its last member stood."""
    last = {id(fusion.members[-1]): fusion for fusion in fusions}
    gone = {id(member) for fusion in fusions for member in fusion.members[:-1]}
    stages = [last.get(id(s), s) for s in placed.program.stages if id(s) not in gone]
    return replace(placed, program=replace(placed.program, stages=tuple(stages)))
