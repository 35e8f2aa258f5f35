"""A comprehension of known sizes -> the graph of a network."""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from os import PathLike
from typing import Final

from opt_einsum import contract_path

from polysci.border.files import read_text
from polysci.frontends.notation.elaborate import Elaborated, elaborate, is_real, tensor_types
from polysci.frontends.notation.parser import parse
from polysci.frontends.notation.ranges import ComprehensionRanges, StatementRanges, infer_shapes
from polysci.frontends.notation.statements import Elements, check_subscripts
from polysci.frontends.notation.syntax import (
    Literal,
    Operation,
    TensorElement,
    Term,
    rewrite_statement,
)
from polysci.graph.builder import GraphBuilder
from polysci.graph.graph import ELEMENTS, Graph, Tensor
from polysci.loop_ir.expressions import Apply, Expr, Load, Number, Reduce


@dataclass(frozen=True, slots=True)
class LabelledProduct:
    """``factor`` times the sum of products of elements, as an equation of einsum says."""

    tensors: tuple[str, ...]
    equation: str
    factor: float

    @property
    def is_matrix_product(self) -> bool:
        """Tell whether it is one product of two tensors, of which none is summed alone."""
        left, *others = self.equation.split("->")[0].split(",")
        result = self.equation.split("->")[1]
        if len(others) != 1 or any(len({*word}) < len(word) for word in (left, *others)):
            return False
        return {*left} ^ {*others[0]} <= {*result}


def match_product(
    ranges: StatementRanges, types: Mapping[str, str], shapes: Mapping[str, Sequence[int]]
) -> LabelledProduct | None:
    """Return a statement as such a sum of f32; None for others, and for computed subscripts."""
    statement, iterators = ranges.statement, ranges.iterators
    if statement.operator != "+=" or not ranges.reductions or len(iterators) > 52:
        return None
    factors = _factors(statement.value)
    elements = [part for part in factors if isinstance(part, TensorElement)]
    numbers = [part.value for part in factors if isinstance(part, Literal)]
    if len(elements) + len(numbers) < len(factors) or len(elements) < 2:
        return None
    if any(types[name] != "float32" for name in (statement.tensor, *(e.tensor for e in elements))):
        return None
    letters = dict(zip(iterators, string.ascii_letters, strict=False))
    terms, used = list[str](), set[str]()
    for element in elements:
        pairs = zip(element.index, shapes[element.tensor], strict=True)
        names = [_whole_axis(ranges, part, size) for part, size in pairs]
        if not all(names):
            return None
        terms.append("".join(letters[name] for name in names))
        used |= {*names}
    if used < {*iterators} or all({*term} == {*terms[0]} for term in terms):
        return None  # of equal labels: no matrices
    result = "".join(letters[name] for name in statement.index)
    equation = f"{','.join(terms)}->{result}"
    return LabelledProduct(tuple(e.tensor for e in elements), equation, float(prod(numbers)))


def _factors(term: Term) -> list[Term]:
    """List the factors of a product."""
    if isinstance(term, Operation) and term.function == "mul":
        return [factor for part in term.arguments for factor in _factors(part)]
    return [term]


def _whole_axis(ranges: StatementRanges, term: Term, size: int) -> str:
    """Return the iterator that a subscript is if it runs along the whole axis, else ""."""
    form = ranges.affine(term)
    if form is None or form.const or len(form.terms) != 1:
        return ""
    ((name, coef),) = form.terms
    return name if coef == 1 and ranges.bounds(name) == (0, size) else ""


def contract(graph: GraphBuilder, tensors: Sequence[str], equation: str, output: str = "") -> str:
    """Add the products of an equation of einsum, in opt_einsum's order; return the result's name.

    ``output`` is its name, by default a new one. Axes of one element run along all elements of
    others with their label.
    """
    shapes = [graph.shape(name) for name in tensors]
    path, plan = contract_path(equation, *shapes, shapes=True)
    terms = list(zip(tensors, plan.input_subscripts.split(","), strict=True))
    for positions in path:
        chosen = [terms[at] for at in sorted(positions)]
        terms = [term for at, term in enumerate(terms) if at not in positions]
        result = _result(chosen, [labels for _, labels in terms], plan.output_subscript)
        if len(chosen) == 2 and _leads(chosen[1][1], chosen[0][1], result):
            chosen = chosen[::-1]
        step = f"{','.join(labels for _, labels in chosen)}->{result}"
        names, sizes = [name for name, _ in chosen], dict[str, int]()
        for tensor, labels in chosen:  # others may have more elements along a label
            for label, size in zip(labels, graph.shape(tensor), strict=True):
                sizes[label] = max(sizes.get(label, 1), size)
        name = output if output and not terms else graph.fresh("einsum")
        dtype = "float32" if graph.dtype(names[0]) == "bf16" else graph.dtype(names[0])
        product = Tensor(name, tuple(sizes[label] for label in result), dtype)
        terms.append((graph.put("einsum", names, product, equation=step), result))
    return terms[0][0]


