"""compile_network: a model, or a graph, to a callable and to its C."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, overload

from numpy.typing import NDArray

from polysci.border.arguments import check_path, check_type
from polysci.border.guard import guard, is_expected
from polysci.border.guard import report_of as report_of_error
from polysci.errors import SpecError, UnsupportedError
from polysci.frontends.layers.words import describes_model
from polysci.graph.graph import Graph
from polysci.network import network_cache
from polysci.network.build import (
    assembly_of,
    check_first_run,
    library_of,
    load_runner,
    runner_of,
)
from polysci.network.options import CompileOptions, PlanOptions, Watch
from polysci.network.pickling import dumps
from polysci.network.planned import PlannedNetwork, plan_network, with_names
from polysci.network.prepare import Model, PreparedNetwork, generate_code, graph_of, prepare
from polysci.network.profile import is_faster
from polysci.network.report import NetworkReport, report_of
from polysci.network.runner import Runner, TensorPort, array_of
from polysci.program.passes.table import PassChoices
from polysci.space.schedule import Schedule
from polysci.target.host import detect
from polysci.text import names
from polysci.text.tables import shorten
from polysci.tune import LEVELS, Progress, TunerOptions
from polysci.tune.tuners import options_of as tuner_options
from polysci.tune.wisdom import Wisdom
from polysci.version import __version__

Array = NDArray[Any]
_PLANNED: Final = ("prepared", "results", "schedules", "code")


@dataclass(slots=True)
class Network(PlannedNetwork):
    """A compiled network: ``y = net(x)``, or ``{name: y} = net({name: x})``.

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
        ValueError for arrays of another name, type or shape.
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
        """A function that runs the network on these very arrays, as they then are.

        For networks of some microseconds: arrays are checked once, and none is made. A bound run
        has memory of its own for tensors; it is for one thread at a time. Raises as calls do, and
        ValueError for an input that only a copy of can be read.
        """
        runner = self.runner
        arrays = runner.order(x)
        for port, array in zip(self.inputs, arrays, strict=True):
            if array is not array_of(port, x):
                raise ValueError(f"{port.name}: expected an aligned, C-contiguous numpy.ndarray")
        return runner.bind(runner.context(), arrays, runner.targets(out, arrays))

    def report(self) -> NetworkReport:
        """The time of every stage, measured now, and of the whole; ``str`` makes a table of it."""
        return report_of(self.code, self.runner, self.results, self.schedules, self.options)


@guard
def compile_network(
    model: Model | Graph,
    level: str = "measure",
    threads: int = 1,
    dtype: str = "f32",
    *,
    options: CompileOptions | None = None,
    **others: Any,
) -> Network:
    """Compile the network of an ONNX model: ``model`` is its path, a ModelProto or its bytes.

    Or it is a model of ``polysci.layers`` or its words (``mlp:1x64x10 act=relu``), a program of
    ``torch.export`` or its path (``model.pt2``), or the path of a tensor notation (``program.tc``).

    Options are the fields of ``CompileOptions``, as keywords, or one such value as ``options``.
    Raises TypeError or SpecError for other options, SpecError for other models, UnsupportedError
    with all nodes that cannot be computed, CheckError for code that crashes.
    """
    if options is None:
        options = CompileOptions(level, threads, dtype, **others)
    check_type("options", options, CompileOptions)
    model = check_path("model", model) if isinstance(model, PathLike) else model
    graph = (
        model if isinstance(model, Graph)
        else graph_of(model, options.dims, options.values, external=options.external)
    )  # fmt: skip
    plan, name = options.plan(), options.name
    title = _title_of(model) if name is None else names.project(name)
    prepared = partial(
        prepare, graph, fuse=options.fuse, target=plan.target, optimize=options.optimize,
        choices=PassChoices(update=options.update),
    )  # fmt: skip
    measures = LEVELS[options.level].measured != 0 or options.level == "wisdom-only"
    if not (measures or options.tuner is not None or options.watch):
        return _from_cache(graph, prepared, plan, title, options)
    plain = prepared("f32") if options.dtype == "bf16" else None
    return build_network(
        prepared(options.dtype), plan, title, wisdom=options.wisdom,
        time_limit=options.time_limit, watch=options.watch, flags=options.flags,
        verify=options.verify, plain=plain, tuner=tuner_options(options.tuner),
        progress=options.progress,
    )  # fmt: skip


