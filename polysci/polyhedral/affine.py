"""Affine expressions over named dimensions."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Affine:
    """``sum(coef * dim) + const``; dims with coefficient 0 are left out."""

    terms: tuple[tuple[str, int], ...]
    const: int = 0

    def __str__(self) -> str:
        words = [name if coef == 1 else f"{coef}*{name}" for name, coef in self.terms]
        if self.const or not words:
            words.append(str(self.const))
        return " + ".join(words).replace("+ -", "- ")

    def coef(self, dim: str) -> int:
        for name, coef in self.terms:
            if name == dim:
                return coef
        return 0
