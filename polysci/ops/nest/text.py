"""A contraction as one line of text and as C: ``read`` takes the line, ``write`` makes it.

``nest O[8][4]+=A[8][2]*B[2][4] for i:8 j:4 k:2 : O[i][j] A[i][k] B[k][j]``: the arrays with their
extents, the loops with theirs, the subscripts, and a name as in benchdnn's words. Where a
subscript leaves A, its element counts as zero: the C has a guard there.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from polysci.ops.words import Line, ending

if TYPE_CHECKING:
    from polysci.polyhedral.affine import Affine
    from polysci.polyhedral.contraction import Contraction, Operand

WORD = "nest"
RULE = "As in: nest O[8][4]+=A[8][2]*B[2][4] for i:8 j:4 k:2 : O[i][j] A[i][k] B[k][j]"
_NAME = r"[A-Za-z_]\w*"
_ARRAY = rf"({_NAME})((?:\s*\[\s*[0-9]+\s*\])+)"
_LOOP = rf"({_NAME})\s*:\s*([0-9]+)"
_ELEMENT = rf"({_NAME})((?:\s*\[[-+*\w\s]+\])+)"
_BRACKETS = re.compile(r"\[\s*(.*?)\s*\]")


@dataclass(frozen=True, slots=True)
class Reference:
    """An array of the nest: its extents and its subscripts, as C text."""

    array: str
    extents: tuple[str, ...]
    subscripts: tuple[str, ...]

    @classmethod
    def of(cls, operand: Operand) -> Reference:
        index = tuple(map(_subscript, operand.index))
        return cls(operand.array, tuple(map(str, operand.shape)), index)

    @property
    def declared(self) -> str:
        return self.array + "".join(f"[{extent}]" for extent in self.extents)

    def __str__(self) -> str:
        return self.array + "".join(f"[{subscript}]" for subscript in self.subscripts)


def _subscript(index: Affine) -> str:
    """``2*p+r-3``, ``22-k``."""
    words = [(c, name if abs(c) == 1 else f"{abs(c)}*{name}") for name, c in index.terms]
    words += [(index.const, str(abs(index.const)))] if index.const or not words else []
    up, down = ([word for c, word in words if (c < 0) == falls] for falls in (False, True))
    return "+".join(up) + "".join(f"-{word}" for word in down)


def write(contraction: Contraction) -> str:
    """The line, without a name."""
    out, a, b = map(Reference.of, (contraction.out, contraction.a, contraction.b))
    loops = " ".join(f"{dim.name}:{dim.extent}" for dim in contraction.dims)
    arrays = f"{out.declared}+={a.declared}*{b.declared}"
    return f"{WORD} {arrays} for {loops} : {out} {a} {b}"


def read(line: Line) -> tuple[str, str, int]:
    """The C of a line, its name and its multiplicity.

    Raises SpecError, with a caret, where the line is not of that form.
    """
    scan = _Scan(line)
    scan.expect(rf"{WORD}\b", f"the word {WORD}")
    arrays = [scan.expect(_ARRAY, "an array and its extents").groups()]
    for sign in ("+=", "*"):
        scan.expect(re.escape(sign), sign)
        arrays.append(scan.expect(_ARRAY, "an array and its extents").groups())
    scan.expect(r"for\b", "for, and the loops")
    loops = [scan.expect(_LOOP, "a loop and its extent").groups()]
    while not scan.accept(":"):
        loops.append(scan.expect(_LOOP, "a loop and its extent, or ':'").groups())
    references = []
    for name, extents in arrays:
        match = scan.expect(_ELEMENT, f"an element of {name}")
        reference = Reference(name, *(tuple(_BRACKETS.findall(t)) for t in (extents, match[2])))
        if match[1] != name or len(reference.extents) != len(reference.subscripts):
            raise line.error(match.start(1), f"expected an element of {reference.declared}", RULE)
        references.append(reference)
    scan.accept(r"\s*")
    if scan.rest and scan.rest[0] not in "n*":
        raise line.error(scan.at, "text after the last element", RULE)
    return c_text(loops, references), *ending(line, scan.at)


def c_expression(contraction: Contraction) -> str:
    """The nest as a C function, with the guards that it needs."""
    loops = [(dim.name, str(dim.extent)) for dim in contraction.dims]
    operands = (contraction.out, contraction.a, contraction.b)
    return c_text(loops, [Reference.of(operand) for operand in operands], _guards(contraction))


def c_text(
    loops: Sequence[Sequence[str]],
    references: Sequence[Reference],
    guards: Sequence[str] | None = None,
) -> str:
    """A C function of the three arrays; the default guards keep every subscript of A in bounds."""
    out, a, b = references
    if guards is None:
        pairs = zip(a.subscripts, a.extents, strict=True)
        guards = [guard for index, extent in pairs for guard in _bounds(index, extent)]
    parameters = f"float {out.declared}, const float {a.declared}, const float {b.declared}"
    lines = [f"void nest({parameters})", "{", "#pragma scop"]
    for depth, (name, extent) in enumerate(loops):
        lines.append(f"{'  ' * depth}for (int64_t {name} = 0; {name} < {extent}; ++{name})")
    inside = [f"if ({' && '.join(guards)})"] if guards else []
    for depth, words in enumerate([*inside, f"{out} += {a} * {b};"], len(loops)):
        lines.append(f"{'  ' * depth}{words}")
    lines += ["#pragma endscop", "}", ""]
    return "\n".join(["#include <stdint.h>", "", *lines])


def _bounds(index: str, extent: str) -> tuple[str, str]:
    return f"{index} >= 0", f"{index} < {extent}"


def _guards(contraction: Contraction) -> list[str]:
    """The conditions that some iteration needs to stay inside A."""
    a, guards = contraction.a, list[str]()
    for index, text, extent in zip(a.index, Reference.of(a).subscripts, a.shape, strict=True):
        ends = [coef * (contraction.extent(name) - 1) for name, coef in index.terms]
        at_least, below = _bounds(text, str(extent))
        if index.const + sum(end for end in ends if end < 0) < 0:
            guards.append(at_least)
        if index.const + sum(end for end in ends if end > 0) >= extent:
            guards.append(below)
    return guards


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
