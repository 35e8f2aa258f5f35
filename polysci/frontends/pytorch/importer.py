"""The calls of a program, in order, as nodes of a graph; what depends on weights alone is known."""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from polysci.errors import SpecError, UnsupportedError
from polysci.frontends.pytorch import (
    elementwise,
    layers,
    reductions,
    shape_ops,
    torchao,
    training,
)
from polysci.frontends.pytorch.call import AtenCall, AtenRefusal, AtenRule
from polysci.graph.builder import GraphBuilder
from polysci.graph.graph import Graph, QuantisedConstant, Tensor
from polysci.graph.refusals import NodeRefusal, RefusedNodesError
from polysci.numerics.arrays import Array

MOST_FOLDED: Final = 1 << 30  # bytes that are computed ahead at once
NO_RULE: Final = "polysci has no such operator"
OPERATORS: Mapping[str, AtenRule] = MappingProxyType(
    {
        **elementwise.RULES,
        **shape_ops.RULES,
        **layers.RULES,
        **reductions.RULES,
        **training.RULES,
        **torchao.RULES,
    }
)
# Operator that makes real numbers of whole ones -> these, of its arguments.
NUMBERS: Mapping[str, Callable[..., QuantisedConstant | None]] = MappingProxyType(
    {**dict.fromkeys(elementwise.DEQUANTISE, elementwise.numbers_of), **torchao.NUMBERS}
)
_TURNS = ("t", "transpose", "permute")  # of a matrix
_PLACE = re.compile(r'File "([^"]*)", line ([0-9]+)')
_DATA = "the shape of its output depends on data"