def _title_of(model: object) -> str:
    """What files and symbols begin with."""
    stem = Path(model).stem if isinstance(model, str | PathLike) else "network"
    return names.project(str(model).split(":")[0].strip() if describes_model(model) else stem)


def _from_cache(
    graph: Graph, prepared: Callable[[str], PreparedNetwork], options: PlanOptions, title: str,
    asked: CompileOptions,
) -> Network:  # fmt: skip
    """Return a network for which nothing is measured, built now or by an earlier process."""
    start, wisdom, flags, verify = time.monotonic(), asked.wisdom, asked.flags, asked.verify
    words = (title, str(asked.fuse), str(asked.optimize), str(asked.update), repr(flags))
    key_of = partial(network_cache.key_of, graph, options, *words)
    kept = network_cache.load(key_of(), graph.constants, options, wisdom, verify=verify)
    if kept is None:
        ready = prepared(options.dtype)
        read = network_cache.ReadRecords.of(ready, options, wisdom)  # others may come meanwhile
        network = build_network(ready, options, title, wisdom=wisdom, flags=flags, verify=verify)
        library, key = network.runner.library.path, key_of()  # the machine's rates may be new
        network_cache.keep(key, network.code, library, graph.constants, network.summary, read)
        return network
    network = Network.__new__(Network)
    network.runner, network.known = kept
    network.options, network.seconds = options, time.monotonic() - start

    def plan() -> tuple[PlannedNetwork, Path]:
        planned = plan_network(prepared(options.dtype), options, title, wisdom=wisdom)
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
    """Schedules, C and library of a prepared network.

    ``plain`` is the same in f32: at a level that measures it is taken where a run is faster so, and
    ``time_limit`` is for both.
    """
    times = LEVELS[options.level].measured != 0 and not options.reproducible
    rival = plain if times else None
    if rival is not None and time_limit is not None:
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
    if rival is None:
        return network
    other = build_network(
        rival, replace(options, dtype="f32"), name, wisdom=wisdom, time_limit=time_limit,
        watch=watch, flags=flags, verify=verify, tuner=tuner, progress=progress,
    )  # fmt: skip
    chosen = other if is_faster(other.runner, network.runner) else network
    return replace(chosen, seconds=network.seconds + other.seconds)


def restore_network(name: str, pickled_by: str, isa: str, data: bytes) -> Network:
    """The network of a pickle: its C generated again, built or found in the cache.

    Raises SpecError where another version wrote it, UnsupportedError on a CPU that lacks the
    instruction set.
    """
    where, target = f"pickled network {name!r:.80}", detect()
    if pickled_by != __version__:
        raise SpecError(
            f"{where}: written by polysci {pickled_by}, and this is {__version__}: compile it again"
        )
    if reason := target.refusal(isa):
        raise UnsupportedError(f"{where} {reason}; compile it again")
    parts = pickle.loads(data)
    options = PlanOptions(**parts["options"], target=detect(isa))
    schedules = {key: Schedule.parse(text) for key, text in parts["schedules"].items()}
    code = generate_code(parts["prepared"].placed, schedules, name, options)
    return Network(
        parts["prepared"], parts["results"], schedules, code, options, parts["seconds"],
        runner_of(code),
    )  # fmt: skip


def rebuild_network(network: Network, *, apart: bool = False, timed: bool = False) -> Network:
    """The same schedules; ``apart`` and ``timed`` as ``code_of`` takes them."""
    code = generate_code(
        network.prepared.placed, network.schedules, network.name, network.options,
        apart=apart, timed=timed,
    )  # fmt: skip
    return replace(network, code=code, runner=runner_of(code, network.flags))
