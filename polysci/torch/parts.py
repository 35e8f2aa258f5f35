"""The parts of a program that become compiled networks, each compared with eager."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import getitem
from typing import Any, Final

import torch
from torch.utils import _pytree as pytree

from polysci.frontends.pytorch import shape_ops
from polysci.frontends.pytorch.importer import (
    graph_of_calls,
    import_calls,
    needed_calls,
    operator_name,
)
from polysci.frontends.pytorch.program import TorchProgram
from polysci.graph.builder import GraphBuilder
from polysci.graph.graph import Graph
from polysci.graph.operators.lower import lower
from polysci.graph.refusals import NodeRefusal, RefusedNodesError
from polysci.graph.simplify import simplify
from polysci.network.compiled import Network
from polysci.network.debug import FACTOR, LEAST, bound_of
from polysci.numerics.arrays import Array
from polysci.numerics.differences import largest_error
from polysci.torch.compiled_part import CompiledPart, PartTensor
from polysci.torch.equal_elements import Operators
from polysci.torch.reports import PartReport

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
    calls = [*needed_calls(program.nodes, program.made)]
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
    """Calls of a part have as many changes between PyTorch and networks before them."""
    phase = dict[Any, int]()
    for node in calls:
        if node in known:
            continue
        own = _is_apart(node, refused)
        before = [(phase[source], _is_apart(source, refused)) for source in node.all_input_nodes
                  if source in phase]  # fmt: skip
        steps = [number + (other != own) for number, other in before]
        phase[node] = max([*steps, 0 if own else 1])
    count = max(phase.values(), default=0) + 1
    phases = list[tuple[tuple[Any, ...], Part | None]]()
    for number in range(count):
        own_calls = [node for node in phase if phase[node] == number]
        together = [node for node in own_calls if not _is_apart(node, refused)]
        part = part_of(program, together, known)
        apart = [node for node in own_calls if part is None or _is_apart(node, refused)]
        phases.append((tuple(apart), part))
    return tuple(phases)


def _is_apart(node: Any, refused: Mapping[Any, NodeRefusal]) -> bool:
    """Whether PyTorch computes a call, or the one of whose results it is one."""
    return node in refused or (node.target is getitem and node.args[0] in refused)


def part_of(program: TorchProgram, calls: Sequence[Any], known: Mapping[Any, Any]) -> Part | None:
    """Calls as a part; None where they only move elements."""
    if sum(_computes(node) for node in calls) < LEAST_CALLS:
        return None
    own, results = {*calls}, {*program.made}
    inputs = dict.fromkeys(
        source for node in calls for source in node.all_input_nodes
        if source not in own and source not in known
    )  # fmt: skip
    outputs = [
        node for node in calls
        if node in results or any(reader not in own for reader in node.users)
    ]  # fmt: skip
    whole = [node for node in outputs if not isinstance(node.meta["val"], list | tuple)]
    return Part(tuple(calls), tuple(inputs), tuple(whole))


def _computes(node: Any) -> bool:
    target = node.target
    return hasattr(target, "_schema") and operator_name(target) not in shape_ops.RULES


def graph_of_part(program: TorchProgram, part: Part) -> Graph:
    """The graph of a part, whose inputs and outputs lie in memory as PyTorch's do."""
    calls = _with_known(program, part)
    graph = graph_of_calls(program.where, calls, part.inputs, part.outputs, program.values)
    return simplify(with_orders(graph, part))


def _with_known(program: TorchProgram, part: Part) -> list[Any]:
    """The calls, and those before them that depend on weights alone."""
    stop, own = {*part.inputs}, {*part.calls}
    needed, queue = set[Any](), [*part.calls]
    while queue:
        node = queue.pop()
        if node not in needed and node not in stop and node not in program.values:
            needed.add(node)
            queue += node.all_input_nodes
    assert own <= needed
    return [node for node in program.nodes if node in needed]


def with_orders(graph: Graph, part: Part) -> Graph:
    """The graph with tensors transposed whose channels are the last axis in memory."""
    growing = GraphBuilder(replace(graph, nodes=()))
    inputs, outputs = [], []
    for tensor, node in zip(graph.inputs, part.inputs, strict=True):
        port = PartTensor.of(node)
        if port.channels_last:
            name = growing.fresh(tensor.name)
            shape = tuple(tensor.shape[at] for at in port.order)
            growing.tensors[name] = replace(tensor, name=name, shape=shape)
            back = [port.order.index(at) for at in range(len(shape))]
            made = growing.transpose(name, back)
            growing.nodes[-1] = replace(growing.nodes[-1], outputs=(tensor.name,))
            del growing.tensors[made]
            tensor = growing.tensors[name]
        inputs.append(tensor)
    growing.nodes += graph.nodes
    for tensor, node in zip(graph.outputs, part.outputs, strict=True):
        port = PartTensor.of(node)
        outputs.append(
            growing.transpose(tensor.name, port.order) if port.channels_last else tensor.name
        )
    return growing.grown(inputs, outputs)


def _refusals(part: Part, error: RefusedNodesError) -> dict[Any, NodeRefusal]:
    """The calls of a part that no network computes."""
    names = {refusal.node.split()[-1]: refusal for refusal in error.refusals}
    named = {node: names[node.name] for node in part.calls if node.name in names}
    return named or dict.fromkeys(part.calls, error.refusals[0])


