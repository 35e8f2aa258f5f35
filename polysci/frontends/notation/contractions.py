"""Sums of products over labelled axes, two tensors at a time."""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from opt_einsum import contract_path

from polysci.frontends.notation.ranges import StatementRanges
from polysci.frontends.notation.syntax import Element, Literal, Operation, Term
from polysci.graph.builder import GraphBuilder
from polysci.graph.graph import Tensor


@dataclass(frozen=True, slots=True)
class LabelledProduct:
    """``factor`` times the sum of products of elements, as an equation of einsum says."""

    tensors: tuple[str, ...]
    equation: str
    factor: float

    @property
    def is_matrix_product(self) -> bool:
        """Whether it is one product of two tensors, of which none is summed alone."""
        left, *others = self.equation.split("->")[0].split(",")
        result = self.equation.split("->")[1]
        if len(others) != 1 or any(len({*word}) < len(word) for word in (left, *others)):
            return False
        return {*left} ^ {*others[0]} <= {*result}


def labelled_product(
    ranges: StatementRanges, types: Mapping[str, str], shapes: Mapping[str, Sequence[int]]
) -> LabelledProduct | None:
    """A statement as such a sum of f32; None where it is none, or subscripts are no iterators."""
    statement, iterators = ranges.statement, ranges.iterators
    if statement.operator != "+=" or not ranges.reductions or len(iterators) > 52:
        return None
    factors = _factors(statement.value)
    elements = [part for part in factors if isinstance(part, Element)]
    numbers = [part.value for part in factors if isinstance(part, Literal)]
    if len(elements) + len(numbers) < len(factors) or len(elements) < 2:
        return None
    if any(types[name] != "float32" for name in (statement.tensor, *(e.tensor for e in elements))):
        return None
    letters = dict(zip(iterators, string.ascii_letters, strict=False))
    words, used = list[str](), set[str]()
    for element in elements:
        pairs = zip(element.index, shapes[element.tensor], strict=True)
        names = [_whole_axis(ranges, part, size) for part, size in pairs]
        if not all(names):
            return None
        words.append("".join(letters[name] for name in names))
        used |= {*names}
    if used < {*iterators} or all({*word} == {*words[0]} for word in words):
        return None  # of equal labels: no matrices
    result = "".join(letters[name] for name in statement.index)
    equation = f"{','.join(words)}->{result}"
    return LabelledProduct(tuple(e.tensor for e in elements), equation, float(prod(numbers)))


def _factors(term: Term) -> list[Term]:
    """The factors of a product."""
    if isinstance(term, Operation) and term.function == "mul":
        return [factor for part in term.arguments for factor in _factors(part)]
    return [term]


def _whole_axis(ranges: StatementRanges, term: Term, size: int) -> str:
    """The iterator that a subscript is, if it runs along the whole axis; else nothing."""
    form = ranges.affine(term)
    if form is None or form.const or len(form.terms) != 1:
        return ""
    ((name, coef),) = form.terms
    return name if coef == 1 and ranges.bounds(name) == (0, size) else ""


def contract(graph: GraphBuilder, tensors: Sequence[str], equation: str, output: str = "") -> str:
    """The tensor that an equation of einsum makes; opt_einsum says which two go together first.

    ``output`` is its name, by default a new one. Axes of one element run along all elements of
    others with their label.
    """
    shapes = [graph.shape(name) for name in tensors]
    path, plan = contract_path(equation, *shapes, shapes=True)
    words = plan.input_subscripts.split(",")
    terms = list(zip(tensors, words, strict=True))
    for positions in path:
        chosen = [terms[at] for at in sorted(positions)]
        terms = [term for at, term in enumerate(terms) if at not in positions]
        result = _result(chosen, [word for _, word in terms], plan.output_subscript)
        if len(chosen) == 2 and _leads(chosen[1][1], chosen[0][1], result):
            chosen = chosen[::-1]
        step = f"{','.join(word for _, word in chosen)}->{result}"
        names, sizes = [name for name, _ in chosen], dict[str, int]()
        for tensor, word in chosen:  # others may have more elements along a label
            for label, size in zip(word, graph.shape(tensor), strict=True):
                sizes[label] = max(sizes.get(label, 1), size)
        extents = [sizes[label] for label in result]
        name = output if output and not terms else graph.fresh("Einsum")
        dtype = graph.dtype(names[0])
        made = Tensor(name, tuple(extents), "float32" if dtype == "bf16" else dtype)
        terms.append((graph.put("Einsum", names, made, equation=step), result))
    return terms[0][0]


def _result(chosen: Sequence[tuple[str, str]], others: Sequence[str], output: str) -> str:
    """The labels that a step leaves: shared ones, then those of the first tensor."""
    if not others:
        return output
    needed = {*output, *"".join(others)}
    labels = dict.fromkeys("".join(word for _, word in chosen))
    kept = [label for label in labels if label in needed]
    return "".join(sorted(kept, key=lambda label: any(label not in word for _, word in chosen)))


def _leads(word: str, other: str, result: str) -> bool:
    """Whether the first label of the result that one tensor alone has is of ``word``."""
    own = [label for label in result if (label in word) != (label in other)]
    return bool(own) and own[0] in word
