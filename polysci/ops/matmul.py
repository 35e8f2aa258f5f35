"""Matmul: matrix products, one or a batch, of which either factor may be constant.

Text: ``mm:[BATCH:]MxKxN [ta] [tb] [to] [a=constant | b=constant] [alpha=X] [beta=X] [act=gelu]``
and a name as in benchdnn's words, or an einsum's subscripts in place of the extents:
``mm:bmk,bnk->bmn b=8 m=64 n=48 k=32``, where a letter is an axis; those of both factors and the
result are the batch, those of one factor and the result the rows (M) and columns (N), those of both
factors are summed over (K). Letters with one role follow each other in one order. Both factors
change from call to call unless the text says otherwise.
``linear:ROWSxINxOUT [act=gelu]`` is ``mm:ROWSxINxOUT tb b=constant``, PyTorch's layer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from math import prod
from typing import Any, ClassVar, Final, Self

import numpy as np

from polysci.border.guard import guard
from polysci.errors import SpecError, UnsupportedError
from polysci.loop_ir.nodes import LoopFunction
from polysci.numerics.dtypes import precision_named
from polysci.numerics.scalar_functions import check_activation
from polysci.ops.problem import Kind, Problem, Shape, check_text, row_strides
from polysci.ops.textbook import Reference, iterator, textbook
from polysci.ops.words import (
    LIMIT,
    Line,
    read_activation,
    read_ending,
    read_extent,
    write_activation,
    write_label,
)

WORD: Final = "mm"
LINEAR: Final = "linear"
RULE: Final = (
    'As in: mm:64x32x48, mm:8:64x32x48 tb b=constant n"name", mm:mk,nk->mn m=64 n=48 k=32, '
    "linear:16x1024x4096 act=gelu"
)
_LETTERS: Final = "As in: mm:mk,kn->mn m=64 n=48 k=32, mm:bmk,bnk->bmn b=8 m=64 n=48 k=32"
_SUBSCRIPTS = re.compile(r":([A-Za-z]+),([A-Za-z]+)->([A-Za-z]+)(?=\s|\Z)")
_EXTENT = re.compile(r"\s+([A-Za-z])=([0-9]{1,18})(?=\s|\Z)")
# (in the first factor, in the second, in the result) -> role
_ROLES: Final = {
    (True, True, True): "batch",
    (True, False, True): "M",
    (False, True, True): "N",
    (True, True, False): "K",
}
CONSTANTS: Final = ("", "a", "b")
_SIZES: Final = ("M", "K", "N")
_AXES: Final = {"a": "MK", "b": "KN", "o": "MN"}  # of the operands that are not transposed
_ITERATORS: Final = {"M": "i", "N": "j", "K": "k"}  # in the order of the loops
_NUMBER = re.compile(r"[0-9]+")
_OPTION = re.compile(
    r"\s+(?:t(?P<transposed>[abo])|(?P<constant>[ab])=constant|(?P<factor>alpha|beta)=(?P<by>[-+.0-9e]+))"
    r"(?=\s|\Z)"
)


@dataclass(frozen=True, slots=True)
class Matmul(Problem):
    """``O[i,j] = alpha * sum over p of A[i,p] * B[p,j]``, of ``batch`` pairs if that is given.

    A is M x K, B is K x N, O is M x N, all stored row by row, the batch outermost. ``constant``
    names the factor that is packed ahead, ``a`` or ``b``; empty: both change from call to call.
    ``transposed`` names the operands that are stored column by column instead, some of ``abo``:
    with ``b`` B is stored N x K, as PyTorch's Linear has it. A call adds ``beta`` times its
    residual to the result, after the bias.

    With a ``dtype`` whose w is blocks of several numbers along K (``f32:s4x32:f32``) B is constant,
    stored N x K, and an element of w is a block of ``polysci.numerics.blocks``: N x (K / block).

    A primitive's x is A and its w is B; with ``constant="a"`` x is B and w is A, as w is what is
    packed, and so they are where O is transposed and no factor constant. A bias runs along the
    columns of the microkernel: along N, or M where w is A.
    """

    layout: ClassVar[str] = ""  # ``transposed`` says how matrices are stored
    batched: ClassVar[bool] = False  # no axis counts images: extents are positive
    M: int
    K: int
    N: int
    batch: int | None = None
    constant: str = ""
    dtype: str = "f32"
    name: str = ""
    multiplicity: int = 1
    transposed: str = ""
    alpha: float = 1.0
    beta: float = 1.0
    activation: str = ""

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
        check_text("Matmul", "transposed", self.transposed)
        if list(self.transposed) != sorted(set(self.transposed) & set(_AXES)):
            raise SpecError(f"Matmul: transposed={self.transposed!r}: expected letters of 'abo'")
        for factor in ("alpha", "beta"):
            self._check_factor(factor, getattr(self, factor))
        check_text("Matmul", "name", self.name)
        check_text("Matmul", "dtype", self.dtype)
        check_text("Matmul", "activation", self.activation)
        check_activation("Matmul", self.activation, self.dtype)
        precision = precision_named(self.dtype)
        if precision.integer and not self.constant:
            raise UnsupportedError(
                f"Matmul: dtype={self.dtype!r}: integers need a constant factor, whose sums are "
                "corrected for the zero point ahead of the calls: constant='b' or 'a', in words "
                f"'{WORD}:{self.M}x{self.K}x{self.N} b=constant'"
            )
        if precision.integer and not self.alpha == self.beta == 1:
            raise UnsupportedError(
                f"Matmul: dtype={self.dtype!r}: alpha and beta are of real numbers; integers have "
                "scales"
            )
        object.__setattr__(self, "dtype", str(precision))
        if (block := precision.w.block) > 1:
            self._check_blocks(block)

    def _check_blocks(self, block: int) -> None:
        """Raise UnsupportedError for products whose B cannot be blocks along K."""
        if self.constant != "b" or "b" not in self.transposed or "a" in self.transposed:
            raise UnsupportedError(
                f"Matmul: dtype={self.dtype!r}: blocks of weights lie along K: constant='b' and "
                f"transposed='b', in words '{LINEAR}:{self.M}x{self.K}x{self.N}'"
            )
        if self.batch is not None:
            raise UnsupportedError(f"Matmul: dtype={self.dtype!r}: no batch of blocks of weights")
        if self.K % block:
            raise UnsupportedError(
                f"Matmul: K={self.K}: expected a multiple of {block}, the block of {self.dtype}"
            )

    def _check_factor(self, name: str, factor: object) -> None:
        """Raise TypeError or SpecError for what no result can be multiplied by."""
        if not isinstance(factor, (int, float)) or isinstance(factor, bool):
            raise TypeError(f"Matmul: {name} must be a number, got {type(factor).__name__}")
        least, most = (float(getattr(np.finfo(np.float32), name)) for name in ("tiny", "max"))
        if not least <= abs(factor) <= most:
            raise SpecError(f"Matmul: {name}={factor}: expected a number of f32 that is not zero")
        object.__setattr__(self, name, float(factor))

    @classmethod
    @guard
    def parse(cls, text: str, layout: str = "", dtype: str = "f32", *, where: str = "") -> Self:
        """Return the product that a text describes; ``parse(str(x)) == x`` but for the dtype.

        Raises SpecError, with a caret under the offending part.
        """
        if layout not in ("", "nhwc"):
            raise SpecError(f"layout {layout!r}: matrices are stored row by row")
        line = Line(text, where)
        at = line.after(WORD, RULE)
        subscripts = line.text[at + 1 : at + 2].isalpha()
        sizes, at = (_subscripts if subscripts else _extents)(line, at)
        options, at = _options(line, at)
        if subscripts and "transposed" in options:
            raise line.error(at, "the subscripts say which operands are transposed", RULE)
        name, multiplicity = read_ending(line, at)
        own = {"dtype": dtype, "name": name, "multiplicity": multiplicity}
        try:
            return cls(**sizes | options | own)
        except SpecError as error:
            raise line.error(line.after(WORD) - len(WORD), str(error), RULE) from None

    @classmethod
    @guard
    def parse_linear(
        cls, text: str, layout: str = "", dtype: str = "f32", *, where: str = ""
    ) -> Self:
        """PyTorch's Linear: B, stored out_features x in_features, is constant. Raises as parse."""
        line = Line(text, where)
        end = line.after(LINEAR, RULE)
        extents, at = _extents(line, end)
        options, after = _options(line, at)
        if "batch" in extents or {*options} - {"activation"}:
            raise line.error(end, "expected ROWSxINxOUT and an activation", RULE)
        name, multiplicity = read_ending(line, after)
        own = {"dtype": dtype, "name": name, "multiplicity": multiplicity}
        return cls(**extents | options | own, transposed="b", constant="b")

    def __str__(self) -> str:
        return " ".join(filter(None, (self._words, write_label(self.name, self.multiplicity))))

    @property
    def _words(self) -> str:
        batch = "" if self.batch is None else f"{self.batch}:"
        parts = [f"{WORD}:{batch}{self.M}x{self.K}x{self.N}"]
        parts += [f"t{operand}" for operand in self.transposed]
        parts += [f"{self.constant}=constant"] if self.constant else []
        factors = {"alpha": self.alpha, "beta": self.beta}
        parts += [f"{name}={value:g}" if float(f"{value:g}") == value else f"{name}={value!r}"
                  for name, value in factors.items() if value != 1]  # fmt: skip
        return " ".join(parts) + write_activation(self.activation)

    @property
    def key(self) -> str:
        """The identity of the computation: the text without the name, and the dtype."""
        return f"{self._words} {self.dtype}"

    def with_(self, **changes: Any) -> Self:
        """A copy with some fields changed. Raises SpecError for a field that does not exist."""
        known = [field.name for field in fields(self)]
        if other := next((field for field in changes if field not in known), None):
            raise SpecError(f"Matmul: no field {other!r} among {', '.join(known)}")
        return replace(self, **changes)

    def with_batch(self, batch: int) -> Self:
        """Return a copy of so many pairs of matrices."""
        return self.with_(batch=batch)

    @property
    def flops(self) -> int:
        """Twice the multiply-adds."""
        return 2 * (self.batch or 1) * self.M * self.K * self.N

    @property
    def terms(self) -> int:
        """Products summed into one element of y; of blocks the zero point and scale round too."""
        return self.K + 2 * (self._block > 1)

    @property
    def _block(self) -> int:
        """Numbers of K that are an element of w."""
        return precision_named(self.dtype).w.block

    @property
    def dense(self) -> Self:
        """The product by weights of f32."""
        return self.with_(dtype="f32") if self._block > 1 else self

    @property
    def w_kind(self) -> Kind:
        """w is packed ahead if one factor is constant, in the call otherwise."""
        return "constant" if self.constant else "activation"

    @property
    def factors(self) -> tuple[float, float]:
        """alpha and beta."""
        return self.alpha, self.beta

    @property
    def w_is_a(self) -> bool:
        """Return whether w is A, and x is B: A is constant, or its rows run along O's in memory."""
        return self.constant == "a" or (not self.constant and "o" in self.transposed)

    @property
    def _letters(self) -> str:
        """x and w."""
        return "ba" if self.w_is_a else "ab"

    @property
    def x_shape(self) -> Shape:
        """The shape of A as it is stored, or B (see above)."""
        return self._shape(self._letters[0])

    @property
    def w_shape(self) -> Shape:
        """The shape of B as it is stored, or A (see above)."""
        if self._block > 1:
            return self.N, self.K // self._block
        return self._shape(self._letters[1])

    @property
    def y_shape(self) -> Shape:
        """The shape of O as it is stored."""
        return self._shape("o")

    def memory_axes(self, operand: str) -> str:
        """The axes of ``a``, ``b`` or ``o`` as they are stored, without the batch: ``MK``."""
        return _AXES[operand][:: -1 if operand in self.transposed else 1]

    def _shape(self, operand: str) -> Shape:
        batch = () if self.batch is None else (self.batch,)
        return (*batch, *(int(getattr(self, axis)) for axis in self.memory_axes(operand)))

    @property
    def bias_axis(self) -> int:
        """The axis of y that w indexes: that of N, or that of M where w is A."""
        along = "M" if self.w_is_a else "N"
        return len(self.y_shape) - 2 + self.memory_axes("o").index(along)

    @property
    def axes(self) -> Mapping[str, str]:
        """Names of the axes of ``x``, ``w``, ``bias`` and ``y``."""
        batch = () if self.batch is None else ("batch",)
        a, b, o = (" ".join((*batch, *self.memory_axes(operand))) for operand in "abo")
        x, w = (b, a) if self.w_is_a else (a, b)
        return {"x": x, "w": w, "bias": "M" if self.w_is_a else "N", "y": o}

    def arrays(self) -> dict[str, tuple[Shape, Shape]]:
        """Return the nest's arrays A, B and O: shape, and strides in elements, or in blocks."""
        shapes = {operand.upper(): self._nest_shape(operand) for operand in _AXES}
        return {name: (shape, row_strides(shape)) for name, shape in shapes.items()}

    def _nest_shape(self, operand: str) -> Shape:
        """The shape of an operand in the nest, whose steps along K are blocks."""
        block, shape = self._block, self._shape(operand)
        if block == 1 or operand == "o":
            return shape
        return *shape[:-1], shape[-1] // block

    def nest(self) -> LoopFunction:
        """Return the textbook loop nest; the factor that is packed comes second."""
        batch = {} if self.batch is None else {"t": self.batch}
        loops = batch | {name: getattr(self, axis) for axis, name in _ITERATORS.items()}
        loops["k"] //= self._block
        references = [
            Reference(operand.upper(), self._nest_shape(operand), tuple(map(iterator, names)))
            for operand in f"o{self._letters}"
            for names in [(*batch, *(_ITERATORS[axis] for axis in self.memory_axes(operand)))]
        ]
        return textbook("nest", loops, references)


