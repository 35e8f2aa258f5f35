"""Nest: a contraction of f32 arrays, read from a loop nest in C or from a line of text."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self

from polysci.border.arguments import check_path, describe
from polysci.border.files import read_text
from polysci.border.guard import guard
from polysci.errors import SpecError
from polysci.loop_ir.nodes import LoopFunction
from polysci.numerics.affine import Affine
from polysci.numerics.dtypes import precision_named
from polysci.ops.problem import Kind, Problem, Shape, row_strides
from polysci.ops.textbook import Reference, nest_of, scop_of, textbook
from polysci.ops.words import LIMIT, Line, read_ending, read_extent, write_label

if TYPE_CHECKING:
    from cgen import Generable

    from polysci.polyhedral.contraction import Contraction

MAX_TEXT = 2000  # characters; a record of the wisdom holds twice as many


@dataclass(frozen=True, slots=True, init=False)
class Nest(Problem):
    """``y = sum of x * w``: what the loop nest ``O[..] += A[..] * B[..]`` adds to its target.

    The nest accumulates into O; a primitive overwrites y with the sums. x is A, w is B (packed
    ahead) and y is O, each as its C array lies in memory: row by row. A is the first factor, or
    the second one if that alone slides like a window. A bias runs along the axis of O that the
    columns index, the one loop that O and B share without A. Where guards keep the subscripts of
    A inside its bounds, A counts as zero beyond them.
    """

    w_kind: ClassVar[Kind] = "constant"  # B is packed ahead
    layout: ClassVar[str] = ""  # the C arrays say how they lie in memory
    dtype: ClassVar[str] = "f32"
    batched: ClassVar[bool] = False  # no axis counts images
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
        from polysci.ops.normal_form import normalize  # islpy and pycparser take 200 ms
        from polysci.polyhedral.extract import extract

        code, filename, stem = _source(source)
        nest = normalize(extract(code, filename=filename))
        self._fill(nest, stem if name is None else name, multiplicity)

    @classmethod
    @guard
    def parse(cls, line: str, layout: str = "", dtype: str = "f32", *, where: str = "") -> Self:
        """The nest that ``str(nest)`` describes; white space between its words does not matter.

        A nest has no other ``layout`` than its arrays' own, and is computed in f32. Raises
        SpecError, with a caret under the offending part, or as ``Nest(...)`` does.
        """
        check_options(layout, dtype)
        from polysci.ops.normal_form import normalize  # islpy takes 200 ms

        loops, name, multiplicity = _read(Line(line, where))
        problem = object.__new__(cls)
        problem._fill(normalize(scop_of(loops)), name, multiplicity)
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
        named = write_label(self.name, self.multiplicity)
        return " ".join(filter(None, (_write(self.contraction), named)))

    @property
    def key(self) -> str:
        """The identity of the computation: the text without the name, and the dtype."""
        return f"{_write(self.contraction)} {self.dtype}"

    def with_(self, **changes: Any) -> Self:
        """Return a copy with another name or multiplicity. Raises SpecError for anything else."""
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
        from polysci.ops.normal_form import column_axis

        return column_axis(self.contraction)

    @property
    def axes(self) -> Mapping[str, str]:
        """The elements of x, w and y as the nest writes them, and the subscript of a bias."""
        roles = self.contraction
        names = {"x": str(roles.a), "w": str(roles.b), "y": str(roles.out)}
        return names | {"bias": str(roles.out.index[self.bias_axis])}

    def arrays(self) -> dict[str, tuple[Shape, Shape]]:
        """Return the nest's arrays: shape, and strides in elements."""
        contraction = self.contraction
        return {
            operand.array: (operand.shape, row_strides(operand.shape))
            for operand in (contraction.out, contraction.a, contraction.b)
        }

    def nest(self) -> LoopFunction:
        """Return the loop nest, with the guards that it needs."""
        return nest_of(self.contraction)


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
    return read_text(path), str(path), path.stem


WORD: Final = "nest"
RULE: Final = "As in: nest O[8][4]+=A[8][2]*B[2][4] for i:8 j:4 k:2 : O[i][j] A[i][k] B[k][j]"
_NAME: Final = r"[A-Za-z_]\w*"
_ARRAY: Final = rf"({_NAME})((?:\s*\[\s*[0-9]+\s*\])+)"
_LOOP: Final = rf"({_NAME})\s*:\s*([0-9]+)"
_ELEMENT: Final = rf"({_NAME})((?:\s*\[[-+*\w\s]+\])+)"
_BRACKETS: Final = re.compile(r"\[\s*(.*?)\s*\]")
_TERM: Final = re.compile(r"\s*([-+]?)\s*((?:\w+\s*\*\s*)*\w+)\s*")


def _write(contraction: Contraction) -> str:
    """Return the line, without a name."""
    operands = contraction.out, contraction.a, contraction.b
    loops = " ".join(f"{dim.name}:{dim.extent}" for dim in contraction.dims)
    arrays = "{}+={}*{}".format(*(_declare(part.array, part.shape) for part in operands))
    elements = " ".join(
        part.array + "".join(f"[{_subscript(index)}]" for index in part.index) for part in operands
    )
    return f"{WORD} {arrays} for {loops} : {elements}"


def _declare(array: str, shape: Sequence[int]) -> str:
    return array + "".join(f"[{extent}]" for extent in shape)


