"""Where elements lie in memory, as C text in loop iterators."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from polysci.loop_ir.expressions import Computed
from polysci.polyhedral.affine import Affine


@dataclass(frozen=True, slots=True)
class MemoryAccess:
    """Where an element lies in its buffer: a form in the iterators, and tables times strides.

    ``computed`` are subscripts out of data with their strides, which ``text`` leaves out.
    """

    terms: Mapping[str, int]
    const: int
    tables: tuple[tuple[str, Affine, int], ...] = ()  # name, index, stride
    computed: tuple[tuple[Computed, int], ...] = ()

    def text(self, names: Mapping[str, str]) -> str:
        """C text; ``names`` are what iterators are called."""
        parts = [
            names.get(name, name) if coef == 1 else f"{coef} * {names.get(name, name)}"
            for name, coef in self.terms.items()
            if coef
        ]
        parts += [
            f"{stride} * {table}[{affine_text(at, names)}]" for table, at, stride in self.tables
        ]
        if self.const or not parts:
            parts.append(str(self.const))
        return " + ".join(parts).replace("+ -", "- ")


def affine_text(form: Affine, names: Mapping[str, str]) -> str:
    """C text of an affine form."""
    return MemoryAccess(dict(form.terms), form.const).text(names)
