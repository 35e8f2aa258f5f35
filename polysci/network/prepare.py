"""The way from a model to a placed program, a schedule for each of its layers, and its C."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from difflib import unified_diff
from functools import cache, partial
from itertools import product
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from polysci.cost.fusion import FusionCosts
from polysci.cost.group_fusion import GroupFusionCosts
from polysci.cost.networks import StageCosts
from polysci.errors import SpecError, UnsupportedError
from polysci.frontends.layers.model import LayeredModel
from polysci.frontends.onnx.model_file import ModelSource
from polysci.frontends.table import front_end_of
from polysci.graph.graph import Graph
from polysci.graph.operators.lower import lower
from polysci.graph.passes.narrow_weights import widen_weights
from polysci.graph.passes.rounded_weights import round_weights
from polysci.graph.passes.table import FIRST_PASSES, REPEATED_PASSES, simplify
from polysci.graph.state import NOTHING_KEPT, KeptState, keep_state
from polysci.lower.choice import candidates, has_groups, reproducible_schedule
from polysci.lower.layer_calls import (
    predict_rows,
    predict_tiles,
    price_rows,
    refuse_code,
    refuse_packing,
    refuse_schedule,
    strides_of,
)
from polysci.lower.registry import DEFAULT
from polysci.network.code import Code, SizedProgram, code_of
from polysci.network.options import CompileOptions, PlanOptions, Watch, machine_for
from polysci.ops.problem import Problem
from polysci.printers.network import OPENMP
from polysci.program.control import BranchStage
from polysci.program.passes import table
from polysci.program.passes.arguments import (
    arguments_of_layers,
    copied_arguments,
    copy_arguments,
)
from polysci.program.passes.buffers import PlacedProgram
from polysci.program.passes.fused_updates import UPDATES
from polysci.program.passes.group_fusion import GroupFuser
from polysci.program.passes.row import Considered, Fusion, FusionGroup, Pass, PassWatch, plain
from polysci.program.passes.row_fusion import FusionVerdict, RowCode, RowFuser, Setting
from polysci.program.passes.size_axes import OtherSize, UnclearSizeError
from polysci.program.passes.spans import with_spans
from polysci.program.passes.table import (
    AS_COSTS_SAY,
    PassChoices,
    PassContext,
    ScheduleContext,
    run_passes,
    run_scheduled_passes,
)
from polysci.program.passes.thread_shares import SHARED, ThreadShares, serial_problems, share_stages
from polysci.program.passes.variation import Variation
from polysci.program.stages import Program, problems
from polysci.space.schedule import Schedule
from polysci.space.summation import SummationOrder
from polysci.target.host import detect
from polysci.target.machine import Machine
from polysci.target.target import HOST, Target
from polysci.text.names import suggest
from polysci.tune import Result, context_of, optimize
from polysci.tune.wisdom import Wisdom

if TYPE_CHECKING:
    from torch.export import ExportedProgram

Model: TypeAlias = "ModelSource | LayeredModel | ExportedProgram"
DTYPES = ("f32", "bf16")
AIMS = ("speed", "memory")
OTHERS: Final = 60  # schedules that the model prefers, where the best has no code in a network


@dataclass(frozen=True, slots=True)
class RunSizes:
    """Sizes that runs are told: ``spans`` by name; graphs of other sizes tell what depends on them.

    ``others`` are names, sizes, and the graph that is of this size and else of the largest ones;
    ``read`` returns such a graph of one more size.
    ``packings`` say how other programs of the library pack the weights, by their names.
    """

    spans: Mapping[str, range] = field(default_factory=dict)
    others: tuple[tuple[str, int, Graph], ...] = ()
    read: Callable[[str, int], Graph] | None = None
    packings: Mapping[str, tuple[str, int]] = field(default_factory=dict)

    def program(self, graph: Graph) -> Program:
        """Return the stages of the graph of the largest sizes.

        Raises VaryingSizeError where they depend on a size in another way than code can.
        """
        program = lower(graph)
        if not self.others:
            return replace(program, spans=self.spans)
        others = [self._other(*other) for other in self.others]
        while True:
            try:
                sized = with_spans(program, self.spans, others)
                break
            except UnclearSizeError as error:
                if self.read is None:
                    raise
                others.append(
                    self._other(error.name, error.size, self.read(error.name, error.size))
                )
        return copy_arguments(sized, copied_arguments(sized))

    def _other(self, name: str, size: int, graph: Graph) -> OtherSize:
        return OtherSize(name, self.spans[name][-1], size, lower(graph))


ONE_SIZE: Final = RunSizes()


@dataclass(frozen=True, slots=True)
class PreparedNetwork:
    """A network ready for code: the simplified graph, stages in their places, possible fusions.

    The other members are what ``prepare`` was asked for.
    """

    graph: Graph
    placed: PlacedProgram
    considered: tuple[Considered, ...]
    fuse: bool = True
    optimize: str = "speed"
    choices: PassChoices = AS_COSTS_SAY
    sizes: RunSizes = ONE_SIZE

    @property
    def program(self) -> Program:
        return self.placed.program

    def refuse(self, key: str, schedule: Schedule) -> str:
        """Return why layers of a problem are not to have a schedule; empty where they may."""
        if why := refuse_schedule(key, schedule, self.placed):
            return why
        if not self.sizes.spans:
            return ""
        return refuse_packing(key, schedule, self.placed, self.sizes.packings)

    @property
    def fusions(self) -> tuple[Fusion, ...]:
        """The pairs of stages that were considered."""
        return tuple(its for its in self.considered if isinstance(its, Fusion))

    @property
    def fusion_groups(self) -> tuple[FusionGroup, ...]:
        """The runs of neighbouring stages that were considered."""
        return tuple(its for its in self.considered if isinstance(its, FusionGroup))


def graph_of(
    model: Model,
    dims: Mapping[str, int] | None = None,
    values: Mapping[str, Any] | None = None,
    *,
    external: bool = False,
    weights: str = "f32",
    kept: KeptState = NOTHING_KEPT,
    any_size: bool = False,
    device: str | None = None,
    most: Mapping[str, int] | None = None,
) -> Graph:
    """Return the simplified graph of a model, as ``read_graph`` takes it, with state in it.

    Constant weights of products are stored in the type ``weights``, as ``round_weights`` has it;
    what is narrow in the model itself is f32 for a ``device`` other than the host, which lacks
    kernels for it. ``any_size`` is that of ``simplify``, for graphs of a range.
    """
    graph = keep_state(read_graph(model, dims, values, external=external, most=most), kept)
    graph = simplify(graph, any_size=any_size)
    return round_weights(graph if device in (None, HOST) else widen_weights(graph), weights)[0]


def read_graph(
    model: Model,
    dims: Mapping[str, int] | None = None,
    values: Mapping[str, Any] | None = None,
    *,
    external: bool = False,
    most: Mapping[str, int] | None = None,
) -> Graph:
    """Return the graph of an ONNX model as it is written: its path, itself, or its bytes.

    ``most`` bounds sizes that its data decides, by the name of a tensor.

    Or of a program of ``torch.export``: itself, or the path of a saved one, which ends in .pt2. Or
    of the last comprehension of a file that ends in .tc; ``dims`` are its sizes.

    A model of layers, or the words of one, has its first parameters as constants; of ``mlp:``
    words, ``dims`` may have other ``rows``. Those of words
    with ``bwd`` are inputs; so is the gradient of y, and outputs are y and all other gradients.
    """
    row = front_end_of(model)
    if not most:
        return row.read(model, dims, values, external)
    if row.read_bounded is None:
        name = next(iter(most))
        raise SpecError(f"most: {name!r:.100}: bounds what data decides, in an ONNX model alone")
    return row.read_bounded(model, dims, values, external, most)


def prepare(
    graph: Graph,
    dtype: str = "f32",
    *,
    fuse: bool = True,
    target: Target | None = None,
    machine: Machine | None = None,
    optimize: str = "speed",
    choices: PassChoices = AS_COSTS_SAY,
    watch: PassWatch | None = None,
    sizes: RunSizes = ONE_SIZE,
) -> PreparedNetwork:
    """Stages, fused and placed, for a machine's rates, by default those known of the target.

    Runs are told ``sizes``, of which the graph is for the largest.

    For ``memory`` they are in the order in which tensors take least of it at a time. With
    ``choices`` passes decide otherwise than their costs say. ``watch`` hears of each pass. Raises
    SpecError for another dtype than DTYPES, another aim than AIMS, or update than UPDATES.
    """
    for option, value, known in (
        ("dtype", dtype, DTYPES), ("optimize", optimize, AIMS), ("update", choices.update, UPDATES),
    ):  # fmt: skip
        if value not in known:
            raise SpecError(f"{option} {value!r}: a network has {' or '.join(known)}")
    own = target or detect()
    context = pass_context(
        dtype, own, machine or machine_for(own), choices=choices, fuse=fuse, optimize=optimize
    )
    program = sizes.program(graph)
    placed, considered = run_passes(program, context, watch)
    while used := arguments_of_layers(placed):
        program = copy_arguments(program, used)
        placed, considered = run_passes(program, context, watch)
    Variation(placed)  # which raises for stages that can be of one size alone
    return PreparedNetwork(
        graph, placed, considered, fuse, optimize, choices, replace(sizes, read=None)
    )


def prepare_with(
    graph: Graph,
    options: CompileOptions,
    watch: PassWatch | None = None,
    sizes: RunSizes = ONE_SIZE,
) -> PreparedNetwork:
    """Return the stages of a graph as the options of its compilation ask for them."""
    plan = options.plan()
    return prepare(
        graph, options.dtype, fuse=options.fuse, target=plan.target, machine=options.machine,
        optimize=options.optimize, choices=PassChoices(update=options.update), watch=watch,
        sizes=sizes,
    )  # fmt: skip


def pass_context(dtype: str, target: Target, machine: Machine, **others: Any) -> PassContext:
    """Return the context of passes that predict seconds by the cost model."""

    def predict(problem: Problem) -> float:
        context = context_of(problem, 1, target, machine=machine)
        return candidates(problem, context, 1)[0].seconds

    return PassContext(dtype, target, machine, predict, **others)


def shares_of(program: Program, options: PlanOptions, pool: str = OPENMP) -> ThreadShares:
    """Return the stages that all threads of a network share: all with a pool or a branch."""
    branches = any(isinstance(stage, BranchStage) for stage in program.stages)
    if options.threads == 1 or pool != OPENMP or branches:
        return SHARED
    return share_stages(program, options.threads, StageCosts(options.rates, options.target))


def options_of(program: Program, options: PlanOptions) -> Mapping[str, PlanOptions]:
    """Return the options by key of a problem: for one thread, where one alone computes it."""
    alone = serial_problems(program, shares_of(program, options))
    single = replace(options, threads=1)
    return {key: single if key in alone else options for key in problems(program)}


def generate_code(
    placed: PlacedProgram,
    schedules: Mapping[str, Schedule],
    name: str,
    options: PlanOptions,
    *,
    apart: bool = False,
    timed: bool = False,
    pool: str = OPENMP,
) -> Code:
    """Return the C of a placed program; other arguments are those of ``code_of``."""
    program = SizedProgram(placed, schedules, shares_of(placed.program, options, pool))
    code = code_of(
        [program], name, options.target.isa, options.threads, apart=apart, timed=timed,
        flush_denormals=options.flush_denormals, pool=pool,
    )  # fmt: skip
    return replace(code, backend=options.target.backend)


def search_schedules(
    prepared: PreparedNetwork,
    options: PlanOptions,
    *,
    wisdom: Wisdom | None = None,
    time_limit: float | None = None,
    watch: Watch | None = None,
) -> dict[str, Result]:
    """Return the best schedule of every layer, by the key of its problem.

    What remains of ``time_limit`` is shared evenly by the layers that are left. Ctrl-C ends it;
    what was measured until then is in ``wisdom``.
    """
    results: dict[str, Result] = {}
    todo, start = problems(prepared.program), time.monotonic()
    by_key = options_of(prepared.program, options)
    for key, problem in todo.items():
        limit = None
        if time_limit is not None:
            left = max(0.01, time_limit - (time.monotonic() - start))
            limit = left / (len(todo) - len(results))
        results[key] = optimize(
            problem,
            options.level,
            by_key[key].threads,
            target=options.target,
            wisdom=wisdom,
            machine=options.machine,
            algorithm=options.algorithm,
            reproducible=options.reproducible,
            progress=partial(watch, problem) if watch else None,
            time_limit=limit,
            quick=True,  # a layer's code is part of the network's
        )
        if prepared.refuse(key, results[key].schedule):
            results[key] = _with_code(prepared, results[key], by_key[key])
        if watch:
            watch(problem, results[key])
        if results[key].interrupted:
            raise KeyboardInterrupt
    return results


def _with_code(prepared: PreparedNetwork, result: Result, options: PlanOptions) -> Result:
    """Return the model's best schedule with which every layer of a problem has code in its program.

    It is one of those for the problem's own strides, or else for those of one of its layers. Where
    the algorithm has none, it is one of the default algorithm.
    """
    placed = prepared.placed
    problem, threads = result.problem, options.threads
    context = context_of(problem, threads, options.target, machine=options.machine)
    layers = [layer for layer in placed.program.layers() if layer.problem.key == problem.key]
    stored = [own for own in (strides_of(layer, placed) for layer in layers) if own]
    contexts = [replace(context, strides={**context.strides, **own}) for own in [{}, *stored]]
    for algorithm, own in product(dict.fromkeys((options.algorithm, DEFAULT)), contexts):
        order = None
        if options.reproducible:
            kept = reproducible_schedule(problem, options.target, algorithm)
            order = SummationOrder.of(context.contraction, kept)
        for candidate in candidates(problem, own, OTHERS, algorithm, order=order):
            if not prepared.refuse(problem.key, candidate.schedule):
                return optimize(
                    problem, options.level, threads, target=options.target,
                    machine=options.machine, algorithm=algorithm, schedule=candidate.schedule,
                )  # fmt: skip
    if not (why := refuse_schedule(problem.key, result.schedule, placed)):
        return result  # whose weights are packed otherwise than in other programs
    raise UnsupportedError(f"{problem}: no schedule has code in this network: {why}")


def fuse_with_schedules(
    prepared: PreparedNetwork,
    chosen: Mapping[str, Schedule],
    seconds: Mapping[str, float],
    options: PlanOptions,
    decided: Mapping[str, FusionVerdict],
    watch: PassWatch | None = None,
) -> PreparedNetwork:
    """Return the network after the passes that need its layers' schedules and predicted seconds.

    ``decided`` says of tensors, by name, whether they are to lie inside a row fusion.
    """
    context = ScheduleContext(setting_of(chosen, seconds, options), decided)
    placed, considered = run_scheduled_passes(prepared.placed, context, watch)
    return replace(prepared, placed=placed, considered=(*prepared.considered, *considered))


def setting_of(
    chosen: Mapping[str, Schedule], seconds: Mapping[str, float], options: PlanOptions
) -> Setting:
    """Return what row fusions depend on beside the program."""
    groups = has_groups(options.target)
    costs = (GroupFusionCosts if groups else FusionCosts)(
        options.rates, options.target, options.threads
    )

    @cache
    def predict(problem: Problem, schedule: Schedule) -> RowCode:
        context = context_of(problem, options.threads, options.target, machine=options.rates)
        if groups:
            return predict_tiles(problem, schedule, context)
        return predict_rows(problem, schedule, context)

    price, fuser = partial(price_rows, predict=predict), GroupFuser if groups else RowFuser
    return Setting(chosen, seconds, costs, price, partial(refuse_code, known={}), fuser)


STAGES: Final = plain("stages", "nodes become layers, loops and views", lower)
CONTEXT: Final = 1  # lines around what changed


def all_passes() -> tuple[Pass, ...]:
    """Return all passes in the order in which a network goes through them."""
    ordered = (*FIRST_PASSES, *REPEATED_PASSES, STAGES)
    return (*ordered, *table.PROGRAM_PASSES, *table.SCHEDULED_PASSES)


@dataclass(frozen=True, slots=True)
class PassStep:
    """A pass with its input and result as lines: of nodes, or of stages."""

    name: str
    text: str
    before: tuple[str, ...]
    after: tuple[str, ...]

    @property
    def changed(self) -> bool:
        return self.before != self.after

    @property
    def count(self) -> int:
        """The number of nodes, or of stages, behind the pass."""
        return sum(not line.startswith(" ") for line in self.after)

    def difference(self) -> list[str]:
        """Return the lines that the pass removed (``-``) and added (``+``), with those around."""
        return [
            line for line in unified_diff(self.before, self.after, n=CONTEXT, lineterm="")
            if not line.startswith(("---", "+++"))
        ]  # fmt: skip


def trace_passes(model: Model | Graph, options: CompileOptions) -> tuple[PassStep, ...]:
    """Return what every pass does to a model; ``options`` are those of ``compile_network``.

    Nothing is measured: the layers' schedules are those that the model of costs prefers. A pass
    that runs again is there again where it changed something. Raises as ``compile_network`` does.
    """
    asked = replace(options, level="estimate")
    plan = asked.plan()
    plan = replace(plan, machine=plan.rates)
    steps, seen = list[PassStep](), set[str]()

    def watch(row: Pass, before: object, after: object) -> None:
        step = PassStep(row.name, row.text, _lines(before), _lines(after))
        if step.changed or row.name not in seen:
            steps.append(step)
        seen.add(row.name)

    read = partial(read_graph, external=asked.external, most=asked.most)
    if isinstance(model, Graph):
        graph = model
    else:
        graph = keep_state(read(model, asked.dims, asked.values), asked.kept)
    graph = simplify(graph, watch)
    watch(STAGES, graph, lower(graph))
    prepared = prepare_with(graph, asked, watch)
    results = search_schedules(prepared, plan, wisdom=asked.wisdom)
    schedules = {key: result.schedule for key, result in results.items()}
    seconds = {key: result.predicted for key, result in results.items()}
    fuse_with_schedules(prepared, schedules, seconds, plan, {}, watch)
    return tuple(steps)


def find_steps(steps: tuple[PassStep, ...], name: str) -> list[PassStep]:
    """Return the steps of one pass. Raises SpecError for a name that no pass has."""
    names = [row.name for row in all_passes()]
    if name not in names:
        raise SpecError(f"pass {name!r}: expected one of {', '.join(names)}{suggest(name, names)}")
    return [step for step in steps if step.name == name]


def _lines(subject: object) -> tuple[str, ...]:
    """Return a line for each node or stage; of a placed program with the buffers of results."""
    if isinstance(subject, PlacedProgram):
        return tuple(subject.lines())
    assert isinstance(subject, Graph | Program)
    return tuple(subject.lines())