@dataclass(slots=True)
class AtenImporter:
    """A graph that grows by the calls of a program.

    ``values`` are tensors that are known, ``names`` those of the graph, by the program's node; a
    node of several results has a tuple of them. ``refusals`` are calls that cannot be expressed.
    """

    graph: GraphBuilder
    values: dict[Any, Any] = field(default_factory=dict)
    names: dict[Any, Any] = field(default_factory=dict)
    refusals: dict[Any, NodeRefusal] = field(default_factory=dict)
    shared: dict[Any, str] = field(default_factory=dict)  # by place and type, a constant

    def add_input(self, node: Any, name: str) -> Tensor:
        """Add an input of the graph. Raises SpecError for one without a fixed shape."""
        tensor = _tensor_of(name, node.meta["val"])
        self.graph.tensors[name] = tensor
        self.names[node] = name
        return tensor

    def add(self, node: Any) -> None:
        """Add a call: its nodes, or its result where it is known, or why it is refused."""
        if node.op != "call_function":
            reason = f"{node.op} of {node.target}"
            return self._refuse(node, reason)
        if not hasattr(node.target, "_schema"):
            return self._take_part(node)
        if self._fold(node):
            return None
        rule = OPERATORS.get(operator_name(node.target))
        if rule is None:
            return self._refuse(node, NO_RULE)
        start = len(self.graph.nodes)
        try:
            results = rule(AtenCall(self.graph, _results(node)), **_arguments(node, self.name))
            _check_results(node, results)
            self._check_types(node, [results] if isinstance(results, str) else results)
        except (AtenRefusal, SpecError, UnsupportedError) as error:
            del self.graph.nodes[start:]
            return self._refuse(node, str(error))
        except (TypeError, ValueError, LookupError, ArithmeticError) as error:  # of another kind
            del self.graph.nodes[start:]
            return self._refuse(node, f"arguments that no rule takes ({error})")
        self.names[node] = self._rename(node, start, results)
        return None

    def _check_types(self, node: Any, names: Sequence[str]) -> None:
        """Raise AtenRefusal where a rule makes another type or shape than PyTorch.

        Gradients that nobody wants are None to PyTorch, and may be empty names here.
        """
        values = node.meta["val"] if _several(node) else [node.meta["val"]]
        for value, name in zip(values, names, strict=False):
            if not name or not hasattr(value, "dtype"):
                continue
            tensor, result = self.graph.tensors[name], _tensor_of(node.name, value)
            if (tensor.shape, tensor.dtype) != (result.shape, result.dtype):
                raise AtenRefusal(f"elements of {result.dtype} here")

    def name(self, node: Any) -> str:
        """Return the tensor of a node; a constant, if it is known."""
        if node not in self.names:
            self.names[node] = self._learn(node.name, self.values[node])
            if node.op == "call_function" and hasattr(node.target, "_schema"):
                self._note_numbers(node)
        name: str = self.names[node]
        if not name:
            raise AtenRefusal("an output of it that is not computed here")
        return name

    def _learn(self, name: str, value: Any) -> str:
        """Add a constant; tensors that share all of their memory are one."""
        memory = (value.data_ptr(), tuple(value.shape), value.stride(), value.dtype)
        if value.numel() and memory in self.shared:
            return self.shared[memory]
        array = array_of(value)
        self.shared[memory] = name
        self.graph.constants[name] = array
        self.graph.tensors[name] = Tensor(name, array.shape, array.dtype.name)
        return name

    def _note_numbers(self, node: Any) -> None:
        """Note the quantised numbers of which a constant is the value."""
        numbers = self._numbers_of(node)
        if numbers is not None:
            self.graph.dequantised[self.names[node]] = numbers

    def _numbers_of(self, node: Any) -> QuantisedConstant | None:
        """Return the numbers of which a known call makes reals, or moves what another one made."""
        if node.op != "call_function" or not hasattr(node.target, "_schema"):
            return None
        name, value = operator_name(node.target), self.values[node]
        if name in _TURNS and value.dim() == 2:
            source = node.all_input_nodes[0]
            turned = self.values[source].T
            if (value.shape, value.stride()) != (turned.shape, turned.stride()):
                return None
            inner = self._numbers_of(source)
            return inner.transposed if inner else None
        if name not in NUMBERS or str(value.dtype) != "torch.float32":
            return None
        return NUMBERS[name](**_arguments(node, lambda part: _widened(self.values[part])))

    def _take_part(self, node: Any) -> None:
        """Pick one result of a call that has several."""
        source, *place = node.args
        if node.target.__name__ != "getitem" or not isinstance(place[0], int):
            return self._refuse(node, NO_RULE)
        if source in self.values:
            self.values[node] = self.values[source][place[0]]
        else:
            self.names[node] = self.names[source][place[0]]
        return None

    def _fold(self, node: Any) -> bool:
        """Tell whether PyTorch can compute it now, as all of its inputs are known."""
        sources = node.all_input_nodes
        random = any("nondeterministic" in str(tag) for tag in node.target.tags)
        if random or any(source not in self.values for source in sources):
            return False
        if sum(_bytes_of(value) for value in _leaves(node.meta["val"])) > MOST_FOLDED:
            return False
        self.values[node] = node.target(
            *_map_nodes(node.args, self.values.__getitem__),
            **_map_nodes(dict(node.kwargs), self.values.__getitem__),
        )
        return True

    def _refuse(self, node: Any, reason: str) -> None:
        module, place = module_path(node), source_place(node)
        where = f"{node.name}{module and f' of {module}'}{place and f', {place}'}"
        self.refusals[node] = NodeRefusal(str(node.target), where, reason)
        parts = node.meta["val"] if _several(node) else [node.meta["val"]]
        names = [node.name + f".{at}" * (len(parts) > 1) for at in range(len(parts))]
        for name, part in zip(names, parts, strict=True):
            if hasattr(part, "dtype"):
                self.graph.tensors[name] = _tensor_of(name, part)
        self.names[node] = tuple(names) if _several(node) else names[0]

    def _rename(self, node: Any, start: int, results: Any) -> Any:
        """Rename the results of a call as the program does, and its nodes as the call."""
        graph, titles = self.graph, dict[str, str]()
        new = {name for part in graph.nodes[start:] for name in part.outputs}
        parts = [results] if isinstance(results, str) else [*results]
        for at, name in enumerate(parts):
            if name in new and name not in titles:
                titles[name] = node.name if not _several(node) else f"{node.name}.{at}"
        for at in range(start, len(graph.nodes)):
            part = graph.nodes[at]
            inputs, outputs = (
                tuple(titles.get(name, name) for name in names)
                for names in (part.inputs, part.outputs)
            )
            graph.nodes[at] = replace(part, inputs=inputs, outputs=outputs, name=node.name)
        for old, title in titles.items():
            graph.tensors[title] = replace(graph.tensors.pop(old), name=title)
        named = tuple(titles.get(name, name) for name in parts)
        return named if _several(node) else named[0]


def import_calls(
    title: str, calls: Iterable[Any], inputs: Sequence[Any], outputs: Sequence[Any],
    values: Mapping[Any, Any], titles: Mapping[Any, str] = MappingProxyType({}),
) -> tuple[Graph, AtenImporter]:  # fmt: skip
    """Import the calls between inputs and outputs, all of them nodes of a program.

    ``values`` are the tensors that are known, ``titles`` other names of inputs. What cannot be
    expressed is in the importer, and its results have no maker.
    """
    empty = Graph(title, (), (), (), {}, {})
    importer = AtenImporter(GraphBuilder(empty), dict(values))
    tensors = [importer.add_input(node, titles.get(node, node.name)) for node in inputs]
    for node in calls:
        importer.add(node)
    names = list[str]()
    for node in outputs:
        name = importer.name(node)
        if name in names:
            graph = importer.graph
            name = graph.add("identity", (name,), graph.shape(name), graph.dtype(name))
        names.append(name)
    return importer.graph.to_graph(tensors, names), importer