def compile_part(
    program: TorchProgram, part: Part, network: Network, values: Mapping[Any, Any],
    operators: Operators,
) -> tuple[CompiledPart | None, PartReport]:  # fmt: skip
    """The module of a part's network; None where it is wrong.

    ``values`` are tensors of eager, with these ``operators``.

    Beside a run in f64 the error of a network of f32 is at most that of eager, times what
    ``polysci compile --check`` allows; none is needed for results that are as near to eager's as
    rounding is. Networks of narrower types have a bound for all of them.
    """
    compiled = _compiled_part(part, network)
    made = compiled(*(values[node] for node in part.inputs))
    eager = [values[node] for node in part.outputs]
    ours, theirs = _arrays(made), _arrays(eager)
    wanted = theirs
    if largest_error(ours, theirs) > NEAR and not network.summary.narrow:
        wanted = _arrays(_exact_outputs(program, part, values, operators))
    rows = [
        (largest_error([own], [right]), bound_of(network, largest_error([other], [right])))
        for own, other, right in zip(ours, theirs, wanted, strict=True)
    ]
    error, bound = max(rows, key=lambda row: row[0] / row[1], default=(0.0, LEAST))
    reason = "" if error <= bound else "its error is larger"
    return (None if reason else compiled), _report_of(part, network, error, bound, reason)


def _arrays(tensors: Sequence[Any]) -> list[Array]:
    """Return NumPy arrays; NumPy has no bfloat16."""
    return [(x.float() if x.dtype is torch.bfloat16 else x).numpy() for x in tensors]


def _compiled_part(part: Part, network: Network) -> CompiledPart:
    inputs, outputs = ([*map(PartTensor.of, nodes)] for nodes in (part.inputs, part.outputs))
    return CompiledPart(network, inputs, outputs)


def _report_of(
    part: Part, network: Network, error: float, bound: float, reason: str = ""
) -> PartReport:
    told = network.summary
    return PartReport(
        len(part.calls), told.stages, error, bound, told.predicted, reason, told.any_order_cost
    )


def compile_whole(
    program: TorchProgram, networks: Mapping[Part, Network], inputs: Sequence[Any],
    eager: Callable[[], Any],
) -> tuple[CompiledPart, PartReport] | None:  # fmt: skip
    """The part that is all of a program, if it is as near to the module as rounding is.

    Then no call needs to run by itself. ``eager`` is the module that the program is of.
    """
    part = next((part for part in networks if is_whole_of(program, part)), None)
    if part is None:
        return None
    theirs = [x for x in pytree.tree_leaves(eager()) if isinstance(x, torch.Tensor)]
    compiled = _compiled_part(part, networks[part])
    ours = compiled(*inputs)
    if not _agree(ours, theirs, NEAR):
        return None
    error = largest_error(_arrays(ours), _arrays(theirs))
    return compiled, _report_of(part, networks[part], error, LEAST)


def is_whole_of(program: TorchProgram, part: Part) -> bool:
    """Whether a part is all of a program."""
    return (part.inputs, part.outputs) == (program.inputs, program.outputs)


def _exact_outputs(
    program: TorchProgram, part: Part, values: Mapping[Any, Any], operators: Operators
) -> list[Any]:
    """The outputs of a part by eager in f64, from inputs of f32."""
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
    run_calls([*needed_calls(program.nodes, program.made)], values, kept, operators)
    return values


def is_faithful(
    program: TorchProgram, values: Mapping[Any, Any], eager: Callable[[], Any], state: Any
) -> bool:
    """Whether a program computes what eager does: half of the digits of its narrowest type agree.

    ``values`` are the program's outputs by PyTorch, from ``state`` of its generator on. True also
    where eager itself computes something else the next time.
    """
    made = [values[node] for node in program.made]
    types = {x.dtype for x in [node.meta.get("val") for node in program.nodes]
             if isinstance(x, torch.Tensor) and x.dtype.is_floating_point}  # fmt: skip
    share = max((torch.finfo(dtype).eps for dtype in types), default=0.0) ** 0.5

    def leaves() -> list[Any]:
        return [x for x in pytree.tree_leaves(eager()) if isinstance(x, torch.Tensor)]

    torch.set_rng_state(state)
    wanted = leaves()
    return _agree(made, wanted, share) or not _agree(wanted, leaves(), share)


def _agree(ours: Sequence[Any], theirs: Sequence[Any], share: float) -> bool:
    """Whether tensors differ by at most a share of the largest element; integers by nothing."""
    if [(x.shape, x.dtype) for x in ours] != [(x.shape, x.dtype) for x in theirs]:
        return False
    for own, other in zip(ours, theirs, strict=True):
        real = other.is_floating_point() or other.is_complex()
        finite = other[other.isfinite()].abs() if real else other.new_empty(0)
        bound = share * float(finite.max()) if finite.numel() else 0.0
        if not torch.allclose(own, other, rtol=0, atol=bound, equal_nan=True):
            return False
    return True


def run_calls(
    calls: Sequence[Any], values: dict[Any, Any], kept: Collection[Any], operators: Operators,
    dtype: Any = None,
) -> None:  # fmt: skip
    """Add what calls make, in ``dtype`` where that is floating point and a type is told.

    ``operators`` take the place of some of PyTorch's. Others than ``kept`` are dropped after their
    last use.
    """

    def wide(value: Any) -> Any:
        if isinstance(value, list | tuple):
            return [wide(part) for part in value]
        real = dtype and isinstance(value, torch.Tensor) and value.is_floating_point()
        return value.to(dtype) if real else value

    last = {source: node for node in calls for source in node.all_input_nodes}
    for node in calls:
        arguments, words = torch.fx.node.map_arg(
            (node.args, node.kwargs), lambda source: wide(values[source])
        )
        with torch.autocast("cpu", enabled=False):  # the calls say what it casts
            values[node] = operators.get(node.target, node.target)(*arguments, **words)
        for source in node.all_input_nodes:
            if last[source] is node and source not in kept:
                del values[source]
