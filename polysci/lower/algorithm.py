"""The interface of algorithms: schedules and their cost, loop IR, numerics, explanation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from polysci.loop_ir.nodes import Team
from polysci.text.tables import columns, pairs, paragraph, time_text

if TYPE_CHECKING:  # the command line reads the table, and a process that checks results the types
    from polysci.cost import Context
    from polysci.explain import Explanation, MeasuredTime
    from polysci.lower.lowering import LoweredPrimitive
    from polysci.numerics.arrays import Doubles
    from polysci.ops.problem import Problem
    from polysci.space.schedule import Schedule
    from polysci.space.summation import SummationOrder

SYMBOL: Final = "primitive"
Plan = TypeVar("Plan")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A schedule and its predicted seconds."""

    schedule: Schedule
    seconds: float


@dataclass(frozen=True, slots=True)
class SpaceLimits:
    """The ranker that orders a space, and its size: register tiles, dimensions with cache blocks.

    Beside the best candidates, the best of ``kinds`` other kinds are taken.
    An algorithm with a cost model and a small space of its own needs none of them.
    """

    ranker: str = "traffic"
    tiles: int = 8
    blocks: int = 2
    kinds: int = 0
    order: SummationOrder | None = None  # of all sums; None: any


@dataclass(frozen=True, slots=True)
class EmitOptions:
    """Options of code beside its schedule; ``lower_nest`` explains ``team`` and ``by_rows``.

    ``symbol`` is the primitive's name in C; ``strides`` are of arrays that are stored otherwise
    than the problem says; ``adds``: the residual is y itself, to which sums are added. ``ends`` are
    dimensions that calls may end early, at a multiple of register tiles; code may ignore them. With
    ``caches``, a thread's bytes of L1, L2 and L3, a comment at each loop says what it works on and
    which cache holds that.
    """

    symbol: str = SYMBOL
    strides: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    team: Team = Team.OWN
    by_rows: bool = False
    adds: bool = False
    caches: tuple[int, ...] = ()
    ends: tuple[str, ...] = ()


PLAIN: Final = EmitOptions()


@dataclass(frozen=True, slots=True)
class ExactInputs:
    """Integers for which an algorithm rounds nothing, in any order of its sums.

    ``largest`` bounds absolute values (None: as many as the sums of products allow); weights are
    then multiplied by ``scale``, and only ``channels`` input channels of a filter are not zero
    (0: all of them). With ``patterns``, some taps for each of the last axes, a channel of a filter
    is plus or minus the product of one of each, or zero, and of further axes one tap.
    """

    largest: int | None = None
    scale: int = 1
    channels: int = 0
    patterns: Sequence[Sequence[Sequence[int]]] = ()

    def filters(self, taps: Sequence[int]) -> list[tuple[int, ...]]:
        """Return the products of patterns for axes of so many taps, row by row; empty for none."""
        own = list(self.patterns)
        for count in taps[: len(taps) - len(own)]:
            own.insert(0, [tuple(int(i == at) for i in range(count)) for at in range(count)])
        return [tuple(map(prod, product(*chosen))) for chosen in product(*own)]


@dataclass(frozen=True, slots=True)
class ErrorTerms:
    """The bound of an f32 result: gamma of ``roundings`` times ``sizes``, element by element.

    What weights lose that are kept in fewer bits adds ``rounded`` to it; None: nothing.
    """

    sizes: Doubles
    roundings: int
    rounded: Doubles | None = None