def _extents(line: Line, at: int) -> tuple[dict[str, Any], int]:
    """M, K, N and the batch before them if there is one; and the column where they end."""
    first, at = _extent(line, at, ":")
    numbers = [first]
    if line.text[at : at + 1] == ":":
        second, at = _extent(line, at, ":")
        numbers.append(second)
    for _ in range(2):
        value, at = _extent(line, at, "x")
        numbers.append(value)
    batch = {"batch": numbers[0]} if len(numbers) == 4 else {}
    return dict(zip(_SIZES, numbers[-3:], strict=True)) | batch, at


def _extent(line: Line, at: int, sign: str) -> tuple[int, int]:
    """Return the number after a sign, and the column where it ends."""
    if line.text[at : at + 1] != sign:
        raise line.error(at, f"expected {sign!r} and an extent", RULE)
    number = _NUMBER.match(line.text, at + 1)
    if number is None:
        raise line.error(at + 1, "expected an extent", RULE)
    return read_extent(line, at + 1, number.group(), RULE), number.end()


def _options(line: Line, at: int) -> tuple[dict[str, Any], int]:
    """Return the fields that words after the extents set, and the column of the name."""
    options: dict[str, Any] = {}
    while match := _OPTION.match(line.text, at):
        word = match.start() + len(match.group()) - len(match.group().lstrip())
        field = match["factor"] or ("constant" if match["constant"] else "transposed")
        letter = match["constant"] or match["transposed"]
        if field in options and (field != "transposed" or letter in options[field]):
            raise line.error(word, f"{field} is repeated", RULE)
        if match["factor"]:
            try:
                options[field] = float(match["by"])
            except ValueError:
                raise line.error(word, f"{match['by']!r} is no number", RULE) from None
        else:
            options[field] = "".join(sorted(options.get(field, "") + letter))
        at = match.end()
    activation, at = read_activation(line, at)
    options |= {"activation": activation} if activation else {}
    rest = line.text[at:].rstrip()
    at += len(rest) - len(rest.lstrip())
    if rest and line.text[at] not in "n*":
        raise line.error(at, f"unknown word {line.text[at : at + 12]!r}", RULE)
    return options, at


