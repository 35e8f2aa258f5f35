"""compile_network: a model, or a graph, to a callable and to its C."""

from __future__ import annotations

import logging
import pickle
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar, overload

from numpy.typing import NDArray

from polysci.border.arguments import check_path
from polysci.border.guard import guard, is_expected
from polysci.border.guard import report_of as report_of_error
from polysci.errors import PolysciError, SpecError, UnsupportedError
from polysci.frontends.table import front_end_of
from polysci.graph.graph import Graph
from polysci.graph.passes.table import simplify
from polysci.graph.state import keep_state
from polysci.loop_ir.nodes import LoopModule
from polysci.lower.registry import name_of, rounds_weights
from polysci.network.build import (
    assembly_of,
    check_first_run,
    library_of,
    load_runner,
    ports,
    runner_of,
)
from polysci.network.cache import (
    NetworkRecords,
    ReadRecords,
    digest_graph,
    dumps,
    keep_network,
    key_of_network,
    load_network,
)
from polysci.network.code import Code
from polysci.network.options import CompileOptions, PlanOptions, Watch
from polysci.network.prepare import (
    Model,
    PreparedNetwork,
    generate_code,
    graph_of,
    prepare_with,
    search_schedules,
)
from polysci.network.report import NetworkReport, is_faster, report_of
from polysci.network.runner import Runner, TensorPort, array_of
from polysci.network.state import NetworkState
from polysci.network.tuning import NetworkTuner, retune
from polysci.program.stages import problems
from polysci.runtime.backends import device_named
from polysci.space.schedule import Schedule
from polysci.target.host import detect
from polysci.target.isas import ISAS
from polysci.target.target import HOST
from polysci.text import names
from polysci.text.tables import shorten
from polysci.tune import LEVELS, Progress, Result, TunerOptions
from polysci.tune.result import highest_cost
from polysci.tune.tuners import options_of as tuner_options
from polysci.tune.wisdom import Wisdom
from polysci.version import __version__

_log = logging.getLogger(__name__)


_NARROW: Final = ("bf16", "float16", "int8", "uint8")


@dataclass(frozen=True, slots=True)
class NetworkSummary:
    """Facts about a network: its stages, predicted seconds of its layers, what errors depend on.

    ``narrow``: tensors have 16 bits or fewer, or a layer keeps its weights so; tensors of 8 bits
    may round the other way. ``direct``:
    all layers are computed as they are defined, none by a transform. ``any_order_cost``: as
    ``highest_cost`` has it, of reproducible sums.
    """

    stages: int
    predicted: float | None
    narrow: bool
    direct: bool
    any_order_cost: float | None = None


@dataclass(slots=True)
class PlannedNetwork:
    """The C of a network and what it consists of.

    ``prepared``, ``code``, and by the key of a problem ``schedules`` say what that is, ``results``
    what the searches of its layers found alone, ``options`` what it was asked for, ``seconds`` how
    long all of it took.
    """

    prepared: PreparedNetwork
    results: Mapping[str, Result]
    schedules: Mapping[str, Schedule]
    code: Code
    options: PlanOptions
    seconds: float
    known: NetworkSummary | None = field(default=None, kw_only=True)  # what ``summary`` would find

    @property
    def summary(self) -> NetworkSummary:
        """Facts that stay known where the network's stages are not at hand."""
        if self.known:
            return self.known
        program = self.prepared.program
        seconds = [result.predicted for result in self.results.values()]
        return NetworkSummary(
            len(program.stages),
            sum(seconds) if seconds else None,
            any(value.dtype in _NARROW for value in program.values.values())
            or any(rounds_weights(name_of(schedule)) for schedule in self.schedules.values()),
            all(schedule.transform is None for schedule in self.schedules.values()),
            highest_cost(self.results.values()),
        )

    @property
    def name(self) -> str:
        """The name in which files and symbols begin."""
        return self.code.name

    @property
    def threads(self) -> int:
        return self.options.threads

    @property
    def dtype(self) -> str:
        return self.options.dtype

    @property
    def ir(self) -> LoopModule:
        """The loop IR of all stages and layers; ``str`` of it is readable text."""
        return self.code.module

    @property
    def source(self) -> str:
        """The C files one after the other, a comment with the file's name above each."""
        return with_names(self.code.files)

    @property
    def inputs(self) -> tuple[TensorPort, ...]:
        return ports(self.code)[0]

    @property
    def outputs(self) -> tuple[TensorPort, ...]:
        return ports(self.code)[1]