def _subscript(index: Affine) -> str:
    """Return a subscript as ``2*p+r-3`` or ``22-k``."""
    terms = [(c, name if abs(c) == 1 else f"{abs(c)}*{name}") for name, c in index.terms]
    terms += [(index.const, str(abs(index.const)))] if index.const or not terms else []
    up, down = ([word for c, word in terms if (c < 0) == falls] for falls in (False, True))
    return "+".join(up) + "".join(f"-{word}" for word in down)


def _read(line: Line) -> tuple[LoopFunction, str, int]:
    """Return the nest of a line, its name and its multiplicity.

    Raises SpecError, with a caret, where the line is not of that form.
    """
    scan = _NestText(line)
    scan.expect(rf"{WORD}\b", f"the word {WORD}")
    arrays = [scan.array()]
    for sign in ("+=", "*"):
        scan.expect(re.escape(sign), sign)
        arrays.append(scan.array())
    scan.expect(r"for\b", "for, and the loops")
    loops = dict([scan.loop({})])
    while not scan.accept(":"):
        loops |= [scan.loop(loops)]
    guarded = arrays[1][0]
    references = [
        scan.element(name, shape, loops, guarded=name == guarded) for name, shape in arrays
    ]
    scan.accept(r"\s*")
    if scan.rest and scan.rest[0] not in "n*":
        raise line.error(scan.at, "text after the last element", RULE)
    return textbook("nest", loops, references, guarded), *read_ending(line, scan.at)


@dataclass(slots=True)
class _NestText:
    """A place in a line; white space before every token is skipped."""

    line: Line
    at: int = 0

    @property
    def rest(self) -> str:
        return self.line.text[self.at :].rstrip()

    def accept(self, pattern: str) -> re.Match[str] | None:
        match = re.compile(rf"\s*(?:{pattern})", re.ASCII).match(self.line.text, self.at)
        self.at = match.end() if match else self.at
        return match

    def expect(self, pattern: str, what: str) -> re.Match[str]:
        match = self.accept(pattern)
        if match is None:
            blank = len(self.rest) - len(self.rest.lstrip())
            raise self.line.error(self.at + blank, f"expected {what}", RULE)
        return match

    def array(self) -> tuple[str, tuple[int, ...]]:
        """Take an array and its extents."""
        match = self.expect(_ARRAY, "an array and its extents")
        texts, at = _BRACKETS.findall(match[2]), match.start(2)
        shape = tuple(read_extent(self.line, at, text, RULE) for text in texts)
        if prod(shape) >= LIMIT:
            raise self.line.error(match.start(1), f"{match[1]} has more than 2^63 elements")
        return self.name(match), shape

    def loop(self, others: Mapping[str, int]) -> tuple[str, int]:
        """Take a loop and its extent."""
        match = self.expect(_LOOP, "a loop and its extent" + ", or ':'" * bool(others))
        if match[1] in others:
            raise self.line.error(match.start(1), f"the loop {match[1]} is repeated", RULE)
        return self.name(match), read_extent(self.line, match.start(2), match[2], RULE)

    def element(
        self, array: str, shape: tuple[int, ...], loops: Mapping[str, int], *, guarded: bool
    ) -> Reference:
        """Take an element of an array, whose subscripts stay in bounds or are ``guarded``."""
        match = self.expect(_ELEMENT, f"an element of {array}")
        texts = _BRACKETS.findall(match[2])
        if match[1] != array or len(texts) != len(shape):
            what = f"expected an element of {_declare(array, shape)}"
            raise self.line.error(match.start(1), what, RULE)
        index = tuple(self.subscript(match, text, loops) for text in texts)
        for axis, (form, extent) in enumerate(zip(index, shape, strict=True)):
            low, high = form.reach(loops)
            if not guarded and not 0 <= low <= high < extent:
                what = f"subscript {axis} of {array} reaches {low if low < 0 else high}"
                raise self.line.error(match.start(1), what, f"Its range is 0 to {extent - 1}.")
        return Reference(array, shape, index)

    def subscript(self, match: re.Match[str], text: str, loops: Mapping[str, int]) -> Affine:
        """Return the sum of iterators times integers that a text is."""
        coefs, const, at = dict[str, int](), 0, 0
        while at < len(text) or not at:
            term = _TERM.match(text, at)
            factors = re.split(r"\s*\*\s*", term[2]) if term else []
            names = [word for word in factors if word in loops]
            numbers = [int(word) for word in factors if re.fullmatch("0|[1-9][0-9]{0,18}", word)]
            known = len(names) + len(numbers) == len(factors) and len(names) < 2
            if term is None or not known or (at and not term[1]):
                what = f"{text[at:].strip()[:24]!r} is no sum of loops times integers"
                raise self.line.error(match.start(2), what, RULE)
            factor = prod(numbers) * (-1 if term[1] == "-" else 1)
            if names:
                coefs[names[0]] = coefs.get(names[0], 0) + factor
            else:
                const += factor
            at = term.end()
        return Affine(tuple((name, coef) for name, coef in coefs.items() if coef), const)

    def name(self, match: re.Match[str]) -> str:
        """Return the name that a match begins with, unless C or isl has a meaning for it."""
        from polysci.polyhedral.extract.source import KEYWORDS, RESERVED  # islpy takes 200 ms

        if match[1] in KEYWORDS | RESERVED:
            raise self.line.error(match.start(1), f"{match[1]} is a word of C or isl; rename it")
        return match[1]
