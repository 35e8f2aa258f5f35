"""Derivatives of the notation's functions, by the table of scalar functions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from polysci.frontends.notation.syntax import Literal, Operation, Term
from polysci.numerics.formulas import evaluate, gradients, is_number, parse
from polysci.numerics.scalar_functions import FUNCTIONS, is_predicate


def apply(function: str, *arguments: Term | float) -> Operation:
    """Return a function of terms and numbers."""
    return Operation(function, tuple(map(_term, arguments)))


def pull_back(term: Operation, seed: Term) -> Iterator[tuple[Term, Term]]:
    """Yield arguments of a function with their gradients, where ``seed`` is that of its value.

    Predicates have none, and a function with a choice has them by ``choice_of``.
    """
    if is_predicate(term.function):
        return
    for argument, formula in zip(term.arguments, gradients(term.function), strict=True):
        if formula is not None and not isinstance(argument, Literal):
            gradient = evaluate(formula, {**_names(term), "dy": seed, "y": term}, _apply)
            yield argument, _term(gradient)


def choice_of(term: Operation) -> tuple[Term, Term, Term] | None:
    """Return the condition and the two sides of a function that gives one of its arguments."""
    choice = FUNCTIONS[term.function].choice
    if choice is None:
        return None
    condition, body, otherwise = (
        _term(evaluate(parse(text), _names(term), _apply)) for text in choice
    )
    return condition, body, otherwise


def _names(term: Operation) -> dict[str, Any]:
    """The arguments by their names in formulas, literals as numbers."""
    values = [part.value if isinstance(part, Literal) else part for part in term.arguments]
    return dict(zip(FUNCTIONS[term.function].names, values, strict=True))


def _apply(function: str, parts: Sequence[Any]) -> Term:
    return apply(function, *parts)


def _term(part: Any) -> Term:
    if is_number(part):
        return Literal(float(part) if isinstance(part, bool) else part)
    term: Term = part
    return term