def with_names(texts: Mapping[str, str]) -> str:
    """Return texts of files one after the other, a comment with the file's name above each."""
    return "\n".join(f"/* {name} */\n{text}" for name, text in texts.items())


Planned = TypeVar("Planned", bound=PlannedNetwork)


def use_pool(network: Planned, pool: str) -> Planned:
    """Return the network with code for threads that ``pool`` starts; here OpenMP's run it still."""
    if pool == network.code.pool:
        return network
    code = generate_code(
        network.prepared.placed, network.schedules, network.name, network.options, pool=pool
    )
    return replace(network, code=code)


def plan_network(
    prepared: PreparedNetwork,
    options: PlanOptions,
    name: str,
    *,
    wisdom: Wisdom | None = None,
    time_limit: float | None = None,
    watch: Watch | None = None,
    tuner: TunerOptions | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> PlannedNetwork:
    """Choose schedules and generate the C of a prepared network.

    A ``tuner`` begins with what that is without one, has half of the time, and tells ``progress``.
    """
    start = time.monotonic()
    if tuner and options.target.backend != HOST:
        raise UnsupportedError(f"{options.target.backend}: no tuner times networks on a device")
    store = wisdom if wisdom is not None else Wisdom()
    if tuner is None and not options.machine:
        recorded = _find_recorded(prepared, options, name, store)
        if recorded is not None:
            return replace(recorded, seconds=time.monotonic() - start)
    until = None if time_limit is None else start + time_limit
    results = search_schedules(
        prepared, options, wisdom=wisdom, watch=watch,
        time_limit=time_limit / 2 if time_limit and tuner else time_limit,
    )  # fmt: skip
    whole, chosen = retune(prepared, results, options, name, wisdom)
    if tuner is None:
        code = generate_code(whole.placed, chosen, name, options)
    else:
        search = NetworkTuner(
            prepared, results, chosen, options, name, store, progress, until
        )  # fmt: skip
        tuned = search.run(tuner)
        whole, chosen, code = tuned.prepared, dict(tuned.schedules), tuned.code
    return PlannedNetwork(whole, results, chosen, code, options, time.monotonic() - start)


def _find_recorded(
    prepared: PreparedNetwork, options: PlanOptions, name: str, wisdom: Wisdom
) -> PlannedNetwork | None:
    """Return the network that an earlier tuner chose, if that still works."""
    try:
        texts = NetworkRecords(prepared.graph, options, wisdom).best()
        if texts is None:
            return None
        results = search_schedules(prepared, replace(options, level="estimate"), wisdom=wisdom)
        chosen = {key: result.schedule for key, result in results.items()}
        tuned = NetworkTuner(prepared, results, chosen, options, name, wisdom).network_of(texts)
    except PolysciError as error:
        _log.warning("ignoring the record of %s: %s", name, error)
        return None
    schedules = dict(tuned.schedules)
    return PlannedNetwork(tuned.prepared, results, schedules, tuned.code, options, 0.0)


Array = NDArray[Any]
_PLANNED: Final = ("prepared", "results", "schedules", "code")


@dataclass(slots=True)
class Network(PlannedNetwork):
    """A compiled network: ``y = net(x)``, or ``{name: y} = net({name: x})``.

    What a run leaves in its ``state`` the next one reads, of a network that has some: its runs are
    a sequence, one at a time, which ``reset`` begins anew and ``sequence`` another.

    ``seconds`` is how long it took to search, generate and build, ``flags`` are the compiler's if
    not the usual ones. ``ir``, ``source`` and ``asm``
    are its code as loop IR, C and assembly. A pickle holds problems,
    schedules and weights, for this version of polysci alone; loading it builds the C again.
    """

    runner: Runner
    plan: Callable[[], tuple[PlannedNetwork, Path]] | None = field(default=None, kw_only=True)
    flags: Sequence[str] | None = field(default=None, kw_only=True)

    if not TYPE_CHECKING:  # of a network from the cache, planned when somebody looks at it

        def __getattr__(self, name: str) -> Any:
            if name not in _PLANNED or self.plan is None:
                raise AttributeError(name)
            planned, library = self.plan()
            for other in _PLANNED:
                setattr(self, other, getattr(planned, other))
            if library != self.runner.library.path:  # records changed meanwhile
                self.runner = load_runner(self.code, library)
            return getattr(self, name)

    def __repr__(self) -> str:
        inputs = ", ".join(f"{port.name} {port.dtype}{[*port.shape]}" for port in self.inputs)
        stages = len(self.prepared.program.stages)
        return (
            f"Network({shorten(self.name)!r}, {stages} stages, inputs={shorten(inputs)!r}, "
            f"{len(self.outputs)} outputs, dtype={self.dtype!r}, threads={self.threads}, "
            f"level={self.options.level!r})"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        options = self.options
        if self.prepared.program.resizes:
            raise UnsupportedError(
                f"network {self.name}: a pickle holds a network of one size; compile it again"
            )
        parts = {
            "prepared": self.prepared,
            "results": dict(self.results),
            "schedules": {key: str(schedule) for key, schedule in self.schedules.items()},
            "options": {
                "level": options.level,
                "threads": options.threads,
                "dtype": options.dtype,
                "algorithm": options.algorithm,
                "flush_denormals": options.flush_denormals,
                "reproducible": options.reproducible,
            },
            "seconds": self.seconds,
            "device": options.target.backend,
        }
        return restore_network, (self.name, __version__, options.target.isa.name, dumps(parts))

    @property
    def inputs(self) -> tuple[TensorPort, ...]:
        return self.runner.inputs  # every call asks for them

    @property
    def outputs(self) -> tuple[TensorPort, ...]:
        return self.runner.outputs

    @property
    def asm(self) -> str:
        """The assembly of its C files, by the compiler and flags of its build, made when asked for.

        A comment with the file's name stands above each. Raises BuildError.
        """
        return with_names(assembly_of(self.code, self.flags))

    @overload
    def __call__(
        self, x: Mapping[str, Array], out: Mapping[str, Array] | None = None
    ) -> dict[str, Array]: ...

    @overload
    def __call__(self, x: Array, out: Array | Mapping[str, Array] | None = None) -> Any: ...

    def __call__(self, x: Any, out: Any = None) -> Any:
        """Run it, into ``out`` or new arrays.

        ``out`` is an array, or a mapping by name, and then what a call returns. Raises TypeError or
        ValueError for arrays of another name, type or shape, SizeError where data
        asks for more than was compiled for.
        """
        try:  # as ``guard`` does, in a tenth of its time
            return self.runner.call(x, out)
        except Exception as error:
            if is_expected(error):
                raise
            raise report_of_error(error) from error

    @guard
    def bind(
        self, x: Array | Mapping[str, Array], out: Array | Mapping[str, Array]
    ) -> Callable[[], None]:
        """Return a function that runs the network on these very arrays, as they then are.

        For networks of some microseconds: arrays are checked once, and none is made. A bound run
        has memory of its own for tensors; it is for one thread at a time. Raises as calls do, and
        ValueError for an input that only a copy of can be read.
        """
        runner = self.runner
        arrays = runner.order(x)
        for port, array in zip(self.inputs, arrays, strict=True):
            if array is not array_of(port, x):
                raise ValueError(f"{port.name}: expected an aligned, C-contiguous numpy.ndarray")
        results = runner.targets(out, arrays)
        run = runner.bind(runner.lasting_context(), arrays, results)
        if not any(port.most for port in self.outputs):
            return run

        def run_checked() -> None:
            run()
            runner.check_sizes(results)

        return run_checked

    @property
    def state(self) -> NetworkState:
        """Tensors that a run leaves to the next one, by name, to read and to replace."""
        return NetworkState(self.runner)

    @guard
    def reset(self) -> None:
        """Begin anew: give the state the values that it has before the first run."""
        self.runner.reset()

    @guard
    def sequence(self) -> Network:
        """Return this network with state of its own, as it is before the first run."""
        return self.with_runner(self.runner.sequence())

    def with_runner(self, runner: Runner) -> Network:
        """Return this network with other runs; what is not planned yet stays so."""
        other = Network.__new__(Network)
        for part in fields(self):
            with suppress(AttributeError):
                setattr(other, part.name, object.__getattribute__(self, part.name))
        other.runner = runner
        return other

    def report(self) -> NetworkReport:
        """Measure the time of every stage and of the whole; ``str`` of the result is a table."""
        return report_of(self.code, self.runner, self.results, self.schedules, self.options)


@guard
def compile_network(
    model: Model | Graph,
    level: str | CompileOptions = "measure",
    threads: int = 1,
    dtype: str = "f32",
    **keywords: Any,
) -> Network:
    """Compile the network of an ONNX model: ``model`` is its path, a ModelProto or its bytes.

    Or it is a model of ``polysci.layers`` or its words (``mlp:1x64x10 act=relu``), a program of
    ``torch.export`` or its path (``model.pt2``), or the path of a tensor notation (``program.tc``).

    Options are the fields of ``CompileOptions``, as keywords; such a value in place of ``level``
    has all of them. Raises TypeError or SpecError for other options, SpecError for other models,
    UnsupportedError with all nodes that cannot be computed, CheckError for code that crashes.
    """
    options = CompileOptions.of(level, threads, dtype, keywords)
    if options.machine:
        raise SpecError("machine: nothing runs on a described machine, and a network runs")
    model = check_path("model", model) if isinstance(model, PathLike) else model
    if isinstance(model, Graph) and options.most:
        raise SpecError("most: a graph has its sizes; give them where it is read")
    graph = (
        simplify(keep_state(model, options.kept)) if isinstance(model, Graph) and options.kept
        else model if isinstance(model, Graph)
        else graph_of(model, options.dims, options.values, external=options.external,
                      weights=options.weights, kept=options.kept, device=options.device,
                      most=options.most)
    )  # fmt: skip
    plan, name = options.plan(), options.name
    title = title_of(model) if name is None else names.project(name)
    measures = LEVELS[options.level].measured != 0
    looks_up = measures or options.level == "wisdom-only"
    if not (looks_up or options.tuner is not None or options.watch):
        return _from_cache(graph, plan, title, options)
    prepared, plain = prepare_with(graph, options), None
    if measures and options.dtype == "bf16" and not (options.reproducible or options.keep_dtype):
        plain = prepare_with(graph, replace(options, dtype="f32"))
    if options.progress:
        networks = [prepared] if plain is None else [prepared, plain]
        layers = sum(len(problems(network.program)) for network in networks)
        options.progress(Progress("layers", 0, layers))
    return build_network(
        prepared, plan, title, wisdom=options.wisdom,
        time_limit=options.time_limit, watch=options.watch, flags=options.flags,
        verify=options.verify, plain=plain, tuner=tuner_options(options.tuner),
        progress=options.progress,
    )  # fmt: skip


def title_of(model: object) -> str:
    """Return the name in which files and symbols begin."""
    return names.project(front_end_of(model).title(model))


def _from_cache(graph: Graph, options: PlanOptions, title: str, asked: CompileOptions) -> Network:
    """Return a network for which nothing is measured, built now or by an earlier process."""
    start, wisdom, flags, verify = time.monotonic(), asked.wisdom, asked.flags, asked.verify
    key_parts = (title, str(asked.fuse), str(asked.optimize), str(asked.update), repr(flags))
    key_of = partial(key_of_network, digest_graph(graph), options, *key_parts)
    kept = load_network(key_of(), graph.constants, options, wisdom, verify=verify)
    if kept is None:
        ready = prepare_with(graph, asked)
        read = ReadRecords.of(ready, options, wisdom)  # others may come meanwhile
        network = build_network(ready, options, title, wisdom=wisdom, flags=flags, verify=verify)
        library, key = network.runner.library.path, key_of()  # the machine's rates may be new
        keep_network(key, network.code, library, graph.constants, asdict(network.summary), read)
        return network
    network = Network.__new__(Network)
    network.runner, known = kept
    network.known = NetworkSummary(**known)
    network.options, network.seconds = options, time.monotonic() - start

    def plan() -> tuple[PlannedNetwork, Path]:
        planned = plan_network(prepare_with(graph, asked), options, title, wisdom=wisdom)
        return planned, library_of(planned.code, flags)

    network.plan, network.flags = plan, flags
    return network


def build_network(
    prepared: PreparedNetwork,
    options: PlanOptions,
    name: str,
    *,
    wisdom: Wisdom | None = None,
    time_limit: float | None = None,
    watch: Watch | None = None,
    flags: Sequence[str] | None = None,
    verify: bool = True,
    plain: PreparedNetwork | None = None,
    tuner: TunerOptions | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Network:
    """Choose schedules and build the library of a prepared network.

    ``plain`` is the same in f32: it is taken where a run is faster so, and ``time_limit`` is for
    both.
    """
    if plain is not None and time_limit is not None:
        time_limit /= 2
    planned = plan_network(
        prepared, options, name, wisdom=wisdom, time_limit=time_limit, watch=watch, tuner=tuner,
        progress=progress,
    )  # fmt: skip
    start = time.monotonic()
    library = library_of(planned.code, flags)
    if verify:
        check_first_run(planned.code, library, options.threads)
    runner = load_runner(planned.code, library)
    network = Network(
        planned.prepared, planned.results, planned.schedules, planned.code, options,
        planned.seconds + time.monotonic() - start, runner, flags=flags,
    )  # fmt: skip
    if plain is None:
        return network
    other = build_network(
        plain, replace(options, dtype="f32"), name, wisdom=wisdom, time_limit=time_limit,
        watch=watch, flags=flags, verify=verify, tuner=tuner, progress=progress,
    )  # fmt: skip
    chosen = other if is_faster(other.runner, network.runner) else network
    return replace(chosen, seconds=network.seconds + other.seconds)


def restore_network(name: str, pickled_by: str, isa: str, data: bytes) -> Network:
    """Return the network of a pickle: its C generated again, built or found in the cache.

    Raises SpecError where another version wrote it, UnsupportedError on a CPU that lacks the
    instruction set.
    """
    where = f"pickled network {name!r:.80}"
    if pickled_by != __version__:
        raise SpecError(
            f"{where}: written by polysci {pickled_by}, and this is {__version__}: compile it again"
        )
    named = isa if isa in ISAS and ISAS[isa].experimental else None
    if isa in ISAS and (reason := detect(named).refusal(isa)):
        raise UnsupportedError(f"{where} {reason}; compile it again")
    parts = pickle.loads(data)
    target = device_named(parts["device"]) or detect(isa)
    if target.refusal(isa):
        raise UnsupportedError(f"{where} needs {isa}, and {parts['device']} has {target.isa}")
    options = PlanOptions(**parts["options"], target=target)
    schedules = {key: Schedule.parse(text) for key, text in parts["schedules"].items()}
    code = generate_code(parts["prepared"].placed, schedules, name, options)
    return Network(
        parts["prepared"], parts["results"], schedules, code, options, parts["seconds"],
        runner_of(code),
    )  # fmt: skip


def rebuild_network(network: Network, *, apart: bool = False, timed: bool = False) -> Network:
    """Return a network of the same schedules.

    ``apart`` and ``timed`` are as ``generate_code`` takes them.
    """
    code = generate_code(
        network.prepared.placed, network.schedules, network.name, network.options,
        apart=apart, timed=timed,
    )  # fmt: skip
    return replace(network, code=code, runner=runner_of(code, network.flags))
