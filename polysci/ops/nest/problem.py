"""Nest: a contraction of f32 arrays, read from a loop nest in C."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from polysci.border.arguments import check_path, describe
from polysci.border.files import read_named
from polysci.border.guard import guard
from polysci.errors import SpecError
from polysci.loop_ir.nodes import LoopFunction
from polysci.numerics.dtypes import precision_named
from polysci.ops.nest import reference, text
from polysci.ops.problem import Kind, ProblemBase, Shape, row_strides
from polysci.ops.textbook import nest_of
from polysci.ops.words import Line, label
from polysci.text.lengths import cut_line

if TYPE_CHECKING:
    from cgen import Generable
    from numpy.typing import NDArray

    from polysci.polyhedral.contraction import Contraction

MAX_TEXT = 2000  # characters; a record of the wisdom holds twice as many


@dataclass(frozen=True, slots=True, init=False)
class Nest(ProblemBase):
    """``y = sum of x * w``: what the loop nest ``O[..] += A[..] * B[..]`` adds to its target.

    The nest accumulates into O; a primitive overwrites y with the sums. x is A, w is B (packed
    ahead) and y is O, each as its C array lies in memory: row by row. A is the first factor, or
    the second one if that alone slides like a window. A bias runs along the axis of O that the
    columns index, the one loop that O and B share without A. Where guards keep the subscripts of
    A inside its bounds, A counts as zero beyond them.
    """

    contraction: Contraction
    name: str
    multiplicity: int

    @guard
    def __init__(
        self,
        source: str | os.PathLike[str] | Generable,
        *,
        name: str | None = None,
        multiplicity: int = 1,
    ) -> None:
        """``source`` is the path of a C file, C text or a cgen tree, with one ``#pragma scop``.

        The text declares its arrays and ``#define``s its constants; it has one statement; the
        compiler's preprocessor evaluates its conditionals. A text of one line that ends in .c is a
        path. ``name`` defaults to that of the file. Raises
        SpecError where the C is unreadable or not affine, UnsupportedError where it is no
        contraction that polysci computes.
        """
        from polysci.ops.nest.normal import normal  # islpy and pycparser take 200 ms
        from polysci.polyhedral.extract import extract

        code, filename, stem = _source(source)
        nest = normal(extract(code, filename=filename))
        self._fill(nest, stem if name is None else name, multiplicity)

    @classmethod
    @guard
    def parse(cls, line: str, layout: str = "", dtype: str = "f32", *, where: str = "") -> Self:
        """The nest that ``str(nest)`` describes; white space between its words does not matter.

        A nest has no other ``layout`` than its arrays' own, and is computed in f32. Raises
        SpecError, with a caret under the offending part, or as ``Nest(...)`` does.
        """
        check_options(layout, dtype)
        from polysci.ops.model import scop_of  # islpy takes 200 ms, and only this needs it
        from polysci.ops.nest.normal import normal

        loops, name, multiplicity = text.read(Line(line, where))
        problem = object.__new__(cls)
        problem._fill(normal(scop_of(loops)), name, multiplicity)
        return problem

    def _fill(self, contraction: Contraction, name: str, multiplicity: int) -> None:
        values = {"contraction": contraction, "name": name, "multiplicity": multiplicity}
        for field, value in values.items():
            object.__setattr__(self, field, value)
        if not isinstance(name, str) or not name.isprintable():
            raise SpecError(f"Nest: name={describe(name)}: expected printable text")
        if type(multiplicity) is not int or multiplicity < 1:
            raise SpecError(
                f"Nest: multiplicity={describe(multiplicity)}: expected a positive integer"
            )
        if len(str(self)) > MAX_TEXT:
            raise SpecError(f"Nest: its text has {len(str(self))} characters: use shorter names")

    def __str__(self) -> str:
        named = label(self.name, self.multiplicity)
        return " ".join(filter(None, (text.write(self.contraction), named)))

    @property
    def key(self) -> str:
        """The identity of the computation: the text without the name, and the dtype."""
        return f"{text.write(self.contraction)} {self.dtype}"

    def with_(self, **changes: Any) -> Self:
        """A copy with another name or multiplicity. Raises SpecError for anything else."""
        values: dict[str, Any] = {"name": self.name, "multiplicity": self.multiplicity}
        if other := next((field for field in changes if field not in values), None):
            raise SpecError(
                f"Nest: {other}={describe(changes[other])}: only {' and '.join(values)} can be "
                "changed; the loops fix the rest"
            )
        copy = object.__new__(type(self))
        copy._fill(self.contraction, **values | changes)
        return copy

    @property
    def w_kind(self) -> Kind:
        """B is packed ahead."""
        return "constant"

    @property
    def layout(self) -> str:
        """Empty: the C arrays say how they lie in memory."""
        return ""

    @property
    def dtype(self) -> str:
        return "f32"

    @property
    def flops(self) -> int:
        """Twice the multiply-adds of the full nest; products with what guards cut are counted."""
        return 2 * self._points("m", "n", "k", "br", "batch")

    @property
    def multiplied_flops(self) -> int:
        """Twice the multiply-adds that guards do not drop."""
        from polysci.polyhedral.contraction import needed_products

        return 2 * needed_products(self.contraction)

    @property
    def terms(self) -> int:
        """Products summed into one element of y."""
        return self._points("k", "br")

    def _points(self, *roles: str) -> int:
        points = 1
        for dim in self.contraction.dims:
            points *= dim.extent if dim.role in roles else 1
        return points

    @property
    def x_shape(self) -> Shape:
        """Shape of A."""
        return self.contraction.a.shape

    @property
    def w_shape(self) -> Shape:
        """Shape of B."""
        return self.contraction.b.shape

    @property
    def y_shape(self) -> Shape:
        """Shape of O."""
        return self.contraction.out.shape

    @property
    def bias_axis(self) -> int:
        """The axis of O that the columns index."""
        from polysci.ops.nest.normal import column_axis

        return column_axis(self.contraction)

    @property
    def batched(self) -> bool:
        """No axis counts images."""
        return False

    @property
    def axes(self) -> Mapping[str, str]:
        """The elements of x, w and y as the nest writes them, and the subscript of a bias."""
        roles = self.contraction
        names = {"x": str(roles.a), "w": str(roles.b), "y": str(roles.out)}
        return names | {"bias": str(roles.out.index[self.bias_axis])}

    def arrays(self) -> dict[str, tuple[Shape, Shape]]:
        """The nest's arrays: shape, and strides in elements."""
        contraction = self.contraction
        return {
            operand.array: (operand.shape, row_strides(operand.shape))
            for operand in (contraction.out, contraction.a, contraction.b)
        }

    def nest(self) -> LoopFunction:
        """Return the loop nest, with the guards that it needs."""
        return nest_of(self.contraction)

    def sums(self, x: NDArray[Any], w: NDArray[Any]) -> NDArray[Any]:
        """Return the sums, by NumPy's matrix products of strided views."""
        return reference.contract(self.contraction, x, w)


def check_options(layout: str, dtype: str) -> None:
    """Raise SpecError for a layout or dtype that is not what every nest has."""
    if str(precision_named(dtype)) != "f32":
        raise SpecError(f"dtype {dtype!r}: a loop nest is computed in f32")
    if layout not in ("", "nhwc"):
        raise SpecError(f"layout {layout!r}: a loop nest has its arrays' own")


def _source(source: str | os.PathLike[str] | Generable) -> tuple[str | Generable, str, str]:
    """C text or a cgen tree, what to call it in messages, and the name of the file if it is one."""
    if isinstance(source, str) and ("\n" in source or not source.endswith(".c")):
        return source, "<nest>", ""
    if not isinstance(source, str | os.PathLike):
        return source, "<nest>", ""
    path = Path(source) if isinstance(source, str) else check_path("source", source)
    try:
        return read_named(path).decode("utf-8-sig"), str(path), path.stem
    except OSError as error:
        raise SpecError(f"{cut_line(path)}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise SpecError(f"{path}: not UTF-8 text: byte {error.start} is {error.reason}") from error
