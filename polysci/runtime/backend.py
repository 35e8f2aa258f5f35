"""A backend: the memory of one kind of device, how code is built for it, loaded, run and timed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from polysci.errors import BuildError
from polysci.loop_ir.interface import Role, function_name
from polysci.loop_ir.nodes import EMPTY, LoopModule
from polysci.numerics.arrays import Array
from polysci.numerics.quantization import Scales
from polysci.target.target import Target

Argument = Any  # what a function of a device takes: a number, or where data lie in its memory


class DeviceLibrary(Protocol):
    """Code that is loaded on a device, and the memory that its functions work on.

    A device may share the host's memory; then an argument points to an array itself, and nothing is
    copied. An argument keeps alive what it stands for.
    """

    @property
    def path(self) -> Path: ...

    @property
    def null(self) -> Argument:
        """The argument for an operand that is left out."""

    def function(self, name: str) -> Callable[..., Any]:
        """Return what launches a function and waits for its end. BuildError where it lacks."""

    def copy_in(self, kind: str) -> Callable[[Array], Argument]:
        """Return what copies arrays of an element type to the device and gives the arguments."""

    def allocator(
        self, shape: tuple[int, ...], dtype: Any, kind: str
    ) -> Callable[[Argument], tuple[Array, Argument]]:
        """Return what makes arrays for results, each with the argument of its memory.

        It takes the argument of what is read while a result is written.
        """

    @property
    def copy_out(self) -> Callable[[Argument, Array], None] | None:
        """Return what copies a result to its array; None where the memory is shared."""

    @property
    def write(self) -> Callable[[Argument, Array], None] | None:
        """Return what copies an array to an argument's memory; None where the memory is shared."""

    def part(self, argument: Argument, start: int, size: int) -> Argument:
        """Return the argument of so many bytes of a buffer; ``start`` is a multiple of 4096."""

    def scales(self, scales: Scales, by_channel: Array) -> Argument:
        """Return the argument of the scales of an integer result."""


class DeviceNetwork(Protocol):
    """A network that is loaded on a device, with its weights; sizes are in bytes.

    ``run`` takes a context and the arguments of inputs and outputs; ``run_at`` addresses of the
    device's memory instead, which is the host's where that is shared, None where it has none.
    """

    @property
    def library(self) -> DeviceLibrary: ...

    @property
    def model_bytes(self) -> int: ...

    @property
    def context_bytes(self) -> int: ...

    @property
    def run(self) -> Callable[..., Any]: ...

    @property
    def run_at(self) -> Callable[..., Any] | None: ...

    def on(self, stream: int) -> DeviceNetwork:
        """Return the network whose runs a queue of the caller's takes, and nobody waits for.

        ``stream`` is its handle; a device without queues has the network itself.
        """

    def entry(self, symbol: str, sizes: Sequence[int] = ()) -> DeviceNetwork:
        """Return the network whose runs are of another program of the library, or of other sizes.

        Weights are the same; ``SYMBOL_run`` takes the contexts of all programs, and then ``sizes``.
        """

    def context(self) -> Argument:
        """Return memory for the tensors of one run at a time. Raises MemoryError."""

    def packed_weights(self) -> memoryview:
        """Return constants and packed weights, as the code reads them."""

    def reset(self, context: Argument) -> None:
        """Give the state of a context the values that it has before the first run."""

    def state(self, context: Argument, size: int) -> Array:
        """Return the first ``size`` bytes of a context's state where they lie, valid with it."""

    def tensors(self, context: Argument, size: int) -> Array | None:
        """Return ``size`` bytes of a context's tensors; None where they share memory."""

    def stage_times(self, context: Argument, stages: int) -> list[float]:
        """Return when each stage of the context's last run began, and when the last ended."""


@dataclass(frozen=True, slots=True)
class Occupancy:
    """The share of a compute unit that a file's kernels of groups take, at most.

    ``groups`` run there at a time; ``registers`` are those of a work-item; ``spilled`` are the
    bytes that registers do not hold, and ``shared`` those of a group's memory.
    """

    groups: int
    registers: int
    spilled: int
    shared: int


