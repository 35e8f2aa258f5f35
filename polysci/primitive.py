"""A compiled operator as a Python callable: NumPy in, NumPy out, every argument checked."""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from polysci import abi, aligned, arguments
from polysci.aligned import F32
from polysci.build.library import Library
from polysci.errors import PolysciError, UnsupportedError
from polysci.measure import Measurement
from polysci.ops.conv2d import Conv2d

Floats = NDArray[np.float32]

_ndarray: Final = np.ndarray


@dataclass(frozen=True, slots=True, eq=False)
class PackedWeights:
    """Weights in the order that one schedule reads; ``identity`` names problem and schedule."""

    identity: str
    array: Floats

    def __repr__(self) -> str:
        return f"PackedWeights({self.identity!r}, {self.array.nbytes} bytes)"


class Primitive:
    """One problem, compiled: ``y = primitive(x, primitive.pack_weights(w))``.

    ``schedule``, ``source`` and ``measurement`` say how it works, what was compiled and how fast
    it was. Calls release the GIL and may run in several threads at once.
    """

    __slots__ = (
        "_axes",
        "_ffi",
        "_floats",
        "_functions",
        "_identity",
        "_null",
        "_shapes",
        "_workspaces",
        "library",
        "measurement",
        "problem",
        "schedule",
        "source",
        "symbol",
    )

    def __init__(
        self,
        problem: Conv2d,
        schedule: object,
        source: object,
        library: Library,
        symbol: str,
        measurement: Measurement | None = None,
    ) -> None:
        self.problem = problem
        self.schedule = schedule
        self.source = source
        self.library = library
        self.symbol = symbol
        self.measurement = measurement
        self._functions = abi.bind(library, symbol)
        self._identity = f"{problem.key} {schedule}"
        y_shape, layout = tuple(problem.y_shape), problem.layout.upper()
        self._shapes: dict[str, tuple[int, ...]] = {
            "x": tuple(problem.x_shape),
            "w": tuple(problem.w_shape),
            "bias": (problem.K,),
            "residual": y_shape,
            "out": y_shape,
        }
        self._axes = {"x": layout, "w": "K C/groups R S", "bias": "K", "residual": layout}
        self._axes["out"] = layout
        self._ffi: Any = library.ffi
        self._floats = self._ffi.typeof("float[]")
        self._null = self._ffi.NULL
        self._workspaces: list[tuple[Floats, Any]] = []

    def __repr__(self) -> str:
        return f"Primitive({self.problem}, {self.schedule})"

    def pack_weights(self, w: Floats) -> PackedWeights:
        """Bring ``w`` (K, C/groups, R, S) into the order that calls need; do it once.

        Raises ``TypeError`` or ``ValueError`` as calls do.
        """
        w = self._array("w", w)
        packed = aligned.empty([-(-self._functions.packed_size // 4)])
        self._functions.pack(self._pointer(w), self._pointer(packed))
        packed.flags.writeable = False
        return PackedWeights(self._identity, packed)

    def __call__(
        self,
        x: Floats,
        wp: PackedWeights,
        *,
        bias: Floats | None = None,
        residual: Floats | None = None,
        clamp: tuple[float, float] | None = None,
        activation: str | None = None,
        out: Floats | None = None,
    ) -> Floats:
        """Compute ``clamp(conv(x, w) + bias + residual)`` into ``out`` or a new, aligned array.

        ``x`` and ``residual`` (like y) in the problem's layout, ``bias`` (K), all f32 and
        C-contiguous; ``clamp=(lo, hi)``, or ``activation="relu"`` for (0, inf). An ``x`` with no
        images gives an empty result. ``out`` may be ``residual`` itself, which then is copied
        first; it may overlap nothing else.

        Raises ``TypeError`` (no array, other dtype or byte order, unpacked weights) or
        ``ValueError`` (shape, strides, overlap, read-only ``out``, another schedule's weights),
        naming argument, expected and got; ``UnsupportedError`` if this CPU lacks the ISA.
        """
        source = self._array("x", x)
        if type(wp) is not PackedWeights or wp.identity != self._identity:
            raise self._wrong_weights(wp)
        if not source.size:
            return self._nothing(bias, residual, out)
        if bias is not None:
            bias = self._array("bias", bias)
        if residual is not None:
            residual = self._array("residual", residual)
        limits = self._null
        if clamp is not None or activation is not None:
            limits = self._ffi.new("float[2]", arguments.limits(clamp, activation))
        if out is None:
            y = aligned.empty(self._shapes["out"])
            self._run(source, wp, y, bias, residual, limits)
            return y
        residual = self._apart(out, x, wp, bias, residual)
        y = out if out.flags.aligned else aligned.empty(out.shape)
        self._run(source, wp, y, bias, residual, limits)
        if y is not out:
            out[...] = y
        return out

    def _run(
        self,
        x: Floats,
        wp: PackedWeights,
        y: Floats,
        bias: Floats | None,
        residual: Floats | None,
        limits: Any,
    ) -> None:
        pointer, null = self._pointer, self._null
        try:
            workspace = self._workspaces.pop()
        except IndexError:  # more calls under way than ever before
            memory = aligned.empty([-(-self._functions.workspace_size // 4)])
            workspace = (memory, pointer(memory))
        status = self._functions.run(
            pointer(x),
            pointer(wp.array),
            pointer(y),
            null if bias is None else pointer(bias),
            null if residual is None else pointer(residual),
            limits,
            workspace[1],
        )
        self._workspaces.append(workspace)
        if status:
            raise self._failure(status)

    def _pointer(self, array: Floats) -> Any:
        return self._ffi.from_buffer(self._floats, array)

    def _array(self, name: str, array: Floats) -> Floats:
        """The array itself if the C code can take it, a copy if it is only misaligned."""
        shape = self._shapes[name]
        if type(array) is _ndarray and array.dtype is F32 and array.shape == shape:
            flags = array.flags
            if flags.c_contiguous and flags.aligned:
                return array
        if name == "x" and getattr(array, "shape", None) == (0, *shape[1:]):
            shape = (0, *shape[1:])
        return arguments.readable(name, array, shape, self._axes[name])

    def _apart(
        self,
        out: Floats,
        x: Floats,
        wp: PackedWeights,
        bias: Floats | None,
        residual: Floats | None,
    ) -> Floats | None:
        """Check ``out``; returns the residual, copied if it is ``out`` itself.

        A schedule that splits the reduction writes partial sums to y before it reads the residual,
        so in place it needs a copy.
        """
        arguments.check_writable("out", out, self._shapes["out"], self._axes["out"])
        arguments.check_apart(out, {"x": x, "wp": wp.array, "bias": bias})
        if residual is None:
            return None
        if residual.ctypes.data == out.ctypes.data:
            return aligned.copy(residual)
        arguments.check_apart(out, {"residual": residual})
        return residual

    def _nothing(
        self, bias: Floats | None, residual: Floats | None, out: Floats | None
    ) -> Floats:
        """The result for no images; the other arguments are checked all the same."""
        shape = (0, *self._shapes["out"][1:])
        if bias is not None:
            self._array("bias", bias)
        if residual is not None:
            arguments.readable("residual", residual, shape, self._axes["residual"])
        if out is None:
            return aligned.empty(shape)
        arguments.check_writable("out", out, shape, self._axes["out"])
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
        if status == abi.NO_ISA:
            return UnsupportedError(
                f"{self!r}: this CPU lacks the instruction set it was generated for; compile it "
                "again on this machine"
            )
        return PolysciError(f"{self!r}: {self.symbol} returned {status}, expected {abi.OK}")
