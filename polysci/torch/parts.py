"""The parts of a program that become compiled networks, each compared with eager."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import getitem
from types import MappingProxyType
from typing import Any, Final

import torch
from torch.utils import _pytree as pytree

from polysci.frontends.pytorch import shape_ops
from polysci.frontends.pytorch.importer import (
    graph_of_calls,
    import_calls,
    operator_name,
    select_calls,
)
from polysci.frontends.pytorch.program import Operators, TorchProgram, run_calls
from polysci.graph.builder import GraphBuilder
from polysci.graph.graph import Graph
from polysci.graph.operators.lower import lower
from polysci.graph.passes.table import simplify
from polysci.graph.refusals import NodeRefusal, RefusedNodesError
from polysci.network.compiled import Network
from polysci.network.debug import FACTOR, LEAST, bound_of
from polysci.numerics.arrays import Array
from polysci.numerics.differences import largest_error
from polysci.torch.compiled_part import CompiledPart, PartReport, PartTensor

aten = torch.ops.aten


def _sort(x: Any, dim: int = -1, descending: bool = False) -> Any:
    return torch.sort(x, dim=dim, descending=descending, stable=True)


def _stable_sort(
    x: Any, *, stable: bool | None = None, dim: int = -1, descending: bool = False
) -> Any:
    return _sort(x, dim, descending)


def _argsort(x: Any, dim: int = -1, descending: bool = False) -> Any:
    return _sort(x, dim, descending)[1]


def _top(x: Any, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:  # noqa: A002
    if not x.dim():
        return aten.topk.default(x, k, dim, largest, sorted)
    return tuple(part.narrow(dim, 0, k).contiguous() for part in _sort(x, dim, largest))


FIRST_OF_EQUAL: Final[Operators] = MappingProxyType(
    {
        aten.sort.default: _sort,
        aten.sort.stable: _stable_sort,
        aten.argsort.default: _argsort,
        aten.topk.default: _top,
    }
)
AS_PYTORCH: Final[Operators] = MappingProxyType({})


# Of a result beside eager's: with any error of eager's it is within the bound beside f64.
NEAR: Final = LEAST * (1 - 1 / FACTOR)
LEAST_CALLS: Final = 1  # of a part that do more than move elements


@dataclass(frozen=True, slots=True)
class Part:
    """Calls of a program that one network computes; nodes of the program all of them."""

    calls: tuple[Any, ...]
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]


# Calls that PyTorch computes, then a part.
Phases = tuple[tuple[tuple[Any, ...], Part | None], ...]


@dataclass(frozen=True, slots=True)
class Split:
    """A program as phases: of each the calls that PyTorch computes, then a part, if it has one.

    ``refused`` are the calls that PyTorch computes, ``known`` the tensors that depend on weights
    alone, by node, ``graphs`` those of the parts.
    """

    phases: Phases
    refused: Mapping[Any, NodeRefusal]
    known: Mapping[Any, Any]
    graphs: Mapping[Part, Graph]

    @property
    def parts(self) -> list[Part]:
        return [part for _, part in self.phases if part]


def split_program(program: TorchProgram) -> Split:
    """Split into the largest parts: calls that nothing unsupported lies between."""
    calls = [*select_calls(program.nodes, program.made)]
    _, importer = import_calls(program.where, calls, program.inputs, [], program.values)
    known = {**program.values, **importer.values}
    refused = dict(importer.refusals)
    while True:
        phases = _phases(program, calls, known, refused)
        graphs, more = dict[Part, Graph](), dict[Any, NodeRefusal]()
        for part in [part for _, part in phases if part]:
            try:
                graphs[part] = graph_of_part(program, part)
                lower(graphs[part])
            except RefusedNodesError as error:
                more |= _refusals(part, error)
        if not more:
            return Split(phases, refused, known, graphs)
        refused |= more


def _phases(
    program: TorchProgram, calls: Sequence[Any], known: Mapping[Any, Any],
    refused: Mapping[Any, NodeRefusal],
) -> Phases:  # fmt: skip
    """Group calls that have as many changes between PyTorch and networks before them."""
    phase = dict[Any, int]()
    for node in calls:
        if node in known:
            continue
        apart = _is_apart(node, refused)
        sources = [source for source in node.all_input_nodes if source in phase]
        steps = [phase[source] + (_is_apart(source, refused) != apart) for source in sources]
        phase[node] = max([*steps, 0 if apart else 1])
    count = max(phase.values(), default=0) + 1
    phases = list[tuple[tuple[Any, ...], Part | None]]()
    for number in range(count):
        phase_calls = [node for node in phase if phase[node] == number]
        part = part_of(program, [n for n in phase_calls if not _is_apart(n, refused)], known)
        left = tuple(node for node in phase_calls if part is None or _is_apart(node, refused))
        phases.append((left, part))
    return tuple(phases)


def _is_apart(node: Any, refused: Mapping[Any, NodeRefusal]) -> bool:
    """Tell whether PyTorch computes a call, or the one of whose results it is one."""
    return node in refused or (node.target is getitem and node.args[0] in refused)


def part_of(program: TorchProgram, calls: Sequence[Any], known: Mapping[Any, Any]) -> Part | None:
    """Return calls as a part; None where they only move elements."""
    if sum(_computes(node) for node in calls) < LEAST_CALLS:
        return None
    inside, results = {*calls}, {*program.made}
    inputs = dict.fromkeys(
        source for node in calls for source in node.all_input_nodes
        if source not in inside and source not in known
    )  # fmt: skip
    outputs = tuple(
        node for node in calls
        if not isinstance(node.meta["val"], list | tuple)
        and (node in results or any(reader not in inside for reader in node.users))
    )  # fmt: skip
    return Part(tuple(calls), tuple(inputs), outputs)


def _computes(node: Any) -> bool:
    target = node.target
    return hasattr(target, "_schema") and operator_name(target) not in shape_ops.RULES


def graph_of_part(program: TorchProgram, part: Part, *, any_size: bool = False) -> Graph:
    """Return the graph of a part, whose inputs and outputs lie in memory as PyTorch's do.

    ``any_size`` is that of ``simplify``.
    """
    calls = _with_known(program, part)
    graph = graph_of_calls(program.where, calls, part.inputs, part.outputs, program.values)
    return simplify(with_orders(graph, part), any_size=any_size)


def _with_known(program: TorchProgram, part: Part) -> list[Any]:
    """Return the calls, and those before them that depend on weights alone."""
    return [*select_calls(program.nodes, part.calls, {*part.inputs, *program.values})]


def with_orders(graph: Graph, part: Part) -> Graph:
    """Transpose the inputs and outputs of a graph whose channels are the last axis in memory."""
    growing = GraphBuilder(replace(graph, nodes=()))
    inputs, outputs = [], []
    for tensor, node in zip(graph.inputs, part.inputs, strict=True):
        port = PartTensor.of(node)
        if port.channels_last:
            name = growing.fresh(tensor.name)
            shape = tuple(tensor.shape[at] for at in port.order)
            growing.tensors[name] = replace(tensor, name=name, shape=shape)
            back = [port.order.index(at) for at in range(len(shape))]
            del growing.tensors[growing.transpose(name, back)]
            growing.nodes[-1] = replace(growing.nodes[-1], outputs=(tensor.name,))
            tensor = growing.tensors[name]
        inputs.append(tensor)
    growing.nodes += graph.nodes
    for tensor, node in zip(graph.outputs, part.outputs, strict=True):
        port = PartTensor.of(node)
        outputs.append(
            growing.transpose(tensor.name, port.order) if port.channels_last else tensor.name
        )
    return growing.to_graph(inputs, outputs)


def _refusals(part: Part, error: RefusedNodesError) -> dict[Any, NodeRefusal]:
    """Return the calls of a part that no network computes, with reasons."""
    names = {refusal.node.split()[-1]: refusal for refusal in error.refusals}
    named = {node: names[node.name] for node in part.calls if node.name in names}
    return named or dict.fromkeys(part.calls, error.refusals[0])


def compile_part(
    program: TorchProgram, part: Part, network: Network, values: Mapping[Any, Any],
    operators: Operators, rounding: float = 0.0,
) -> tuple[CompiledPart | None, PartReport]:  # fmt: skip
    """Return the module of a part's network; None where its results are wrong.

    ``values`` are tensors of eager, with these ``operators``.

    Beside a run in f64 the error of a network of f32 is at most that of eager, times what
    ``polysci compile --check`` allows; none is needed for results that are as near to eager's as
    rounding is. Networks of narrower types have a bound for all of them; narrower
    weights permit an error of ``rounding``.
    """
    compiled = _make_part(part, network)
    ours = _arrays(compiled(*(values[node] for node in part.inputs)))
    exact = theirs = _arrays([values[node] for node in part.outputs])
    if largest_error(ours, theirs) > NEAR and not network.summary.narrow:
        exact = _arrays(_exact_outputs(program, part, values, operators))
    rows = [
        (
            largest_error([y], [right]),
            max(rounding, bound_of(network, largest_error([eager], [right]))),
        )
        for y, eager, right in zip(ours, theirs, exact, strict=True)
    ]
    error, bound = max(rows, key=lambda row: row[0] / row[1], default=(0.0, LEAST))
    reason = "" if error <= bound else "its error is larger"
    return (None if reason else compiled), _report_of(part, network, error, bound, reason)


def _arrays(tensors: Sequence[Any]) -> list[Array]:
    """Return NumPy arrays; NumPy has no bfloat16."""
    return [(x.float() if x.dtype is torch.bfloat16 else x).cpu().numpy() for x in tensors]


def _make_part(part: Part, network: Network) -> CompiledPart:
    inputs, outputs = ([*map(PartTensor.of, nodes)] for nodes in (part.inputs, part.outputs))
    return CompiledPart(network, inputs, outputs)


def _report_of(
    part: Part, network: Network, error: float, bound: float, reason: str = ""
) -> PartReport:
    summary, calls, runner = network.summary, len(part.calls), network.runner
    return PartReport(
        calls, summary.stages, error, bound, summary.predicted, reason, summary.any_order_cost,
        runner.model_bytes + runner.context_bytes,
    )  # fmt: skip


def compile_whole(
    program: TorchProgram, networks: Mapping[Part, Network], inputs: Sequence[Any],
    eager: Callable[[], Any],
) -> tuple[CompiledPart, PartReport] | None:  # fmt: skip
    """Return the part that is all of a program, if it is as near to the module as rounding is.

    Then no call needs to run by itself. ``eager`` is the module that the program is of.
    """
    part = next((part for part in networks if is_whole_of(program, part)), None)
    if part is None:
        return None
    theirs = _tensors_of(eager())
    compiled = _make_part(part, networks[part])
    ours = compiled(*inputs)
    if not _agree(ours, theirs, NEAR):
        return None
    error = largest_error(_arrays(ours), _arrays(theirs))
    return compiled, _report_of(part, networks[part], error, LEAST)


def is_whole_of(program: TorchProgram, part: Part) -> bool:
    """Tell whether a part is all of a program."""
    return (part.inputs, part.outputs) == (program.inputs, program.outputs)


def _exact_outputs(
    program: TorchProgram, part: Part, values: Mapping[Any, Any], operators: Operators
) -> list[Any]:
    """Compute the outputs of a part by eager in f64, from inputs of f32."""
    known = {**program.values, **{node: values[node] for node in part.inputs}}
    run_calls(_with_known(program, part), known, {*part.outputs}, operators, torch.float64)
    return [known[node] for node in part.outputs]


def boundary_values(
    program: TorchProgram, split: Split, inputs: Sequence[Any], operators: Operators
) -> dict[Any, Any]:
    """Return eager's outputs and the tensors at parts' borders; others are dropped after use."""
    kept = {node for part in split.parts for node in (*part.inputs, *part.outputs)}
    kept |= {*program.made}
    values = {**program.values, **dict(zip(program.inputs, inputs, strict=True))}
    run_calls([*select_calls(program.nodes, program.made)], values, kept, operators)
    return values


def is_faithful(
    program: TorchProgram, values: Mapping[Any, Any], eager: Callable[[], Any], state: Any
) -> bool:
    """Tell whether a program agrees with eager to half of the digits of its narrowest type.

    ``values`` are the program's outputs by PyTorch, from ``state`` of its generator on. True also
    where eager itself computes something else the next time.
    """
    outputs = [values[node] for node in program.made]
    types = {x.dtype for x in [node.meta.get("val") for node in program.nodes]
             if isinstance(x, torch.Tensor) and x.dtype.is_floating_point}  # fmt: skip
    share = max((torch.finfo(dtype).eps for dtype in types), default=0.0) ** 0.5
    torch.set_rng_state(state)
    expected = _tensors_of(eager())
    return _agree(outputs, expected, share) or not _agree(expected, _tensors_of(eager()), share)


def _tensors_of(results: Any) -> list[Any]:
    return [x for x in pytree.tree_leaves(results) if isinstance(x, torch.Tensor)]


def _agree(ours: Sequence[Any], theirs: Sequence[Any], share: float) -> bool:
    """Tell whether tensors differ by at most a share of the largest element, integers by none."""
    if [(x.shape, x.dtype) for x in ours] != [(x.shape, x.dtype) for x in theirs]:
        return False
    for x, expected in zip(ours, theirs, strict=True):
        real = expected.is_floating_point() or expected.is_complex()
        finite = expected[expected.isfinite()].abs() if real else expected.new_empty(0)
        bound = share * float(finite.max()) if finite.numel() else 0.0
        if not torch.allclose(x, expected, rtol=0, atol=bound, equal_nan=True):
            return False
    return True