class Backend(Protocol):
    """The device descriptions of one kind of device, and what builds, loads, runs and times code.

    ``name`` is its row in ``runtime.backends.BACKENDS``, which targets and worker processes name.
    ``measured`` says whether ``measure.worker`` checks and times the code of layers. ``compiler``
    identifies in records what builds it. ``occupancy`` returns what the groups of a built file take
    of a compute unit; it is None where nothing tells.
    """

    @property
    def name(self) -> str: ...

    @property
    def measured(self) -> bool: ...

    @property
    def compiler(self) -> str: ...

    @property
    def occupancy(self) -> Callable[[Path], Occupancy] | None: ...

    def targets(self) -> tuple[Target, ...]:
        """Return the devices that are there, the best first."""

    def build(
        self,
        text: str | Sequence[str],
        *,
        flags: Sequence[str] | None = None,
        symbols: Sequence[str] = (),
        timeout: float | None = None,
        module: LoopModule = EMPTY,
    ) -> Path:
        """Return the file that a source text, or several linked, compile to; built at most once.

        It defines the functions ``symbols``. The compiler may take ``timeout`` seconds. ``module``
        is the loop IR that the C texts were printed from, for a device with another language.
        """

    def build_many(
        self,
        texts: Sequence[str],
        *,
        jobs: int = 2,
        symbols: Sequence[Sequence[str]] = (),
        meanwhile: Callable[[], None] = lambda: None,
        modules: Sequence[LoopModule] = (),
    ) -> list[Path]:
        """Build every text, ``jobs`` compilers at a time; paths in the texts' order.

        ``symbols``: the functions that each of them defines; ``meanwhile``: what this process does
        while compilers run; ``modules``: the loop IR of each, as ``build`` takes it.
        """

    def assemble(self, texts: Sequence[str], *, flags: Sequence[str] | None = None) -> list[str]:
        """Return the assembly of each source text, made with the flags of ``build``."""

    def load(self, path: Path, declarations: str) -> DeviceLibrary:
        """Return a built file, loaded, whose functions ``declarations`` declare."""

    def load_network(
        self, path: Path, name: str, declarations: str, weights: Sequence[Array] | Path
    ) -> DeviceNetwork:
        """Return the network ``name`` of a built file; ``weights``: their file, or its arrays."""

    def is_argument(self, argument: object) -> bool:
        """Return whether functions of the device take it for a place in memory."""

    def restore(self, array: Array) -> Argument:
        """Return the argument of packed weights that a pickle held."""

    def time(self, run: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]) -> float:
        """Return the mean seconds of a call of ``run``, one with each of ``arguments``."""


@dataclass(frozen=True, slots=True)
class LoadedFunctions:
    """A loaded primitive's functions (they take arguments of its device) and its sizes in bytes.

    ``run`` and ``pack`` take what ``loop_ir.interface.functions`` lists; ``run`` returns ``OK`` or
    ``NO_ISA`` and releases the GIL. ``library`` keeps the code loaded.
    """

    library: DeviceLibrary
    run: Callable[..., int]
    pack: Callable[..., None]
    workspace_size: int
    packed_size: int


def bind(library: DeviceLibrary, symbol: str) -> LoadedFunctions:
    """The functions of one primitive of a library loaded with its ``interface.declarations``.

    Raises ``BuildError`` where the library lacks one or a size is negative.
    """

    def function(role: Role) -> Any:
        return library.function(function_name(role, symbol))

    functions = LoadedFunctions(
        library,
        function("run"),
        function("pack_weights"),
        function("workspace_size")(),
        function("packed_size")(),
    )
    if functions.workspace_size < 0 or functions.packed_size < 0:
        raise BuildError(
            f"{library}: {symbol}: a negative size of workspace ({functions.workspace_size}) "
            f"or of packed weights ({functions.packed_size})"
        )
    return functions
