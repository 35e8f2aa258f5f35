"""A compiled operator as a Python callable: NumPy in, NumPy out, every argument checked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from polysci.border.arguments import check_type, describe
from polysci.border.guard import guard, is_expected, report_of
from polysci.errors import PolysciError, SpecError, UnsupportedError
from polysci.loop_ir.interface import NO_ISA, OK
from polysci.loop_ir.nodes import LoopModule
from polysci.lower.algorithm import SYMBOL
from polysci.numerics import arrays
from polysci.numerics.arrays import Array
from polysci.numerics.dtypes import F32, precision_named
from polysci.numerics.quantization import Scales
from polysci.ops.problem import Problem, input_shapes
from polysci.ops.registry import parse_problem
from polysci.printers import interface
from polysci.printers.interface import KEEP_FLAG
from polysci.runtime import arguments
from polysci.runtime import measurement as measurements
from polysci.runtime.backend import DeviceLibrary, bind
from polysci.runtime.backends import backend_named
from polysci.runtime.build.compiler import default_flags
from polysci.runtime.measurement import Measurement
from polysci.runtime.source import Source, emit
from polysci.space.schedule import Schedule
from polysci.target.microkernels import find
from polysci.target.target import HOST
from polysci.text.tables import shorten
from polysci.version import __version__

_ndarray: Final = np.ndarray  # one look-up less a call
may_share_memory: Final = np.may_share_memory


@dataclass(frozen=True, slots=True, eq=False)
class PackedWeights:
    """Weights in the order that one schedule reads; ``identity`` names problem and schedule.

    A pickle holds their bytes, for this version of polysci alone.
    """

    identity: str
    array: Array
    pointer: Any
    backend: str = HOST

    def __post_init__(self) -> None:
        """Raises TypeError for what no ``pack_weights`` has made: C code follows the pointer."""
        check_type("identity", self.identity, str)
        check_type("array", self.array, _ndarray)
        if not backend_named(self.backend).is_argument(self.pointer):
            raise TypeError(
                f"pointer: expected one of backend {self.backend}, got {describe(self.pointer)}"
            )

    def __repr__(self) -> str:
        return f"PackedWeights({shorten(self.identity, 240)!r}, {self.array.nbytes} bytes)"

    def __reduce__(self) -> tuple[Any, ...]:
        return restore_weights, (self.identity, __version__, self.array, self.backend)


class Primitive:
    """One problem, compiled: ``y = primitive(x, primitive.pack_weights(w))``.

    ``schedule``, ``source`` and ``measurement`` say how it works, what was compiled and how fast
    it was; ``ir`` and ``asm`` are its code before and behind the source. Calls release the GIL and
    may run in several threads at once; ``flush_denormals``: they take numbers below 2^-126 for 0. A
    pickle holds problem, schedule and measurement as text; loading it builds the C again, or raises
    UnsupportedError where the CPU lacks the ISA.
    """

    __slots__ = (
        "_activation",
        "_axes",
        "_batched",
        "_buffers",
        "_compute",
        "_copy_out",
        "_identity",
        "_last_limits",
        "_last_scales",
        "_new",
        "_null",
        "_numpy",
        "_pack",
        "_packed_shape",
        "_pointers",
        "_precision",
        "_shapes",
        "_types",
        "_wide",
        "_workspace_shape",
        "_workspaces",
        "backend",
        "flush_denormals",
        "library",
        "measurement",
        "problem",
        "schedule",
        "source",
        "symbol",
        "threads",
    )

    def __init__(
        self,
        problem: Problem,
        schedule: Schedule,
        source: Source,
        library: DeviceLibrary,
        symbol: str,
        measurement: Measurement | None = None,
        threads: int = 1,
        flush_denormals: bool = True,
        backend: str = HOST,
    ) -> None:
        self.problem = problem
        self.schedule = schedule
        self.source = source
        self.backend = backend
        self.library = library
        self.symbol = symbol
        self.measurement = measurement
        self.threads, self.flush_denormals = threads, flush_denormals
        functions = bind(library, symbol)
        self._compute, self._pack = functions.run, functions.pack
        self._workspace_shape = (-(-functions.workspace_size // 4),)
        self._packed_shape = (-(-functions.packed_size // 4),)
        self._precision = precision_named(problem.dtype)
        self._types = {
            **{"x": self._precision.x, "w": self._precision.w, "bias": self._precision.sum},
            **{"residual": self._precision.y, "out": self._precision.y},
        }
        self._numpy = {name: dtype.numpy for name, dtype in self._types.items()}
        self._identity = f"{problem.key} {schedule}"
        self._shapes = input_shapes(problem) | {"out": problem.y_shape}
        self._axes = {name: problem.axes.get(name, problem.axes["y"]) for name in self._shapes}
        self._batched = problem.batched
        self._activation = problem.w_kind == "activation"
        # The pointer keeps its array alive; a sum made from it does not.
        kinds = {dtype.stored for dtype in self._types.values()} | {F32.stored}
        self._buffers = {kind: library.copy_in(kind) for kind in kinds}
        self._pointers = {name: self._buffers[dtype.stored] for name, dtype in self._types.items()}
        self._wide = self._buffers[F32.stored]  # of packed weights and workspace
        self._null = library.null
        self._copy_out = library.copy_out
        out = self._types["out"]
        self._new = library.allocator(problem.y_shape, out.numpy, out.stored)
        self._last_limits: tuple[tuple[Any, Any], Any] = ((None, None), self._null)
        self._last_scales: tuple[Scales | None, Any] = None, None
        self._workspaces: list[tuple[Array, Any]] = []

    def __repr__(self) -> str:
        texts = shorten(str(self.problem), 120), shorten(str(self.schedule), 120)
        return f"Primitive({', '.join(map(repr, texts))})"

    def __reduce__(self) -> tuple[Any, ...]:
        problem, measured = self.problem, self.measurement
        state = str(problem), problem.layout, problem.dtype, str(self.schedule), self.threads
        flush = self.flush_denormals, self.backend
        return restore_primitive, (*state, measured and str(measured), *flush)

    @property
    def ir(self) -> LoopModule:
        """The loop IR that the source is printed from; ``str`` of it is readable text."""
        return self.source.module

    @property
    def asm(self) -> str:
        """The assembly of the source, by the compiler and flags of its build, made when asked for.

        Raises BuildError where the compiler fails.
        """
        return assemble_primitive(
            self.source, flush_denormals=self.flush_denormals, backend=self.backend
        )

    @guard
    def pack_weights(self, w: Array, x_zero: int = 0) -> PackedWeights:
        """Bring ``w`` (of a convolution: K, C/groups, R, S) into the order that calls need, once.

        ``x_zero`` is what x holds for zero, where it holds whole numbers. Raises ``TypeError`` or
        ``ValueError`` as calls do.
        """
        if self._activation:
            raise UnsupportedError(f"{self!r}: w changes from call to call: pass it to the call")
        w = self._array("w", w)
        zero = self._zero_point(x_zero)
        packed = arrays.reserve(self._packed_shape)
        pointer = self._wide(packed)
        self._pack(self._pointers["w"](w), pointer, *zero)
        if self._copy_out:
            self._copy_out(pointer, packed)
        packed.flags.writeable = False
        return PackedWeights(self._identity, packed, pointer, self.backend)

    def __call__(
        self,
        x: Array,
        wp: PackedWeights | Array,
        *,
        bias: Array | None = None,
        residual: Array | None = None,
        clamp: tuple[float, float] | None = None,
        activation: str | None = None,
        scales: Scales | None = None,
        out: Array | None = None,
    ) -> Array:
        """Compute ``clamp(x * w + bias + residual)`` into ``out`` or a new, aligned array.

        ``wp`` is what ``pack_weights`` made of w; where w is an activation (``problem.w_kind``), w
        itself, which the call packs.

        ``x`` and ``residual`` (like y) in the problem's layout, ``bias`` (K), all C-contiguous and
        of the problem's types: the bias is f32, or s32 in units of the sums where x is whole. bf16
        is its bits in uint16. ``clamp=(lo, hi)``, or ``activation="relu"`` for (0, inf). ``scales``
        turn whole sums into 8-bit results (default: scale 1, zero points 0). A convolution of no
        images gives an empty result. ``out`` may be ``residual`` itself, which then is copied
        first; it may overlap nothing else.

        Raises ``TypeError`` (no array, other dtype or byte order, unpacked weights) or
        ``ValueError`` (shape, strides, overlap, read-only ``out``, another schedule's weights),
        naming argument, expected and got; ``UnsupportedError`` if this CPU lacks the ISA.
        """
        try:  # as ``guard`` does, in a tenth of its time
            return self._call(x, wp, bias, residual, clamp, activation, scales, out)
        except Exception as error:
            if is_expected(error):
                raise
            raise report_of(error) from error

    def _call(
        self,
        x: Array,
        wp: PackedWeights | Array,
        bias: Array | None,
        residual: Array | None,
        clamp: tuple[float, float] | None,
        activation: str | None,
        scales: Scales | None,
        out: Array | None,
    ) -> Array:
        """Call the code with the arguments of ``__call__``, which says what they are."""
        pointers, null = self._pointers, self._null
        source = self._array("x", x)
        if type(wp) is not PackedWeights or wp.identity != self._identity:
            wp = self._plain(wp)
        if not source.size:
            if self._batched:
                return self._nothing(bias, residual, out)
            source, w = (np.zeros((1, *x.shape[1:]), x.dtype) for x in (source, wp.array))
            w_at = pointers["w"](w)  # of the code's one image
            wp = PackedWeights(self._identity, w, w_at, self.backend)
        limits = null
        if clamp is not None or activation is not None:
            limits = self._limits(clamp, activation)
        bias_at = null if bias is None else pointers["bias"](self._array("bias", bias))
        keep = () if scales is None and not self._precision.scaled else self._scales(scales)
        if residual is not None:
            residual = self._array("residual", residual)
        if out is None:
            y, y_at = self._new(pointers["x"](source))
        else:
            target = self._target(out, source, wp, bias)
            if residual is not None and may_share_memory(target, residual):
                residual = _in_place(target, residual)
            y = target if target.flags.aligned else arrays.empty(target.shape, dtype=target.dtype)
            y_at = pointers["out"](arguments.view_bits(y, self._types["out"]))
        residual_at = null if residual is None else pointers["residual"](residual)
        self._run(pointers["x"](source), wp.pointer, y_at, bias_at, residual_at, limits, *keep[:1])
        if self._copy_out:
            self._copy_out(y_at, y)
        if out is None:
            return y
        if y is not target:
            target[...] = y
        return out

    def _plain(self, w: PackedWeights | Array) -> PackedWeights:
        """An activation as it lies, which the code packs itself. Raises for unpacked constants."""
        if not self._activation or isinstance(w, PackedWeights):
            raise self._wrong_weights(w)
        array = self._array("w", w)
        return PackedWeights(self._identity, array, self._pointers["w"](array), self.backend)

    def _run(self, *arguments: Any) -> None:
        try:
            workspace = self._workspaces.pop()
        except IndexError:  # more calls under way than ever before
            memory = arrays.reserve(self._workspace_shape)
            workspace = memory, self._wide(memory)
        status = self._compute(*arguments, workspace[1])
        self._workspaces.append(workspace)
        if status:
            raise self._failure(status)

    def _zero_point(self, x_zero: int) -> tuple[int, ...]:
        """Return the packing function's zero point. Raises ValueError for what x cannot hold."""
        integer = isinstance(x_zero, int | np.integer) and not isinstance(x_zero, bool)
        if not self._precision.integer:
            if not integer or x_zero:
                value = describe(x_zero)
                raise ValueError(f"x_zero: expected 0 for {self._precision}, got {value}")
            return ()
        limits = np.iinfo(self._precision.x.numpy)
        if not integer or not limits.min <= x_zero <= limits.max:
            expected = f"expected {limits.min} to {limits.max}, got {describe(x_zero)}"
            raise ValueError(f"x_zero: {expected}")
        return (int(x_zero),)

    def _scales(self, scales: Scales | None) -> Any:
        """A struct for C and what it points to; those of the last call if the same object asks."""
        if not self._precision.scaled:
            raise ValueError(
                f"scales: {self._precision} has no scaled results, got {describe(scales)}"
            )
        last, kept = self._last_scales
        if kept is not None and last is scales:
            return kept
        chosen = Scales() if scales is None else scales
        if not isinstance(chosen, Scales):
            raise TypeError(f"scales: expected polysci.Scales, got {type(scales).__name__}")
        values = chosen.by_channel(self._shapes["bias"][0])
        struct = self.library.scales(chosen, values)
        self._last_scales = scales, (struct, values)
        return struct, values

    def _limits(self, clamp: Any, activation: Any) -> Any:
        """Both bounds for C; those of the last call if the same immutable objects ask again."""
        last, limits = self._last_limits
        if last[0] is clamp and last[1] is activation:
            return limits
        bounds = arguments.merge_clamps(clamp, activation)
        limits = self._wide(np.array(bounds, np.float32))
        if clamp is None or (type(clamp) is tuple and {*map(type, clamp)} <= {int, float}):
            self._last_limits = (clamp, activation), limits
        return limits

    def _array(self, name: str, array: Array) -> Array:
        """Return the array itself if the C code can take it, a copy if it is only misaligned."""
        shape, dtype = self._shapes[name], self._numpy[name]
        if type(array) is _ndarray and array.dtype is dtype and array.shape == shape:
            flags = array.flags
            if flags.c_contiguous and flags.aligned:
                return array
        empty = (0, *shape[1:])
        if name == "x" and self._batched and isinstance(array, _ndarray) and array.shape == empty:
            shape = empty
        return arguments.check_input(name, array, shape, self._axes[name], self._types[name])

    def _target(self, out: Array, x: Array, wp: PackedWeights, bias: Array | None) -> Array:
        """Return the memory of ``out``, which may be written to and overlaps no operand."""
        shape = self._shapes["out"]
        usual = type(out) is _ndarray and out.dtype is self._numpy["out"] and out.shape == shape
        if not (usual and out.flags.carray):
            out = arguments.check_output("out", out, shape, self._axes["out"], self._types["out"])
        # Bounds decide: contiguous arrays have no gaps in which another could lie.
        if may_share_memory(out, x):
            raise arguments.overlap_error("x")
        if bias is not None and may_share_memory(out, bias):
            raise arguments.overlap_error("bias")
        if may_share_memory(out, wp.array):
            raise arguments.overlap_error("wp")
        return out

    def _nothing(self, bias: Array | None, residual: Array | None, out: Array | None) -> Array:
        """Return the result for no images; the other arguments are checked all the same."""
        shape = (0, *self._shapes["out"][1:])
        if bias is not None:
            self._array("bias", bias)
        if residual is not None:
            kind = self._types["residual"]
            arguments.check_input("residual", residual, shape, self._axes["residual"], kind)
        if out is None:
            return arrays.empty(shape, dtype=self._numpy["out"])
        arguments.check_output("out", out, shape, self._axes["out"], self._types["out"])
        return out

    def _wrong_weights(self, wp: object) -> Exception:
        if type(wp) is not PackedWeights:
            kind = f"{type(wp).__module__}.{type(wp).__qualname__}"
            return TypeError(f"wp: expected the result of pack_weights(w), got {kind}")
        return ValueError(
            f"wp: expected weights packed for {self._identity!r}, got weights packed for "
            f"{wp.identity!r}; use this primitive's pack_weights"
        )

    def _failure(self, status: int) -> PolysciError:
        if status == NO_ISA:
            return UnsupportedError(
                f"{self!r}: this CPU lacks the instruction set it was generated for; compile it "
                "again on this machine"
            )
        return PolysciError(f"{self!r}: {self.symbol} returned {status}, expected {OK}")


def _in_place(out: Array, residual: Array) -> Array:
    """Return a copy of the residual that is ``out`` itself; refuses any other overlap.

    A schedule that splits the reduction writes partial sums to y before it reads the residual.
    """
    if residual.ctypes.data != out.ctypes.data:
        raise arguments.overlap_error("residual")
    return arrays.copy(residual)


def build_primitive(source: Source, *, flush_denormals: bool = True, backend: str = HOST) -> Path:
    """Return the file of a source, built by a backend or found in the cache."""
    check_type("flush_denormals", flush_denormals, bool)
    flags = _flags(flush_denormals)
    return backend_named(backend).build(
        source.file, flags=flags, symbols=source.symbols, module=source.module
    )


def assemble_primitive(source: Source, *, flush_denormals: bool = True, backend: str = HOST) -> str:
    """Return the assembly of a source, by the compiler and flags that build it."""
    (text,) = backend_named(backend).assemble([source.file], flags=_flags(flush_denormals))
    return text


def _flags(flush_denormals: bool) -> tuple[str, ...] | None:
    """Return the flags of a build; None: the backend's own."""
    return None if flush_denormals else (*default_flags(), KEEP_FLAG)


def load_primitive(
    problem: Problem,
    source: Source,
    threads: int,
    measurement: Measurement | None = None,
    *,
    flush_denormals: bool = True,
    backend: str = HOST,
) -> Primitive:
    """Build (or find in the cache) and load the primitive of a source. Raises BuildError."""
    path = build_primitive(source, flush_denormals=flush_denormals, backend=backend)
    declarations = interface.declarations(SYMBOL, source.precision)
    library = backend_named(backend).load(path, declarations)
    return Primitive(
        problem, source.schedule, source, library, SYMBOL, measurement, threads, flush_denormals,
        backend,
    )  # fmt: skip


def restore_primitive(
    text: str,
    layout: str,
    dtype: str,
    schedule: str,
    threads: int,
    measurement: str | None,
    flush_denormals: bool = True,
    backend: str = HOST,
) -> Primitive:
    """Return the primitive of a pickle.

    Raises UnsupportedError where no device of the backend has the instruction set, and as ``emit``
    and ``build`` do.
    """
    problem, parsed = parse_problem(text, layout, dtype), Schedule.parse(schedule)
    target, *_ = backend_named(backend).targets()
    if reason := target.refusal(find(parsed.kernel).isa):
        raise UnsupportedError(
            f"pickled primitive of {text}: {parsed.kernel} {reason}; compile it again"
        )
    source = emit(problem if problem.x_shape[0] else problem.with_batch(1), parsed, threads)
    measured = None if measurement is None else measurements.parse(measurement)
    return load_primitive(
        problem, source, threads, measured, flush_denormals=flush_denormals, backend=backend
    )


def restore_weights(
    identity: str, packed_by: str, array: Array, backend: str = HOST
) -> PackedWeights:
    """Return the packed weights of a pickle. Raises SpecError where another version packed them."""
    if packed_by != __version__:
        raise SpecError(
            f"pickled weights for {identity!r}: packed by polysci {packed_by}, and this is "
            f"{__version__}: pack them again"
        )
    packed = arrays.reserve_copy(array)
    packed.flags.writeable = False
    return PackedWeights(identity, packed, backend_named(backend).restore(packed), backend)