def _result(chosen: Sequence[tuple[str, str]], others: Sequence[str], output: str) -> str:
    """Return the labels that a step leaves: shared ones, then those of the first tensor."""
    if not others:
        return output
    needed = {*output, *"".join(others)}
    terms = [labels for _, labels in chosen]
    kept = [label for label in dict.fromkeys("".join(terms)) if label in needed]
    return "".join(sorted(kept, key=lambda label: any(label not in term for term in terms)))


def _leads(term: str, other: str, result: str) -> bool:
    """Tell whether the first label of the result that one tensor alone has is of ``term``."""
    single = [label for label in result if (label in term) != (label in other)]
    return bool(single) and single[0] in term


# Element types that arrays hold and loops do not compute with -> what these compute with.
_STORED: Final = {"float16": "float32", "bf16": "float32"}
# ... and what rounds to their numbers.
_ROUNDING: Final = {"float16": "half", "bf16": "brain"}
_SUMS: Final = ""  # what a statement reads where its value has a node of its own


@dataclass(slots=True)
class _Statements(GraphBuilder):
    """The graph while statements add to it; ``versions``: tensor of the text -> newest name."""

    inference: ComprehensionRanges = field(kw_only=True)
    types: Mapping[str, str] = field(kw_only=True)
    versions: dict[str, str] = field(default_factory=dict)
    named: dict[str, str] = field(default_factory=dict)  # tensor -> the output that it is
    stored: dict[str, str] = field(default_factory=dict)  # tensor -> the same as bf16

    def add_input(self, name: str) -> Tensor:
        """Add an input; one of 16 bits is cast for all that reads it but products of bf16."""
        dtype = self.types[name]
        tensor = Tensor(name, self.inference.shape(name), dtype)
        self.tensors[name], self.versions[name] = tensor, name
        if dtype in _STORED:
            self.versions[name] = self.add("cast", (name,), tensor.shape, _STORED[dtype])
        if dtype == "bf16":
            self.stored[self.versions[name]] = name
        return tensor

    def factors(self, product: LabelledProduct) -> list[str]:
        """Return the tensors of a product: as bf16 where they are and one layer multiplies them."""
        names = [self.versions[name] for name in product.tensors]
        if not product.is_matrix_product or {self.types[n] for n in product.tensors} != {"bf16"}:
            return names
        for name in names:
            if name not in self.stored:
                self.stored[name] = self.add("cast", (name,), self.shape(name), "bf16")
        return [self.stored[name] for name in names]

    def run(self, ranges: StatementRanges) -> None:
        """Add the newest version of a statement's target."""
        target = ranges.statement.tensor
        types = {name: _STORED.get(dtype, dtype) for name, dtype in self.types.items()}
        shapes = {name: self.inference.shape(name) for name in self.inference.axes}
        check_subscripts(ranges, types, shapes)
        kind = "" if ranges.is_first else self.types[target]  # a new tensor's values have its type
        rounding = _ROUNDING.get(kind, "")
        elements, versions = Elements(ranges, types, shapes, rounding=rounding), self.versions
        product = match_product(ranges, types, shapes)
        if product is not None:
            factors = self.factors(product)
            versions = {**versions, _SUMS: contract(self, factors, product.equation)}
            value: Expr = elements.whole(_SUMS)
            if product.factor != 1:
                value = Apply("mul", (value, Number(product.factor)))
        else:
            value = elements.reduce()
            if isinstance(value, Reduce) and elements.is_combined:  # which may be a layer
                versions = {**versions, _SUMS: self.define(elements, versions, value)}
                elements = Elements(ranges, types, shapes, rounding=rounding)
                value = elements.whole(_SUMS)
            elif isinstance(value, Reduce) and elements.range_guards:  # read nowhere else
                inner = Elements(ranges, types, shapes, within=True)
                reduced = inner.reduce()
                versions = {**versions, _SUMS: self.define(inner, versions, reduced)}
                elements = Elements(ranges, types, shapes, rounding=rounding)
                value = elements.part(_SUMS)
        expr = elements.define(value)
        if isinstance(expr, Load) and elements.reads == [_SUMS]:
            self.versions[target] = versions[_SUMS]
            return
        match expr:
            case Apply("brain", (wide,)) if self.types[target] == "bf16":  # which layers write
                narrow = self.add("cast", (self.define(elements, versions, wide),),
                                  elements.extents, "bf16")  # fmt: skip
                newest = self.add("cast", (narrow,), elements.extents, "float32")
                self.stored[newest] = narrow
            case _:
                newest = self.define(elements, versions, expr)
        self.versions[target] = newest

    def define(self, elements: Elements, versions: Mapping[str, str], expr: Expr) -> str:
        """Add a tensor by the expression of its elements, of the target's shape or within it."""
        target = elements.ranges.statement.tensor
        dtype = elements.reduced_type if elements.within else elements.types[target]
        output = Tensor(self.fresh(target), elements.extents, dtype)
        names = [versions[name] for name in elements.reads]
        return self.put(ELEMENTS, names, output, expr=expr)

    def finish(self, name: str) -> str:
        """Return the output of a name, which an input may have as well."""
        inner = self.versions[name]
        if self.types[name] == "bf16":
            inner = self.stored.get(inner, inner)
        dtype, shape = self.tensors[inner].dtype, self.tensors[inner].shape
        stored = self.types[name] if self.types[name] in _STORED else dtype
        output = f"{name}_out" if name in self.tensors else name
        while output in self.tensors:
            output += "_"
        is_computed = any(inner in node.outputs for node in self.nodes)
        if is_computed and stored == dtype and inner not in self.named:
            self.named[inner] = output
            self.tensors[output] = Tensor(output, shape, stored)
            return output
        op = "identity" if stored == dtype else "cast"
        self.put(op, [inner], Tensor(output, shape, stored))
        return output


