"""Where elements lie in memory: forms in loop iterators, tables, subscripts out of data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from polysci.loop_ir.expressions import Computed
from polysci.loop_ir.index import Entry, Index, IndexLike, Variable, linear
from polysci.polyhedral.affine import Affine

Places = Mapping[str, IndexLike]  # iterators that stand for other integers


@dataclass(frozen=True, slots=True)
class MemoryAccess:
    """Where an element lies in its buffer: a form in the iterators, and tables times strides.

    ``computed`` are subscripts out of data with their strides, which ``index`` leaves out.
    """

    terms: Mapping[str, int]
    const: int
    tables: tuple[tuple[str, Affine, int], ...] = ()  # name, index, stride
    computed: tuple[tuple[Computed, int], ...] = ()

    def index(self, places: Places) -> Index:
        """Return the place of the element without subscripts out of data."""
        at = {name: places.get(name, Variable(name)) for name in self.terms}
        total = linear(self.terms, at, self.const)
        for table, form, stride in self.tables:
            total += stride * Entry(table, (affine_index(form, places),))
        return total


def affine_index(form: Affine, places: Places) -> Index:
    """Return the value of an affine form."""
    terms = dict(form.terms)
    return linear(terms, {name: places.get(name, Variable(name)) for name in terms}, form.const)
