"""The options of a compiled network: what callers ask for, and what its plan depends on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any, Final

from polysci.border.arguments import as_int, check_callable, check_texts, check_type, check_whole
from polysci.errors import SpecError
from polysci.graph.passes.rounded_weights import check_weights
from polysci.graph.state import KeptState
from polysci.ops.problem import Problem
from polysci.program.passes.fused_updates import AUTO
from polysci.runtime.backends import backend_named, device_named
from polysci.target.host import detect
from polysci.target.machine import Machine, assume_rates
from polysci.target.target import HOST, Target
from polysci.text.names import suggest
from polysci.tune import Progress, Result, TunerOptions, check_options
from polysci.tune.calibrate import load_rates
from polysci.tune.wisdom import Wisdom

Watch = Callable[[Problem, Progress | Result], None]  # the steps of a search, then its result
_NOTHING: Final = type(None)
_TYPES: Final[Mapping[str, tuple[type, ...]]] = MappingProxyType(
    {
        "algorithm": (str,),
        "dtype": (str,),
        "optimize": (str,),
        "update": (str,),
        "weights": (str,),
        "dims": (Mapping, _NOTHING),
        "most": (Mapping, _NOTHING),
        "values": (Mapping, _NOTHING),
        "name": (str, _NOTHING),
        "reproducible": (bool,),
        "verify": (bool,),
        "external": (bool,),
        "fuse": (bool,),
        "flush_denormals": (bool,),
        "keep_dtype": (bool,),
        "machine": (Machine, _NOTHING),
        "device": (str, _NOTHING),
        "state": (Mapping, _NOTHING),
        "positions": (str,),
        "mask": (str,),
    }
)


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """Options on which schedules and code depend, with the instruction set chosen.

    They are the search's level and algorithm, threads, the element type between layers and the
    machine. ``flush_denormals``: a run takes numbers below the smallest normal one for 0.
    ``machine`` has the rates of one that need not be this one; nothing is measured then.
    """

    level: str
    threads: int
    dtype: str
    algorithm: str
    target: Target
    flush_denormals: bool = True
    machine: Machine | None = None
    reproducible: bool = False

    @property
    def rates(self) -> Machine:
        """The rates of the machine, as far as they are known."""
        return self.machine or machine_for(self.target)

    @property
    def times_networks(self) -> bool:
        """Tell whether whole networks are timed: not on a device, nor for a described machine."""
        return self.target.backend == HOST and not self.machine

    @property
    def times_stages(self) -> bool:
        """Tell whether stages are timed: where code for the target runs."""
        return backend_named(self.target.backend).measured and not self.machine


@dataclass(frozen=True, slots=True)
class CompileOptions:
    """The options of ``compile_network``.

    ``level``, ``algorithm`` and ``reproducible`` as ``optimize`` takes them, for every layer.
    ``dims`` binds free dimensions by their name or as ``INPUT.AXIS``, ``values`` inputs to
    constants, such as a sample rate or a shape; ``external`` allows files of weights beside it.
    ``dtype`` ``bf16`` keeps weights and tensors between layers in bf16, inputs and outputs in f32,
    unless f32 is measured to be faster (if neither ``reproducible`` nor ``keep_dtype``), as the
    network's ``dtype`` says. ``time_limit``: seconds for all layers. ``flush_denormals``: runs take
    numbers below 2^-126 (of f64: 2^-1022) for 0. ``optimize="memory"`` orders nodes so that tensors
    take least memory at a time. ``update``: gradients of recurrent weights are summed in every step
    (``fused``), by one product behind all of them (``diffused``), or as the model decides
    (``auto``). ``flags`` are the compiler's. ``verify``: code that never ran here runs once in a
    process of its own. A ``tuner``, as of ``optimize``, chooses for the whole network. ``watch``
    hears of each layer's search, ``progress`` of how many there are, and of the tuner's. Networks
    for a ``machine``, which need not be this one, are planned and do not run. ``device``: the name
    of the one that runs it, as ``opencl:0``, whose compute units share all work; an architecture,
    as ``cuda:sm_80``, has its code compiled, and calls are refused. ``weights``: the type in which
    constant weights of products of matrices are stored, ``bf16``, ``int8``, ``int4`` or one of
    blocks, as ``u4x32``; kernels multiply f32. With ``int4a8``, ``u4a8x32`` and the like they
    multiply inputs rounded to 8 bits, and with ``a8`` these beside weights that are narrow already.
    ``state``, ``positions`` and ``mask``: inputs that the network keeps or makes itself, as
    ``KeptState`` has them. ``most`` bounds sizes that data decides, as the iterations of a loop or
    the length of a result, by the name of a tensor: a run that needs more raises SizeError. Raises
    TypeError or SpecError for an option that is none.
    """

    level: str = "measure"
    threads: int = 1
    dtype: str = "f32"
    dims: Mapping[str, int] | None = None
    values: Mapping[str, Any] | None = None
    external: bool = False
    algorithm: str = "direct"
    target: Target | None = None
    isa: str | None = None
    wisdom: Wisdom | None = None
    name: str | None = None
    fuse: bool = True
    time_limit: float | None = None
    watch: Watch | None = None
    flags: Sequence[str] | None = None
    flush_denormals: bool = True
    optimize: str = "speed"
    update: str = AUTO
    reproducible: bool = False
    verify: bool = True
    tuner: str | TunerOptions | None = None
    keep_dtype: bool = False
    machine: Machine | None = None
    progress: Callable[[Progress], None] | None = None
    device: str | None = None
    weights: str = "f32"
    state: Mapping[str, str] | None = None
    positions: str = ""
    mask: str = ""
    most: Mapping[str, int] | None = None

    def __post_init__(self) -> None:
        for option, kinds in _TYPES.items():
            check_type(option, getattr(self, option), *kinds)
        for name, size in (self.dims or {}).items():
            if isinstance(size, Sequence):
                raise SpecError(f"dims: {name!r:.100}: one size, got {size!r:.100}; compile_sizes "
                                "takes several")  # fmt: skip
        for name, most in (self.most or {}).items():
            check_whole(f"most: {name!r:.100}", most, below=1 << 31)
        for option in ("dims", "most"):
            if (given := getattr(self, option)) is not None:
                sizes = {name: as_int(size) for name, size in given.items()}
                object.__setattr__(self, option, sizes)
        check_weights(self.weights)
        check_texts("flags", self.flags)
        check_callable("watch", self.watch)
        check_callable("progress", self.progress)
        check_options(self.level, self.threads, self.target, self.isa, self.wisdom, self.time_limit)
        check_device(self.device, self.threads, target=self.target, isa=self.isa,
                     machine=self.machine)  # fmt: skip

    @staticmethod
    def of(
        level: str | CompileOptions, threads: int, dtype: str, keywords: Mapping[str, Any]
    ) -> CompileOptions:
        """Return the options of a call, which gives them as a whole or one by one."""
        if isinstance(level, CompileOptions):
            if (threads, dtype) != (1, "f32") or keywords:
                name = next(iter(keywords), "threads" if threads != 1 else "dtype")
                raise TypeError(f"{name}: given twice, as CompileOptions has it")
            return level
        names = [field.name for field in fields(CompileOptions)]
        for name in keywords:
            if name not in names:
                raise TypeError(f"{name}: no option of a network{suggest(name, names)}")
        return CompileOptions(level, threads, dtype, **keywords)

    @property
    def kept(self) -> KeptState:
        """The inputs that the network keeps, or makes itself."""
        return KeptState(self.state or {}, self.positions, self.mask)

    def plan(self) -> PlanOptions:
        """Return the options on which schedules and code depend."""
        device = device_named(self.device or HOST)
        return PlanOptions(
            self.level, device.cores if device else self.threads, self.dtype, self.algorithm,
            device or self.target or detect(self.isa),
            self.flush_denormals, self.machine, self.reproducible,
        )  # fmt: skip


def check_device(device: str | None, threads: int, **descriptions: object) -> None:
    """Raise SpecError for options that a device has no use for."""
    if device in (None, HOST):
        return
    if threads != 1:
        raise SpecError(f"device {device}: its compute units share the work; leave out threads")
    for option, value in descriptions.items():
        if value is not None:
            raise SpecError(f"device {device}: it has its own description; leave out {option}")


def machine_for(target: Target) -> Machine:
    """Return the rates known of this machine, or assumed ones; nothing is measured for them."""
    return load_rates(target) or assume_rates(target)
