"""Joined parts of a program: compiled parts, and the calls between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from operator import getitem
from typing import Any

import torch

from polysci.frontends.pytorch.program import TorchProgram
from polysci.torch.compiled_part import CompiledPart
from polysci.torch.parts import Part, Split, is_whole_of


def _run_alone(program: TorchProgram, split: Split, part: Part, only: CompiledPart) -> Any:
    """A program of one part, other outputs of which are inputs or known; can be pickled."""
    order = [program.inputs.index(node) for node in part.inputs]
    table = {node: at for at, node in enumerate((*part.outputs, *program.inputs))}
    known, places = list[Any](), list[int]()
    for node in program.outputs:
        places.append(table.get(node, len(table) + len(known)))
        if node not in table:
            is_tensor = hasattr(node, "all_input_nodes")
            known.append(split.known[node].detach() if is_tensor else node)
    return partial(_pick_results, only, order, known, places)


def _pick_results(
    only: CompiledPart, order: Sequence[int], known: Sequence[Any], places: Sequence[int],
    *inputs: Any,
) -> list[Any]:  # fmt: skip
    """Places among the results of a part, a program's inputs and copies of known values."""
    copies = [x.clone() if isinstance(x, torch.Tensor) else x for x in known]
    every = (*only.forward(*[inputs[at] for at in order]), *inputs, *copies)
    return [every[at] for at in places]


def join_parts(program: TorchProgram, split: Split, compiled: Mapping[Part, CompiledPart]) -> Any:
    """Return a function from tensors to outputs: the only part, or a ``GraphModule``."""
    for whole, only in compiled.items():
        if is_whole_of(program, whole):
            return only.forward
        if {*split.parts} == {whole} and not any(calls for calls, _ in split.phases):
            return _run_alone(program, split, whole, only)
    graph, names = torch.fx.Graph(), dict[Any, Any]()
    owner = torch.nn.Module()

    def place(node: Any) -> Any:
        if node not in names and isinstance(split.known.get(node), torch.Tensor):
            name = f"constant{len(names)}"
            owner.register_buffer(name, split.known[node].detach(), persistent=False)
            names[node] = graph.get_attr(name)
        elif node not in names:
            copy(node)
        return names[node]

    def give(node: Any) -> Any:
        """An output, which the caller may write to."""
        if not hasattr(node, "all_input_nodes"):
            return node
        made = place(node)
        is_known = made.op == "get_attr"
        return graph.call_function(torch.ops.aten.clone.default, (made,)) if is_known else made

    def copy(node: Any) -> None:
        arguments, words = torch.fx.node.map_arg((node.args, node.kwargs), place)
        names[node] = graph.call_function(node.target, arguments, words)

    for node in program.inputs:
        names[node] = graph.placeholder(node.name)
    for number, (apart, part) in enumerate(split.phases):
        module = compiled.get(part) if part else None
        own = {*apart, *(part.calls if part and module is None else ())}
        for node in program.nodes:
            if node in own:
                copy(node)
        if part and module is not None:
            owner.add_module(f"part{number}", module)
            made = graph.call_module(f"part{number}", tuple(place(node) for node in part.inputs))
            names |= {
                node: graph.call_function(getitem, (made, at))
                for at, node in enumerate(part.outputs)
            }
    graph.output(tuple(map(give, program.outputs)))
    return torch.fx.GraphModule(owner, graph)