def graph_of_comprehension(
    whole: Elaborated, sizes: Mapping[str, int]
) -> tuple[Graph, ComprehensionRanges]:
    """Return the graph of a comprehension; outputs that are inputs as well end in ``_out``.

    Scalars that ``sizes`` has a value for are no inputs. Raises SpecError as ``infer_shapes`` does.
    """
    whole = _with_scalars(whole, sizes)
    inference = infer_shapes(whole, sizes)
    comprehension = whole.comprehension
    empty = Graph(comprehension.name, (), (), (), {}, {})
    graph = _Statements(empty, inference=inference, types=tensor_types(comprehension))
    declared = [tensor.name for tensor in comprehension.inputs if tensor.name not in sizes]
    inputs = [graph.add_input(name) for name in declared]
    for ranges in inference.statements:
        graph.run(ranges)
    outputs = [graph.finish(name) for name in comprehension.outputs]
    graph.nodes[:] = [
        replace(node, inputs=tuple(graph.named.get(name, name) for name in node.inputs),
                outputs=tuple(graph.named.get(name, name) for name in node.outputs))
        for node in graph.nodes
    ]  # fmt: skip
    return graph.to_graph(inputs, outputs), inference


def _with_scalars(whole: Elaborated, sizes: Mapping[str, int]) -> Elaborated:
    """Replace scalars by the values that ``sizes`` has."""
    types = tensor_types(whole.comprehension)

    def change(term: Term) -> Term:
        match term:
            case TensorElement(name, ()) if name in sizes:
                return Literal(float(sizes[name]) if is_real(types[name]) else sizes[name])
        return term

    statements = tuple(rewrite_statement(statement, change) for statement in whole.statements)
    return replace(whole, comprehension=replace(whole.comprehension, statements=statements))


def load_notation(path: str | PathLike[str], sizes: Mapping[str, int]) -> Graph:
    """Return the graph of the last comprehension of a file.

    Raises SpecError for a file that cannot be read, and as ``graph_of_comprehension`` does.
    """
    return graph_of_comprehension(elaborate(parse(read_text(path))), sizes)[0]
