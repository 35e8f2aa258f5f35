"""compile_network: a model, or a graph, to a callable and to its C."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, overload

from numpy.typing import NDArray

from polysci.border.arguments import check_callable, check_path, check_texts, check_type
from polysci.border.guard import guard, is_expected
from polysci.border.guard import report_of as report_of_error
from polysci.errors import SpecError, UnsupportedError
from polysci.frontends.layers.words import describes_model
from polysci.graph.graph import Graph
from polysci.network import network_cache
from polysci.network.build import library_of, load_runner, runner_of
from polysci.network.element_type import is_faster
from polysci.network.network_process import check_first_run
from polysci.network.pickling import dumps
from polysci.network.pipeline import PassChoices
from polysci.network.planned import PlannedNetwork, plan_network
from polysci.network.prepare import (
    CompileOptions,
    Model,
    PreparedNetwork,
    Watch,
    generate_code,
    graph_of,
    prepare,
)
from polysci.network.report import NetworkReport, report_of
from polysci.network.runner import Runner, TensorPort, array_of
from polysci.program.passes.fused_updates import AUTO
from polysci.space.schedule import Schedule
from polysci.target.host import detect
from polysci.target.target import Target
from polysci.text import names
from polysci.text.tables import shorten
from polysci.tune import LEVELS, Progress, TunerOptions, check_options
from polysci.tune.tuners import options_of as tuner_options
from polysci.tune.wisdom import Wisdom
from polysci.version import __version__

Array = NDArray[Any]
_PLANNED: Final = ("prepared", "results", "schedules", "code")


@dataclass(slots=True)
class Network(PlannedNetwork):
    """A compiled network: ``y = net(x)``, or ``{name: y} = net({name: x})``.

    ``seconds`` is how long it took to search, generate and build. A pickle holds problems,
    schedules and weights, for this version of polysci alone; loading it builds the C again.
    """

    runner: Runner
    plan: Callable[[], tuple[PlannedNetwork, Path]] | None = field(default=None, kw_only=True)

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
    dims: Mapping[str, int] | None = None,
    values: Mapping[str, Any] | None = None,
    external: bool = False,
    algorithm: str = "direct",
    target: Target | None = None,
    isa: str | None = None,
    wisdom: Wisdom | None = None,
    name: str | None = None,
    fuse: bool = True,
    time_limit: float | None = None,
    watch: Watch | None = None,
    flags: Sequence[str] | None = None,
    flush_denormals: bool = True,
    optimize: str = "speed",
    update: str = AUTO,
    reproducible: bool = False,
    verify: bool = True,
    tuner: str | TunerOptions | None = None,
) -> Network:
    """Compile the network of an ONNX model: ``model`` is its path, a ModelProto or its bytes.

    Or it is a model of ``polysci.layers`` or its words (``mlp:1x64x10 act=relu``), a program of
    ``torch.export`` or its path (``model.pt2``), or the path of a tensor notation (``program.tc``).

    ``level``, ``algorithm`` and ``reproducible`` as ``optimize`` takes them, for every layer.
    ``dims`` binds free dimensions by their name or as ``INPUT.AXIS``, ``values`` inputs to
    constants, such as a sample rate or a shape; ``external`` allows files of weights beside it.
    ``dtype`` ``bf16`` keeps weights and tensors between layers in bf16, inputs and outputs in f32,
    unless f32 is measured to be faster (if not ``reproducible``), as the network's ``dtype`` says.
    ``time_limit``: seconds for all layers. ``flush_denormals``: runs take numbers below 2^-126 (of
    f64: 2^-1022) for 0. ``optimize="memory"`` orders nodes so that tensors take least memory at a
    time. ``update``: gradients of recurrent weights are summed in every step (``fused``), by one
    product behind all of them (``diffused``), or as the model decides (``auto``). ``flags`` are the
    compiler's. ``verify``: code that never ran here runs once in a process of its own; CheckError
    if it crashes. A ``tuner``, as of ``optimize``, chooses for the whole network. SpecError for
    other models, UnsupportedError with all nodes that cannot be computed.
    """
    _check_options(locals())
    model = check_path("model", model) if isinstance(model, PathLike) else model
    graph = model if isinstance(model, Graph) else graph_of(model, dims, values, external=external)
    own, title = target or detect(isa), _title_of(model) if name is None else names.project(name)
    options = CompileOptions(
        level, threads, dtype, algorithm, own, flush_denormals, reproducible=reproducible
    )
    choices = PassChoices(update=update)
    prepared = partial(prepare, graph, fuse=fuse, target=own, optimize=optimize, choices=choices)
    if LEVELS[level].measured == 0 and level != "wisdom-only" and tuner is None and not watch:
        words = (title, str(fuse), str(optimize), str(update), repr(flags))
        return _from_cache(graph, prepared, options, words, wisdom, flags, verify)
    plain = prepared("f32") if dtype == "bf16" else None
    return build_network(
        prepared(dtype), options, title, wisdom=wisdom, time_limit=time_limit, watch=watch,
        flags=flags, verify=verify, tuner=tuner_options(tuner), plain=plain,
    )  # fmt: skip


def _title_of(model: object) -> str:
    """What files and symbols begin with."""
    stem = Path(model).stem if isinstance(model, str | PathLike) else "network"
    return names.project(str(model).split(":")[0].strip() if describes_model(model) else stem)


def _from_cache(
    graph: Graph, prepared: Callable[[str], PreparedNetwork], options: CompileOptions,
    words: Sequence[str], wisdom: Wisdom | None, flags: Sequence[str] | None,
    verify: bool,
) -> Network:  # fmt: skip
    """A network for which nothing is measured, planned and built now or by an earlier process."""
    start, title = time.monotonic(), words[0]
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

    network.plan = plan
    return network


_NOTHING: Final = type(None)
_OPTION_TYPES: Final[Mapping[str, tuple[type, ...]]] = MappingProxyType(
    {
        "algorithm": (str,),
        "dtype": (str,),
        "optimize": (str,),
        "update": (str,),
        "dims": (Mapping, _NOTHING),
        "values": (Mapping, _NOTHING),
        "name": (str, _NOTHING),
        "reproducible": (bool,),
        "verify": (bool,),
        "external": (bool,),
        "fuse": (bool,),
        "flush_denormals": (bool,),
    }
)


def _check_options(options: Mapping[str, Any]) -> None:
    """Raise TypeError for an option of another type, and what ``check_options`` raises."""
    for option, kinds in _OPTION_TYPES.items():
        check_type(option, options[option], *kinds)
    check_texts("flags", options["flags"])
    check_callable("watch", options["watch"])
    search = ("level", "threads", "target", "isa", "wisdom", "time_limit")
    check_options(*(options[option] for option in search))


def build_network(
    prepared: PreparedNetwork,
    options: CompileOptions,
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
        planned.seconds + time.monotonic() - start, runner,
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
    options = CompileOptions(**parts["options"], target=detect(isa))
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
    return replace(network, code=code, runner=runner_of(code))
