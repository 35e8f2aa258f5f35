"""Sizes of axes that are made of the sizes which a run is told, as keys before and behind it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from polysci.numerics.affine import Affine


@dataclass(frozen=True, slots=True)
class DerivedSize:
    """A size that others make: ``form // divisor``, where names stand for sizes of a run.

    Its coefficients are not negative, so that it grows with each of them.
    """

    form: Affine
    divisor: int = 1

    def __str__(self) -> str:
        return self.text({})

    @property
    def names(self) -> tuple[str, ...]:
        """The sizes that it is made of."""
        return tuple(name for name, _ in self.form.terms)

    def value(self, sizes: Mapping[str, int]) -> int:
        """Return it for sizes of a run, by name."""
        total = self.form.const + sum(coef * sizes[name] for name, coef in self.form.terms)
        return total // self.divisor

    def text(self, words: Mapping[str, str]) -> str:
        """Return it as C and isl have it, but for isl's ``floor``, with other words for names."""
        terms = tuple((words.get(name, name), coef) for name, coef in self.form.terms)
        whole = str(Affine(terms, self.form.const))
        return whole if self.divisor == 1 else f"({whole}) / {self.divisor}"

    def span(self, spans: Mapping[str, range]) -> range:
        """Return all sizes between those for the first and for the last ones of others."""
        first, last = (
            self.value({name: spans[name][end] for name in self.names}) for end in (0, -1)
        )
        return range(first, last + 1)