def graph_of_calls(
    title: str, calls: Iterable[Any], inputs: Sequence[Any], outputs: Sequence[Any],
    values: Mapping[Any, Any], titles: Mapping[Any, str] = MappingProxyType({}),
) -> Graph:  # fmt: skip
    """Import calls; raise RefusedNodesError, which lists all that cannot be expressed."""
    graph, importer = import_calls(title, calls, inputs, outputs, values, titles)
    if importer.refusals:
        raise RefusedNodesError(title, [*importer.refusals.values()])
    return graph


def operator_name(target: Any) -> str:
    """Return the name of an ATen operator without its overload; of others with the library's."""
    return str(target._schema.name).removeprefix("aten::")


def module_path(node: Any) -> str:
    """Return the path of the submodule that calls it; empty where none is known."""
    stack = [*(node.meta.get("nn_module_stack") or {}).values()]
    return str(stack[-1][0]) if stack else ""


def source_place(node: Any) -> str:
    """Return where the source calls it; empty where the program does not say."""
    places = _PLACE.findall(node.meta.get("stack_trace") or "")
    return f"{places[-1][0].rsplit('/', 1)[-1]}:{places[-1][1]}" if places else ""


def array_of(tensor: Any) -> Array:
    """Return the elements of a tensor on the CPU, shared where they can be, or on a CUDA device.

    Raises UnsupportedError for elements that NumPy lacks, or a tensor that is not in memory.
    """
    kind = str(tensor.dtype).removeprefix("torch.")
    is_dense = str(tensor.layout) == "torch.strided"
    if not is_dense or kind == "bfloat16" or tensor.device.type not in ("cpu", "cuda"):
        raise UnsupportedError(
            f"a tensor of {kind} on {tensor.device}: expected one of f32, f64, bool or integers "
            "on the CPU; module.float() converts weights, and dtype='bf16' computes in bf16"
        )
    array: Array = tensor.detach().resolve_conj().resolve_neg().cpu().numpy()
    return array


def _widened(tensor: Any) -> Array:
    """Return the elements of a tensor; those of bf16, which NumPy lacks, in f32."""
    return array_of(tensor.float() if str(tensor.dtype) == "torch.bfloat16" else tensor)


def _tensor_of(name: str, value: Any) -> Tensor:
    """Raise SpecError for a shape that is not fixed."""
    if not all(isinstance(size, int) for size in value.shape):
        raise SpecError(f"{name}: {_DATA}")
    return Tensor(name, tuple(value.shape), str(value.dtype).removeprefix("torch."))


def _results(node: Any) -> tuple[Tensor, ...]:
    return tuple(_tensor_of(node.name, value) for value in _leaves(node.meta["val"]))


def _check_results(node: Any, results: Any) -> None:
    """Raise AtenRefusal where somebody reads a result that its rule does not make."""
    if _several(node) and any(
        reader.users and not results[reader.args[1]]
        for reader in node.users if getattr(reader.target, "__name__", "") == "getitem"
    ):  # fmt: skip
        raise AtenRefusal("an output of it that is not computed here")


def _several(node: Any) -> bool:
    return isinstance(node.meta["val"], list | tuple)


def _leaves(value: Any) -> list[Any]:
    values = value if isinstance(value, list | tuple) else [value]
    return [part for part in values if hasattr(part, "dtype")]


def _bytes_of(value: Any) -> int:
    return int(np.prod(value.shape, dtype=np.int64)) * int(value.element_size())


def _arguments(node: Any, value_of: Callable[[Any], Any]) -> dict[str, Any]:
    """Return arguments by the names of the schema; ``self`` and ``input`` are ``x``."""
    names = [part.name for part in node.target._schema.arguments]
    arguments = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
    return {
        "x" if name in ("self", "input") else name: _map_nodes(value, value_of)
        for name, value in arguments.items()
    }


def _map_nodes(value: Any, function: Any) -> Any:
    """Apply a function to every node among arguments."""
    if isinstance(value, list | tuple):
        return [_map_nodes(part, function) for part in value]
    if isinstance(value, dict):
        return {name: _map_nodes(part, function) for name, part in value.items()}
    return function(value) if hasattr(value, "all_input_nodes") else value


def select_calls(
    nodes: Sequence[Any], outputs: Iterable[Any], known: Container[Any] = ()
) -> Iterator[Any]:
    """Return the calls on which outputs depend, in order, but for those behind what is known."""
    needed, queue = set[Any](), [*outputs]
    while queue:
        node = queue.pop()
        if node not in needed and node not in known:
            needed.add(node)
            queue += node.all_input_nodes
    return (node for node in nodes if node in needed and node.op != "placeholder")
