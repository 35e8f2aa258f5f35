"""Problem: the interface of every operator to the rest of the program."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self, runtime_checkable

import numpy as np
from numpy.lib.stride_tricks import as_strided

from polysci.border.arguments import check_clamp, check_type
from polysci.border.guard import guard
from polysci.errors import SpecError
from polysci.loop_ir.nodes import LoopFunction
from polysci.numerics.blocks import decode_blocks, round_blocks
from polysci.numerics.dtypes import DType, precision_named, values
from polysci.numerics.scalar_functions import apply_numpy
from polysci.ops.textbook import scop_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from polysci.polyhedral.contraction import Contraction

Shape = tuple[int, ...]
Kind = Literal["constant", "activation", "result"]


@dataclass(frozen=True, slots=True)
class ProblemOperand:
    """An array that a call works on: its name there, its kind, its shape and named axes.

    A ``constant`` is packed ahead of the calls. An ``activation`` changes from call to call: what
    a schedule packs of it is packed inside the call. The ``result`` is written.
    """

    name: str
    kind: Kind
    shape: Shape
    axes: str


@runtime_checkable
class Problem(Protocol):
    """An operator with everything fixed: ``y = x * w``, summed as its loop nest says.

    ``parse_problem(str(problem), problem.layout) == problem``. Every operator inherits from this
    class, and defines what has no body here.
    """

    __slots__ = ()

    @property
    def name(self) -> str:
        """The name that the user gave it; may be empty."""

    @property
    def multiplicity(self) -> int:
        """Tell how often the network repeats it."""

    @property
    def layout(self) -> str:
        """The order of the axes in memory; empty where the operator leaves no choice."""

    @property
    def dtype(self) -> str: ...

    @property
    def activation(self) -> str:
        """A row of ACTIVATIONS, applied to ``y + bias + residual`` before a clamp; or empty."""
        return ""

    @property
    def key(self) -> str:
        """The identity of the computation, without name and multiplicity."""

    @property
    def flops(self) -> int:
        """Twice the multiply-adds of the whole nest."""

    @property
    def multiplied_flops(self) -> int:
        """Those whose factors are inside their arrays: products with padding are left out."""
        return self.flops

    @property
    def terms(self) -> int:
        """Products summed into one element of y."""

    @property
    def factors(self) -> tuple[float, float]:
        """alpha and beta: of the sums, and of the residual that a call adds."""
        return 1.0, 1.0

    @property
    def dense(self) -> Self:
        """The problem with weights as numbers of f32, where these are blocks; else itself."""
        return self

    @property
    def x_shape(self) -> Shape: ...

    @property
    def w_shape(self) -> Shape: ...

    @property
    def y_shape(self) -> Shape: ...

    @property
    def bias_axis(self) -> int:
        """The axis of y along which a bias, one value a position, is added."""

    @property
    def batched(self) -> bool:
        """Tell whether axis 0 of x and y counts images, of which a call may have none."""

    @property
    def axes(self) -> Mapping[str, str]:
        """Names of the axes of ``x``, ``w``, ``bias`` and ``y``, for messages."""

    @property
    def w_kind(self) -> Kind:
        """The kind of w: a ``constant``, packed ahead, or an ``activation``, packed in the call."""

    def __hash__(self) -> int:
        return hash(self.key)

    def arrays(self) -> dict[str, tuple[Shape, Shape]]:
        """Return the nest's arrays: logical shape, and strides in elements as they are stored."""

    def nest(self) -> LoopFunction:
        """Return the textbook loop nest."""

    def with_(self, **changes: Any) -> Self:
        """Return a copy with some fields changed."""

    def with_batch(self, batch: int) -> Self:
        """Return a copy with another extent of the batch. Raises SpecError where there is none."""
        return self.with_(N=batch)

    def sums(self, x: NDArray[Any], w: NDArray[Any]) -> NDArray[Any]:
        """Return y as the nest says, by NumPy's matrix products of strided views.

        x and w share a dtype, in which sums are formed.
        """
        from polysci.polyhedral.contraction import contract  # islpy takes 200 ms

        y = np.zeros(self.y_shape, x.dtype)
        if y.size and x.size:
            roles, arrays = _sums_of(self), self.arrays()
            contract(roles, *(
                _logical(array, *arrays[operand.array])
                for operand, array in ((roles.a, x), (roles.b, w), (roles.out, y))
            ))  # fmt: skip
        return y

    @guard
    def reference(
        self,
        x: NDArray[Any],
        w: NDArray[Any],
        bias: NDArray[Any] | None = None,
        residual: NDArray[Any] | None = None,
        clamp: tuple[float, float] | None = None,
    ) -> NDArray[Any]:
        """``clip(activation(alpha * sums + bias + beta * residual), *clamp)`` by NumPy, as ``x``.

        Operands as the precision stores them are widened first: integers to int64, narrow reals to
        float64. Raises TypeError for what is no array of numbers, ValueError for another shape.
        """
        if self.dense is not self:
            check_type("w", w, np.ndarray)
            if w.dtype != precision_named(self.dtype).w.numpy or w.shape != self.w_shape:
                raise TypeError(f"w: expected {self.w_shape} blocks of {self.dtype}, got {w.dtype}")
            if (row := precision_named(self.dtype).w).rounds_x:
                _check_array("x", x, self.x_shape)
                x = round_blocks(x, row.block)
            return self.dense.reference(x, decode_blocks(w), bias, residual, clamp)
        arrays = {"x": x, "w": w, "bias": bias, "residual": residual}
        for name, shape in input_shapes(self).items():
            if arrays[name] is not None or name in ("x", "w"):
                _check_array(name, arrays[name], shape)
        bounds = None if clamp is None else check_clamp(clamp)
        precision = precision_named(self.dtype)
        x, w = _widen(x, precision.x), _widen(w, precision.w)
        (alpha, beta), y = self.factors, self.sums(x, w.astype(x.dtype, copy=False))
        if alpha != 1:
            y = y * y.dtype.type(alpha)
        if bias is not None:
            y += bias.reshape(bias_shape(self))
        if residual is not None:
            added = _widen(residual, precision.y)
            y += added if beta == 1 else added * added.dtype.type(beta)
        if self.activation:
            y = apply_numpy(self.activation, y.astype(np.float64)).astype(y.dtype)
        return y if bounds is None else np.clip(y, *bounds, out=y, casting="unsafe")

    def check_memory(self, available: int | None = None) -> None:
        """Raise SpecError if the arrays need more bytes than ``available``.

        The default is this machine's physical memory.
        """
        precision = precision_named(self.dtype)
        items = {"x": precision.x.bytes, "w": precision.w.bytes, "y": precision.y.bytes}
        sizes = {
            operand.name: items[operand.name] * math.prod(operand.shape)
            for operand in operands(self)
        }
        physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        limit = physical if available is None else available
        if sum(sizes.values()) > limit:
            text = ", ".join(f"{name} {bytes_} bytes" for name, bytes_ in sizes.items())
            raise SpecError(f"{self}: {text} are beyond the {limit} bytes of memory")


