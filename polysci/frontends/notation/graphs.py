"""A comprehension of known sizes -> the graph of a network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from os import PathLike
from typing import Final

from polysci.border.files import read_named
from polysci.errors import SpecError
from polysci.frontends.notation.contractions import (
    LabelledProduct,
    contract,
    labelled_product,
)
from polysci.frontends.notation.elaborate import Elaborated, elaborate
from polysci.frontends.notation.element_types import is_real, tensor_types
from polysci.frontends.notation.index_checks import check_subscripts
from polysci.frontends.notation.parser import parse
from polysci.frontends.notation.ranges import Inference, StatementRanges
from polysci.frontends.notation.sizes import infer_shapes
from polysci.frontends.notation.statements import Elements
from polysci.frontends.notation.syntax import (
    Element,
    Literal,
    Term,
    rewrite_statement,
)
from polysci.graph.builder import GraphBuilder
from polysci.graph.graph import ELEMENTS, Graph, Tensor
from polysci.loop_ir.expressions import Apply, Expr, Load, Number, Reduce
from polysci.text.lengths import cut_line

OPSET: Final = 24
# Element types that arrays hold and loops do not compute with -> what these compute with.
_STORED: Final = {"float16": "float32", "bf16": "float32"}
# ... and what rounds to their numbers.
_ROUNDING: Final = {"float16": "half", "bf16": "brain"}
_SUMS: Final = ""  # what a statement reads where its value has a node of its own


@dataclass(slots=True)
class _Statements(GraphBuilder):
    """The graph while statements add to it; ``versions``: tensor of the text -> newest name."""

    inference: Inference = field(kw_only=True)
    types: Mapping[str, str] = field(kw_only=True)
    versions: dict[str, str] = field(default_factory=dict)
    named: dict[str, str] = field(default_factory=dict)  # tensor -> the output that it is
    stored: dict[str, str] = field(default_factory=dict)  # tensor -> the same as bf16

    def add_input(self, name: str) -> Tensor:
        """An input; one of 16 bits is cast before anything but products of bf16 reads it."""
        dtype = self.types[name]
        tensor = Tensor(name, self.inference.shape(name), dtype)
        self.tensors[name] = tensor
        inner = _STORED.get(dtype, dtype)
        cast = dtype != inner
        self.versions[name] = self.add("Cast", (name,), tensor.shape, inner) if cast else name
        if dtype == "bf16":
            self.stored[self.versions[name]] = name
        return tensor

    def factors(self, product: LabelledProduct) -> list[str]:
        """The tensors of a product: as bf16 where they are and one layer multiplies them."""
        names = [self.versions[name] for name in product.tensors]
        if not product.is_matrix_product or {self.types[n] for n in product.tensors} != {"bf16"}:
            return names
        for name in names:
            if name not in self.stored:
                self.stored[name] = self.add("Cast", (name,), self.shape(name), "bf16")
        return [self.stored[name] for name in names]

    def run(self, ranges: StatementRanges) -> None:
        """The newest version of a statement's target."""
        target = ranges.statement.tensor
        types = {name: _STORED.get(dtype, dtype) for name, dtype in self.types.items()}
        shapes = {name: self.inference.shape(name) for name in self.inference.axes}
        check_subscripts(ranges, types, shapes)
        kind = "" if ranges.is_first else self.types[target]  # a new tensor's values have its type
        rounding = _ROUNDING.get(kind, "")
        elements, versions = Elements(ranges, types, shapes, rounding=rounding), self.versions
        product = labelled_product(ranges, types, shapes)
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
                narrow = self.add("Cast", (self.define(elements, versions, wide),),
                                  elements.extents, "bf16")  # fmt: skip
                made = self.add("Cast", (narrow,), elements.extents, "float32")
                self.stored[made] = narrow
            case _:
                made = self.define(elements, versions, expr)
        self.versions[target] = made

    def define(self, elements: Elements, versions: Mapping[str, str], expr: Expr) -> str:
        """A tensor by what an element of it is: of the target's type and shape, or within it."""
        target = elements.ranges.statement.tensor
        dtype = elements.reduced_type if elements.within else elements.types[target]
        output = Tensor(self.fresh(target), elements.extents, dtype)
        names = [versions[name] for name in elements.reads]
        return self.put(ELEMENTS, names, output, expr=expr)

    def finish(self, name: str) -> str:
        """The output of a name, which an input may have as well."""
        inner = self.versions[name]
        if self.types[name] == "bf16":
            inner = self.stored.get(inner, inner)
        dtype, shape = self.tensors[inner].dtype, self.tensors[inner].shape
        stored = self.types[name] if self.types[name] in _STORED else dtype
        output = f"{name}_out" if name in self.tensors else name
        while output in self.tensors:
            output += "_"
        made = any(inner in node.outputs for node in self.nodes)
        if made and stored == dtype and inner not in self.named:
            self.named[inner] = output
            self.tensors[output] = Tensor(output, shape, stored)
            return output
        op = "Identity" if stored == dtype else "Cast"
        self.put(op, [inner], Tensor(output, shape, stored))
        return output


def graph_of_comprehension(whole: Elaborated, sizes: Mapping[str, int]) -> tuple[Graph, Inference]:
    """The graph of a comprehension; outputs that are inputs as well end in ``_out``.

    Scalars that ``sizes`` has a value for are no inputs. Raises SpecError as ``infer_shapes`` does.
    """
    whole = _with_scalars(whole, sizes)
    inference = infer_shapes(whole, sizes)
    comprehension = whole.comprehension
    empty = Graph(comprehension.name, (), (), (), {}, {}, OPSET)
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
    return graph.grown(inputs, outputs), inference


def _with_scalars(whole: Elaborated, sizes: Mapping[str, int]) -> Elaborated:
    """The comprehension with the values of ``sizes`` instead of scalars."""
    types = tensor_types(whole.comprehension)

    def change(term: Term) -> Term:
        match term:
            case Element(name, ()) if name in sizes:
                return Literal(float(sizes[name]) if is_real(types[name]) else sizes[name])
        return term

    statements = tuple(rewrite_statement(statement, change) for statement in whole.statements)
    return replace(whole, comprehension=replace(whole.comprehension, statements=statements))


def load_notation(path: str | PathLike[str], sizes: Mapping[str, int]) -> Graph:
    """The graph of the last comprehension of a file.

    Raises SpecError for a file that cannot be read, and as ``graph_of_comprehension`` does.
    """
    try:
        text = read_named(path).decode("utf-8-sig")
    except OSError as error:
        raise SpecError(f"{cut_line(path)}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise SpecError(f"{path}: not UTF-8 text: byte {error.start} is {error.reason}") from None
    return graph_of_comprehension(elaborate(parse(text)), sizes)[0]
