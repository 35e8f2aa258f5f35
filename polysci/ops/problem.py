"""What an operator offers to the rest of the program, whichever operator it is."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol, Self, runtime_checkable

from polysci.errors import SpecError
from polysci.numerics.dtypes import precision_named

if TYPE_CHECKING:
    from numpy.typing import NDArray

Shape = tuple[int, ...]


@runtime_checkable
class Problem(Protocol):
    """An operator with everything fixed: ``y = x * w``, summed as its loop nest says.

    ``parse_problem(str(problem), problem.layout) == problem``.
    """

    @property
    def name(self) -> str:
        """What the user calls it; may be empty."""

    @property
    def multiplicity(self) -> int:
        """How often the network repeats it."""

    @property
    def layout(self) -> str:
        """The order of the axes in memory; empty where the operator leaves no choice."""

    @property
    def dtype(self) -> str: ...

    @property
    def key(self) -> str:
        """What identifies the computation, name and multiplicity left out."""

    @property
    def flops(self) -> int:
        """Twice the multiply-adds of the whole nest."""

    @property
    def terms(self) -> int:
        """Products summed into one element of y."""

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
        """Whether axis 0 of x and y counts images, of which a call may have none."""

    @property
    def axes(self) -> Mapping[str, str]:
        """Names of the axes of ``x``, ``w``, ``bias`` and ``y``, for messages."""

    def __hash__(self) -> int: ...

    def arrays(self) -> dict[str, tuple[Shape, Shape]]:
        """The nest's arrays: logical shape, and strides in elements as they are stored."""

    def nest(self) -> Any:
        """The textbook loop nest, as ``extract`` takes it."""

    def reference(
        self,
        x: NDArray[Any],
        w: NDArray[Any],
        bias: NDArray[Any] | None = None,
        residual: NDArray[Any] | None = None,
        clamp: tuple[float, float] | None = None,
    ) -> NDArray[Any]:
        """``clip(y + bias + residual, *clamp)`` by NumPy in the dtype of ``x``."""

    def check_memory(self, available: int | None = None) -> None:
        """Raise SpecError if the arrays need more bytes than ``available``."""

    def with_(self, **changes: Any) -> Self:
        """A copy with some fields changed."""


def bias_shape(problem: Problem) -> Shape:
    """The shape in which a bias is added to y: its extent on its axis, 1 on the others."""
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


def check_memory(problem: Problem, available: int | None) -> None:
    """Raise SpecError if the arrays of a problem need more bytes than ``available``.

    The default is this machine's physical memory.
    """
    precision = precision_named(problem.dtype)
    items = {"I": precision.x.bytes, "W": precision.w.bytes, "O": precision.y.bytes}
    sizes = {
        name: items.get(name, precision.x.bytes) * math.prod(shape)
        for name, (shape, _) in problem.arrays().items()
    }
    limit = physical_memory() if available is None else available
    if sum(sizes.values()) > limit:
        told = ", ".join(f"{name} {bytes_} bytes" for name, bytes_ in sizes.items())
        raise SpecError(f"{problem}: {told} are beyond the {limit} bytes of memory")


def physical_memory() -> int:
    """Bytes of this machine's memory."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