def _check_array(name: str, array: Any, shape: Shape) -> None:
    """Raise TypeError or ValueError unless it is an array of this shape that holds numbers."""
    check_type(name, array, np.ndarray)
    if array.dtype.kind not in "iuf":
        raise TypeError(f"{name}: expected real numbers, got {array.dtype}")
    if array.shape != shape:
        raise ValueError(f"{name}: expected shape {shape}, got {array.shape}")


@lru_cache(maxsize=64)
def _sums_of(problem: Problem) -> Contraction:
    """Return the contraction that a problem's nest is."""
    from polysci.polyhedral.contraction import contraction

    return contraction(scop_of(problem.nest()))


def _logical(array: NDArray[Any], shape: Shape, strides: Shape) -> NDArray[Any]:
    """Return a view of an array as the nest subscripts it; ``strides`` count elements."""
    stored = np.ascontiguousarray(array)
    return as_strided(stored, shape, [stored.itemsize * stride for stride in strides])


def _widen(array: NDArray[Any], element: DType) -> NDArray[Any]:
    """Return an array stored as ``element``, widened for sums; other arrays as they are."""
    if array.dtype != element.numpy or element.name == "f32":
        return array
    return values(array, element).astype(np.int64 if element.integer else np.float64)


def operands(problem: Problem) -> tuple[ProblemOperand, ...]:
    """x, w and y: x is read as it lies or packed in the call, w is always read from panels."""
    axes = problem.axes
    return (
        ProblemOperand("x", "activation", problem.x_shape, axes["x"]),
        ProblemOperand("w", problem.w_kind, problem.w_shape, axes["w"]),
        ProblemOperand("y", "result", problem.y_shape, axes["y"]),
    )


def check_text(problem: str, field: str, value: object) -> str:
    """``value`` as a str of printable text. Raises TypeError or SpecError."""
    if not isinstance(value, str):
        raise TypeError(f"{problem}: {field} must be a str, got {type(value).__name__}")
    bad = next((c for c in value if not c.isprintable()), None)
    if bad is not None:
        raise SpecError(f"{problem}: {field} holds {bad!r}; a {field} is printable text")
    return str(value)


def row_strides(shape: Shape) -> Shape:
    """Strides in elements of an array stored contiguously, the last axis fastest."""
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


def bias_shape(problem: Problem) -> Shape:
    """Return the shape in which a bias is added to y: its extent on its axis, 1 on the others."""
    shape = [1] * len(problem.y_shape)
    shape[problem.bias_axis] = problem.y_shape[problem.bias_axis]
    return tuple(shape)


def input_shapes(problem: Problem) -> dict[str, Shape]:
    """Shapes of x, w, bias and residual."""
    return {
        "x": problem.x_shape,
        "w": problem.w_shape,
        "bias": (problem.y_shape[problem.bias_axis],),
        "residual": problem.y_shape,
    }
