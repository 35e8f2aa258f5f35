"""Matmul: matrix products, one or a batch, of which either factor may be constant.

Text: ``mm:[BATCH:]MxKxN [a=constant | b=constant]`` and a name as in benchdnn's words. Both factors
change from call to call unless the text says otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np

from polysci.border.guard import guard
from polysci.errors import SpecError, UnsupportedError
from polysci.numerics.dtypes import precision_named
from polysci.ops.nest.text import Reference, c_text
from polysci.ops.problem import Kind, ProblemBase, Shape, check_text, row_strides
from polysci.ops.words import LIMIT, Line, ending, label

if TYPE_CHECKING:
    from numpy.typing import NDArray

WORD: Final = "mm"
RULE: Final = 'As in: mm:64x32x48, mm:8:64x32x48 b=constant n"name"'
CONSTANTS: Final = ("", "a", "b")
_SIZES: Final = ("M", "K", "N")
_NUMBER = re.compile(r"[0-9]+")
_CONSTANT = re.compile(r"\s+([ab])=constant(?=\s|\Z)")


@dataclass(frozen=True, slots=True)
class Matmul(ProblemBase):
    """``O[i,j] = sum over p of A[i,p] * B[p,j]``, of ``batch`` pairs of matrices if that is given.

    A is M x K, B is K x N, O is M x N, all stored row by row, the batch outermost. ``constant``
    names the factor that is packed ahead, ``a`` or ``b``; empty: both change from call to call.

    A primitive's x is A and its w is B; with ``constant="a"`` x is B and w is A, as w is what is
    packed. A bias runs along the columns of the microkernel: along N, with ``constant="a"`` M.
    """

    M: int
    K: int
    N: int
    batch: int | None = None
    constant: str = ""
    dtype: str = "f32"
    name: str = ""
    multiplicity: int = 1

    def __post_init__(self) -> None:
        """Raises TypeError for a value of another type, SpecError for a broken rule."""
        sizes = {field: getattr(self, field) for field in (*_SIZES, "multiplicity")}
        for field, value in (sizes | ({} if self.batch is None else {"batch": self.batch})).items():
            if type(value) is not int:
                raise TypeError(f"Matmul: {field} must be an int, got {type(value).__name__}")
            if not 0 < value < LIMIT:
                raise SpecError(f"Matmul: {field}={value}: expected 1 to 2^63 - 1")
        if self.flops >= LIMIT:
            raise SpecError(f"Matmul: {self}: the count of operations is beyond 2^63")
        check_text("Matmul", "constant", self.constant)
        if self.constant not in CONSTANTS:
            raise SpecError(f"Matmul: constant={self.constant!r}: expected 'a', 'b' or ''")
        check_text("Matmul", "name", self.name)
        check_text("Matmul", "dtype", self.dtype)
        precision = precision_named(self.dtype)
        if precision.integer and not self.constant:
            raise UnsupportedError(
                f"Matmul: dtype={self.dtype!r}: integers need a constant factor, whose sums are "
                "corrected for the zero point ahead of the calls: constant='a' or 'b'"
            )
        object.__setattr__(self, "dtype", str(precision))

    @classmethod
    @guard
    def parse(cls, text: str, layout: str = "", dtype: str = "f32", *, where: str = "") -> Self:
        """The product that a text describes; ``parse(str(x)) == x`` but for the dtype.

        Raises SpecError, with a caret under the offending part.
        """
        if layout not in ("", "nhwc"):
            raise SpecError(f"layout {layout!r}: matrices are stored row by row")
        line = Line(text, where)
        at = line.after(WORD, RULE)
        numbers, at = _extents(line, at)
        constant, at = _constant(line, at)
        name, multiplicity = ending(line, at)
        sizes = dict(zip(_SIZES, numbers[-3:], strict=True))
        batch = numbers[0] if len(numbers) == 4 else None
        try:
            return cls(
                **sizes, batch=batch, constant=constant, dtype=dtype, name=name,
                multiplicity=multiplicity,
            )  # fmt: skip
        except SpecError as error:
            raise line.error(line.after(WORD) - len(WORD), str(error), RULE) from None

    def __str__(self) -> str:
        return " ".join(filter(None, (self._words, label(self.name, self.multiplicity))))

    @property
    def _words(self) -> str:
        batch = "" if self.batch is None else f"{self.batch}:"
        constant = f" {self.constant}=constant" if self.constant else ""
        return f"{WORD}:{batch}{self.M}x{self.K}x{self.N}{constant}"

    @property
    def key(self) -> str:
        """What identifies the computation: the text without the name, and the dtype."""
        return f"{self._words} {self.dtype}"

    def with_(self, **changes: Any) -> Self:
        """A copy with some fields changed. Raises SpecError for a field that does not exist."""
        known = [field.name for field in fields(self)]
        if other := next((field for field in changes if field not in known), None):
            raise SpecError(f"Matmul: no field {other!r} among {', '.join(known)}")
        return replace(self, **changes)

    def with_batch(self, batch: int) -> Self:
        """A copy of so many pairs of matrices."""
        return self.with_(batch=batch)

    @property
    def layout(self) -> str:
        """Empty: matrices are stored row by row."""
        return ""

    @property
    def flops(self) -> int:
        """Twice the multiply-adds."""
        return 2 * (self.batch or 1) * self.M * self.K * self.N

    @property
    def terms(self) -> int:
        """Products summed into one element of y."""
        return self.K

    @property
    def w_kind(self) -> Kind:
        """w is packed ahead if one factor is constant, in the call otherwise."""
        return "constant" if self.constant else "activation"

    @property
    def x_shape(self) -> Shape:
        """Of A; of B where A is constant."""
        return self._shape("KN" if self.constant == "a" else "MK")

    @property
    def w_shape(self) -> Shape:
        """Of B; of A where A is constant."""
        return self._shape("MK" if self.constant == "a" else "KN")

    @property
    def y_shape(self) -> Shape:
        """Of O."""
        return self._shape("MN")

    def _shape(self, axes: str) -> Shape:
        batch = () if self.batch is None else (self.batch,)
        return (*batch, *(int(getattr(self, axis)) for axis in axes))

    @property
    def bias_axis(self) -> int:
        """The axis of y that w indexes: the last one, or that of M where A is constant."""
        return len(self.y_shape) - (2 if self.constant == "a" else 1)

    @property
    def batched(self) -> bool:
        """No axis counts images: extents are positive."""
        return False

    @property
    def axes(self) -> Mapping[str, str]:
        """Names of the axes of ``x``, ``w``, ``bias`` and ``y``."""
        batch = "" if self.batch is None else "batch "
        a, b = f"{batch}M K", f"{batch}K N"
        x, w = (b, a) if self.constant == "a" else (a, b)
        return {"x": x, "w": w, "bias": "M" if self.constant == "a" else "N", "y": f"{batch}M N"}

    def arrays(self) -> dict[str, tuple[Shape, Shape]]:
        """The nest's arrays A, B and O: shape, and strides in elements."""
        shapes = {"A": self._shape("MK"), "B": self._shape("KN"), "O": self._shape("MN")}
        return {name: (shape, row_strides(shape)) for name, shape in shapes.items()}

    def nest(self) -> str:
        """The textbook loop nest in C; the factor that is packed comes second."""
        loops = [("i", str(self.M)), ("j", str(self.N)), ("k", str(self.K))]
        batch = () if self.batch is None else ("t",)
        index = {"A": (*batch, "i", "k"), "B": (*batch, "k", "j"), "O": (*batch, "i", "j")}
        arrays = {
            name: Reference(name, tuple(map(str, shape)), index[name])
            for name, (shape, _) in self.arrays().items()
        }
        order = "OBA" if self.constant == "a" else "OAB"
        outer = [("t", str(self.batch))] if batch else []
        return c_text([*outer, *loops], [arrays[name] for name in order], ())

    def sums(self, x: NDArray[Any], w: NDArray[Any]) -> NDArray[Any]:
        """``A @ B`` by NumPy."""
        a, b = (w, x) if self.constant == "a" else (x, w)
        product: NDArray[Any] = np.matmul(a, b)
        return product


