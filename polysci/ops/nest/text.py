"""A contraction as one line of text: ``read`` takes the line, ``write`` makes it.

``nest O[8][4]+=A[8][2]*B[2][4] for i:8 j:4 k:2 : O[i][j] A[i][k] B[k][j]``: the arrays with their
extents, the loops with theirs, the subscripts, and a name as in benchdnn's words. Where a
subscript leaves A, its element counts as zero: the nest has a guard there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Final

from polysci.loop_ir.nodes import LoopFunction
from polysci.ops.textbook import Reference, reach, textbook
from polysci.ops.words import LIMIT, Line, ending
from polysci.polyhedral.affine import Affine

if TYPE_CHECKING:
    from polysci.polyhedral.contraction import Contraction

WORD: Final = "nest"
RULE: Final = "As in: nest O[8][4]+=A[8][2]*B[2][4] for i:8 j:4 k:2 : O[i][j] A[i][k] B[k][j]"
_NAME: Final = r"[A-Za-z_]\w*"
_ARRAY: Final = rf"({_NAME})((?:\s*\[\s*[0-9]+\s*\])+)"
_LOOP: Final = rf"({_NAME})\s*:\s*([0-9]+)"
_ELEMENT: Final = rf"({_NAME})((?:\s*\[[-+*\w\s]+\])+)"
_BRACKETS: Final = re.compile(r"\[\s*(.*?)\s*\]")
_TERM: Final = re.compile(r"\s*([-+]?)\s*((?:\w+\s*\*\s*)*\w+)\s*")


def write(contraction: Contraction) -> str:
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
    words = [(c, name if abs(c) == 1 else f"{abs(c)}*{name}") for name, c in index.terms]
    words += [(index.const, str(abs(index.const)))] if index.const or not words else []
    up, down = ([word for c, word in words if (c < 0) == falls] for falls in (False, True))
    return "+".join(up) + "".join(f"-{word}" for word in down)


def read(line: Line) -> tuple[LoopFunction, str, int]:
    """Return the nest of a line, its name and its multiplicity.

    Raises SpecError, with a caret, where the line is not of that form.
    """
    scan = _Scan(line)
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
    return textbook("nest", loops, references, guarded), *ending(line, scan.at)


@dataclass(slots=True)
class _Scan:
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
        shape = tuple(self.extent(match, text) for text in _BRACKETS.findall(match[2]))
        if prod(shape) >= LIMIT:
            raise self.line.error(match.start(1), f"{match[1]} has more than 2^63 elements")
        return self.name(match), shape

    def loop(self, others: Mapping[str, int]) -> tuple[str, int]:
        """Take a loop and its extent."""
        match = self.expect(_LOOP, "a loop and its extent" + ", or ':'" * bool(others))
        if match[1] in others:
            raise self.line.error(match.start(1), f"the loop {match[1]} is repeated", RULE)
        return self.name(match), self.extent(match, match[2])

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
            low, high = reach(form, loops)
            if not guarded and not 0 <= low <= high < extent:
                what = f"subscript {axis} of {array} reaches {low if low < 0 else high}"
                raise self.line.error(match.start(1), what, f"Its range is 0 to {extent - 1}.")
        return Reference(array, shape, index)

    def subscript(self, match: re.Match[str], text: str, loops: Mapping[str, int]) -> Affine:
        """Return the sum of iterators times integers that a text is."""
        coefs, const, at = dict[str, int](), 0, 0
        while at < len(text) or not at:
            term = _TERM.match(text, at)
            words = re.split(r"\s*\*\s*", term[2]) if term else []
            names = [word for word in words if word in loops]
            numbers = [int(word) for word in words if re.fullmatch("0|[1-9][0-9]{0,18}", word)]
            known = len(names) + len(numbers) == len(words) and len(names) < 2
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

    def extent(self, match: re.Match[str], text: str) -> int:
        """Return an extent that a match holds as text."""
        digits = text.lstrip("0")
        if not 0 < len(digits) < 20 or int(digits) >= LIMIT:
            what = f"extent {digits[:20] or 0}: expected 1 to 2^63 - 1"
            raise self.line.error(match.start(2), what, RULE)
        return int(digits)