@dataclass(frozen=True, slots=True)
class ExplainRequest:
    """The schedule to explain, where it comes from (``origin``) and its time, if measured.

    ``ranker`` orders the rivals that it is compared with; None: the schedule alone.
    """

    title: str
    problem: Problem
    schedule: Schedule
    context: Context
    origin: str = "given"
    measured: MeasuredTime | None = None
    ranker: str | None = "traffic"

    def render(self, seconds: float, sections: Mapping[str, str], width: int | None) -> str:
        """The schedule with its predicted ``seconds``, and ``sections`` with a heading each."""
        rows = [("schedule", str(self.schedule)), ("from", self.origin)]
        rows += [("machine", str(self.context.target)), ("predicted", self._speed(seconds))]
        if self.measured:
            rows.append(("measured", self._speed(self.measured.seconds)))
            rows += [("", remark) for remark in self.measured.remarks]
        parts = {"Schedule": pairs(rows, width), **sections}
        body = (f"\n{head}\n{text}" for head, text in parts.items())
        return "\n".join([paragraph(self.title, width, ""), *body])

    def render_parts(
        self, name: str, algorithm: Sequence[tuple[str, str]], buffers: Sequence[tuple[str, ...]],
        parts: Mapping[str, float], width: int | None,
    ) -> str:  # fmt: skip
        """The schedule, rows about its ``algorithm`` and buffers, and parts of the predicted time.

        Parts are seconds by their names.
        """
        seconds = sum(parts.values())
        rows = [
            (part, time_text(its), f"{100 * its / seconds:.1f} %") for part, its in parts.items()
        ]
        sections = {
            name: pairs(algorithm, width),
            "Buffers": columns(buffers, (0, 2)),
            "Prediction": columns([*rows, ("sum", time_text(seconds), "")]),
        }
        return self.render(seconds, sections, width) + "\n"

    def _speed(self, seconds: float) -> str:
        rate = self.problem.flops / seconds * 1e-9
        needed = self.problem.multiplied_flops / seconds * 1e-9
        share = needed / self.context.peak / self.context.threads
        return (
            f"{time_text(seconds)}, {rate:.1f} GFLOP/s as the problem counts, {share:.2f} of "
            "the peak for direct multiplications, none with padding"
        )

    def members(self, seconds: float) -> dict[str, Any]:
        """Return the explanation as JSON members; times are in seconds."""
        from polysci.explain.measured_time import quality_members

        return {
            "title": self.title, "schedule": str(self.schedule),
            "threads": self.context.threads, "predicted": seconds,
            "measured": self.measured.seconds if self.measured else None,
            **quality_members(self.measured),
        }  # fmt: skip


class ScheduleExplanation(Protocol):
    """An explanation as text and as JSON members; ``nest`` is None where no loop nest is run."""

    @property
    def nest(self) -> Explanation | None: ...

    def render(self, width: int | None = None) -> str:
        """Text in ``width`` columns; None: as wide as its tables are."""

    def members(self) -> dict[str, Any]: ...


class Algorithm(Protocol[Plan]):
    """A way to compute problems; ``registry`` has one row for each.

    All schedules of an algorithm but the default one hold a transform of its name,
    ``name(numbers)``; what the numbers and the loops mean is its own affair. ``Plan`` is a
    schedule resolved for one problem.
    """

    def exact_inputs(self, problem: Problem) -> ExactInputs:
        """Inputs for which results equal the reference bit for bit."""

    @property
    def languages(self) -> tuple[str, ...]:
        """The languages that its code can be printed in, as instruction sets name them."""
        return ("c",)

    @property
    def margin(self) -> float:
        """The share of the others' predicted seconds that it must save where all are considered."""
        return 0.0

    def refusal(self, problem: Problem) -> str:
        """Return why it does not compute the problem; empty where it does."""

    def candidates(
        self, problem: Problem, context: Context, count: int | None, limits: SpaceLimits
    ) -> Sequence[Candidate]:
        """The best ``count`` schedules of its space (None: all), best first.

        Raises UnsupportedError for a problem that it refuses or where nothing fits.
        """

    def predict_seconds(self, problem: Problem, context: Context, schedule: Schedule) -> float:
        """Predicted seconds of one schedule. Raises as ``resolve`` does."""

    def predict_held(
        self, problem: Problem, context: Context, schedule: Schedule, held: int
    ) -> float | None:
        """Predicted seconds where a compute unit holds so many groups; None: it has no groups."""
        return None

    def other_form(self, problem: Problem, context: Context, schedule: Schedule) -> Schedule | None:
        """The schedule with or without ``ahead(B)``; None where that has no code or cannot pay."""
        return None

    def least_seconds(self, problem: Problem, context: Context) -> float:
        """Seconds below which it predicts no schedule, found without a search."""
        return 0.0

    def lower_bound(self, context: Context, schedule: Schedule) -> float:
        """Seconds below which no run can be, whatever is predicted; 0 where none is known."""
        return 0.0

    def resolve(self, problem: Problem, schedule: Schedule, threads: int) -> Plan:
        """The schedule resolved for the problem.

        Raises IllegalScheduleError, SpecError or UnsupportedError for one that does not fit.
        """

    def lower(self, plan: Plan, options: EmitOptions) -> LoweredPrimitive:
        """Return loop IR with the interface of every primitive.

        Raises SpecError or UnsupportedError for options that do not fit.
        """

    def error_terms(
        self, problem: Problem, numbers: Sequence[int], x: Doubles, w: Doubles
    ) -> ErrorTerms:
        """The error bound for these operands; ``numbers`` are those of the transform."""

    def explain(self, request: ExplainRequest) -> ScheduleExplanation:
        """Explain a schedule. Raises as ``resolve`` does."""