def _subscripts(line: Line, at: int) -> tuple[dict[str, Any], int]:
    """M, K, N, batch and transposed of subscripts with their extents, and the column behind them.

    Raises SpecError, with a caret, for what is no (batched) product of two matrices.
    """
    match = _SUBSCRIPTS.match(line.text, at)
    if match is None:
        raise line.error(at + 1, "expected subscripts of two factors and the result", _LETTERS)
    operands, starts = match.groups(), [match.start(group) for group in (1, 2, 3)]
    a, b, o = operands
    roles = {
        letter: _ROLES.get((letter in a, letter in b, letter in o)) for letter in "".join(operands)
    }
    for letters, start in zip(operands, starts, strict=True):
        for position, letter in enumerate(letters):
            if letter in letters[:position]:
                raise line.error(start + position, f"{letter} is repeated", _LETTERS)
            if roles[letter] is None:
                raise line.error(start + position, f"{letter} is in one operand alone", _LETTERS)
    by_role = {
        role: [letter for letter in roles if roles[letter] == role] for role in _ROLES.values()
    }
    transposed = ""
    for name, letters, start, axes in zip("abo", operands, starts, ("MK", "KN", "MN"), strict=True):
        straight, turned = (
            "".join("".join(by_role[role]) for role in ("batch", *order))
            for order in (axes, axes[::-1])
        )
        if letters not in (straight, turned):
            either = " or ".join(dict.fromkeys((straight, turned)))
            raise line.error(
                start, f"expected {either}: the batch, and axes side by side", _LETTERS
            )
        transposed += name * (letters != straight)
    extents, at = _letter_extents(line, match.end(), roles)
    sized = [role for role in ("M", "K", "N", "batch") if role != "batch" or by_role[role]]
    sizes = {role: prod(extents[letter] for letter in by_role[role]) for role in sized}
    return sizes | {"transposed": transposed}, at


def _letter_extents(line: Line, at: int, letters: Any) -> tuple[dict[str, int], int]:
    """Return the extent of each letter, and the column behind the last one."""
    extents: dict[str, int] = {}
    while (match := _EXTENT.match(line.text, at)) and match[1] in letters:
        if match[1] in extents:
            raise line.error(match.start(1), f"{match[1]} is repeated", _LETTERS)
        extents[match[1]], at = int(match[2]), match.end()
    if missing := [letter for letter in letters if letter not in extents]:
        raise line.error(at, f"expected the extent of {missing[0]}: {missing[0]}=64", _LETTERS)
    return extents, at