def _extents(line: Line, at: int) -> tuple[list[int], int]:
    """M, K, N, the batch before them if there is one; and the column where they end."""
    first, at = _extent(line, at, ":")
    numbers = [first]
    if line.text[at : at + 1] == ":":
        second, at = _extent(line, at, ":")
        numbers.append(second)
    for _ in range(2):
        value, at = _extent(line, at, "x")
        numbers.append(value)
    return numbers, at


def _extent(line: Line, at: int, sign: str) -> tuple[int, int]:
    """The number after a sign, and the column where it ends."""
    if line.text[at : at + 1] != sign:
        raise line.error(at, f"expected {sign!r} and an extent", RULE)
    number = _NUMBER.match(line.text, at + 1)
    if number is None:
        raise line.error(at + 1, "expected an extent", RULE)
    digits = number.group().lstrip("0") or "0"
    if digits == "0" or len(digits) > 19 or int(digits) >= LIMIT:
        raise line.error(at + 1, f"extent {digits[:20]}: expected 1 to 2^63 - 1", RULE)
    return int(digits), number.end()


def _constant(line: Line, at: int) -> tuple[str, int]:
    """The factor that the text calls constant, and the column of the name."""
    match = _CONSTANT.match(line.text, at)
    constant, at = (match.group(1), match.end()) if match else ("", at)
    rest = line.text[at:].rstrip()
    at += len(rest) - len(rest.lstrip())
    if rest and line.text[at] not in "n*":
        raise line.error(at, f"unknown word {line.text[at : at + 12]!r}", RULE)
    return constant, at
