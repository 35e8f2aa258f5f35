"""Programs of torch.export: read, given fixed extents, decomposed into calls that have rules."""

from __future__ import annotations

import logging
import warnings
import zipfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib import import_module
from operator import getitem
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any, Final

import numpy as np

from polysci.errors import PolysciError, SpecError, UnsupportedError
from polysci.frontends.pytorch.extents import fix_extents
from polysci.frontends.pytorch.importer import (
    OPERATORS,
    array_of,
    graph_of_calls,
    operator_name,
    select_calls,
)
from polysci.graph.graph import Graph
from polysci.numerics.arrays import Array

Operators = Mapping[Any, Callable[..., Any]]  # by those of PyTorch that they take the place of
ENDING: Final = ".pt2"
INSTALL: Final = "pip install 'polysci[torch]'"
IN_MEMORY: Final = "exported program"
# Norms that, while they learn, change running statistics, though their schemas do not say so: the
# argument that tells it.
_LEARNING: Final[Mapping[str, int]] = MappingProxyType({"batch_norm": 5, "instance_norm": 5})
# Operators that PyTorch composes of others, but whose result is never one of their operands.
_FRESH: Final = frozenset(
    ("batch_norm", "layer_norm", "linear", *(
        f"{name}{axes}d" for axes in (1, 2, 3) for name in ("conv", "conv_transpose")
    ))
)  # fmt: skip
_EXPORTED_AGAIN: Final = (
    "it changes tensors in place: export the module with strict=True, with every tensor that it "
    "changes (a cache of keys and values) a registered buffer, or an argument that it returns"
)
# Operators whose result may share memory with an operand, though their schemas do not say so.
_SHARING: Final = frozenset(("einsum",))


def decompose(torch: Any, where: str, program: Any) -> Any:
    """Decompose a program: new tensors for changes in place, and calls that have rules.

    Where tensors change, what hands on memory has to show it: PyTorch's decomposition copies what
    dropout returns in inference, its operand, and takes results of calls that it keeps as new.
    Raises UnsupportedError where PyTorch fails.
    """
    table = torch.export.default_decompositions()
    changes = any(map(_changes, program.graph.nodes))
    for operator in list(table):
        name = operator_name(operator) if hasattr(operator, "_schema") else ""
        if name in OPERATORS and not (changes and name in _SHARING):
            del table[operator]
    what = f"run_decompositions() of PyTorch {torch.__version__} runs on this program"
    with pytorch_failures(where, what, _EXPORTED_AGAIN if changes else ""):
        return (_with_aliases(torch, program) if changes else program).run_decompositions(table)


def _with_aliases(torch: Any, program: Any) -> Any:
    """Return a copy of the program in which dropout that returns its operand is an alias of it."""
    aten, graph = torch.ops.aten, _copy_of(torch, program.graph)
    for node in graph.find_nodes(op="call_function", target=aten.dropout.default):
        x, share, learns = node.args
        if not learns or share == 0:
            node.target, node.args = aten.alias.default, (x,)
    return torch.export.ExportedProgram(
        program.graph_module, graph, program.graph_signature, program.state_dict,
        program.range_constraints, program.module_call_graph, program.example_inputs,
        program.constants, verifiers=program.verifiers,
    )  # fmt: skip


def functional_graph(torch: Any, program: Any) -> Any:
    """Return a graph in which no call changes a tensor; None where some call has no rule.

    In place is changed only what no other tensor shares memory with: there a result that is new
    takes the place of the tensor in all later calls.
    """
    graph = _copy_of(torch, program.graph)
    order = {node: at for at, node in enumerate(graph.nodes)}
    for node in graph.nodes:
        if _changes(node) and not _replace(torch, node, order):
            return None
    outputs = [node for node in graph.output_node().args[0] if hasattr(node, "all_input_nodes")]
    known = all(_has_rule(node) for node in select_calls([*graph.nodes], outputs))
    return graph if known else None


def _copy_of(torch: Any, graph: Any) -> Any:
    """Copy the calls of a graph, by their names."""
    copy, copies = torch.fx.Graph(), dict[Any, Any]()
    copy.output(copy.graph_copy(graph, copies))
    for node, own in copies.items():  # a name such as ``input`` would become another
        own.name = node.name
    return copy


def _changes(node: Any) -> bool:
    """Tell whether a call changes a tensor, or may do so."""
    if node.op != "call_function" or node.target is getitem:
        return False
    return not hasattr(node.target, "_schema") or bool(node.target._schema.is_mutable)


def _has_rule(node: Any) -> bool:
    if node.op != "call_function" or node.target is getitem:
        return node.op in ("call_function", "output")
    if not node.all_input_nodes:  # a constant
        return True
    name = operator_name(node.target)
    learns = name in _LEARNING and node.args[_LEARNING[name]] and node.args[3] is not None
    return name in OPERATORS and not learns


def _replace(torch: Any, node: Any, order: Mapping[Any, int]) -> bool:
    """Let a call that changes its first operand make a new tensor; tell whether that worked."""
    name, _, overload = str(node.target).removeprefix("aten.").partition(".")
    x, *others = node.all_input_nodes or [None]
    operator = getattr(getattr(torch.ops.aten, name.removesuffix("_"), None), overload, None)
    if operator is None or not name.endswith("_") or node.args[:1] != (x,) or x is None:
        return False
    dtypes = {other.meta["val"].dtype for other in (x, *others)}
    earlier = [user for user in x.users if order[user] < order[node]]
    if len(dtypes) > 1 or not all(_is_fresh(torch, call) for call in (x, *earlier)):
        return False
    node.target = operator
    x.replace_all_uses_with(node, lambda user: order[user] > order[node])
    return True


def _is_fresh(torch: Any, node: Any) -> bool:
    """Tell whether what a call makes shares memory with none of its operands."""
    if node.op != "call_function" or not hasattr(node.target, "_schema"):
        return False
    if operator_name(node.target) in _FRESH:
        return True
    composed = torch._C._dispatch_has_kernel_for_dispatch_key(
        node.target.name(), "CompositeImplicitAutograd"
    )
    results = node.target._schema.returns
    return not composed and all(result.alias_info is None for result in results)


@contextmanager
def pytorch_failures(where: str, what: str, advice: str = "") -> Iterator[None]:
    """UnsupportedError for what PyTorch raises inside, where it does ``what`` for us.

    It says that the failure is PyTorch's, its reason, and what to do.
    """
    try:
        yield
    except PolysciError:
        raise
    except Exception as error:  # of many kinds
        reason = f"{type(error).__name__}: {' '.join(str(error).split()):.300}"
        hint = f"; {advice}" if advice else ""
        raise UnsupportedError(f"{where}: PyTorch fails when {what}: {reason}{hint}") from error


@dataclass(frozen=True, slots=True)
class ProgramState:
    """A tensor that a run leaves to the next: its name, first value, the node replacing it."""

    name: str
    first: Any
    following: Any


@dataclass(frozen=True, slots=True)
class TorchProgram:
    """The calls of a program: its inputs and outputs, and tensors that are known, by node.

    An output that is no tensor is a number or None. ``state`` are buffers and inputs that it
    changes: what replaces each, its name, and the value that it begins with.
    """

    where: str
    nodes: tuple[Any, ...]
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]
    values: Mapping[Any, Any]
    state: Mapping[Any, ProgramState] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def made(self) -> list[Any]:
        """Return the outputs that are tensors."""
        return [node for node in self.outputs if hasattr(node, "all_input_nodes")]


def torch_module() -> Any:
    """Import PyTorch. Raises UnsupportedError where it is not installed."""
    try:
        import torch
        import torch.export
    except ImportError as error:
        raise UnsupportedError(f"a torch.export program needs torch ({error}): {INSTALL}") from None
    return torch


def is_program(model: object) -> bool:
    """Tell whether it is an ExportedProgram, or the path of a saved one."""
    if isinstance(model, str | PathLike):
        return str(model).endswith(ENDING)
    return type(model).__name__ == "ExportedProgram"


def load_program(
    model: Any, dims: Mapping[str, int] | None = None, values: Mapping[str, Any] | None = None
) -> Graph:
    """Return the graph of an ExportedProgram, or of the file that ``torch.export.save`` wrote.

    Parameters and buffers are constants, but for those that it changes, as inputs that it changes:
    they are state. ``dims`` binds dimensions that are free, by their name or
    as ``INPUT.AXIS``, ``values`` inputs to constants. Raises SpecError for a file that is none or a
    dimension that is free; RefusedNodesError with every call that cannot be computed.
    """
    program = read_program(model, dims, values)
    following = [state.following for state in program.state.values()]
    calls = select_calls(program.nodes, [*following, *program.made])
    titles = {node: state.name for node, state in program.state.items()}
    inputs, outputs = (*program.inputs, *titles), (*following, *program.made)
    graph = graph_of_calls(program.where, calls, inputs, outputs, program.values, titles)
    replaced = zip(graph.outputs, titles.values(), strict=False)
    return replace(
        graph, in_place={tensor.name: name for tensor, name in replaced},
        state={state.name: array_of(state.first) for state in program.state.values()},
    )  # fmt: skip


def read_program(
    model: Any, dims: Mapping[str, int] | None = None, values: Mapping[str, Any] | None = None
) -> TorchProgram:
    """Return the calls of a program of fixed extents, in inference."""
    torch = torch_module()
    where = Path(model).name if isinstance(model, str | PathLike) else IN_MEMORY
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch's own parts to each other
        program = read_file(torch, model) if isinstance(model, str | PathLike) else model
        fixed = fix_extents(torch, where, program, dims or {})
        return program_of(torch, where, fixed, values, with_state=True)


def read_file(torch: Any, file: str | PathLike[str] | IO[bytes]) -> Any:
    """Read what ``torch.export.save`` wrote. Raises SpecError for other files."""
    path = file if isinstance(file, str | PathLike) else None
    if path is not None and not Path(path).is_file():
        raise SpecError(f"{path}: cannot be read: no such file")
    import_module("torch.ao.quantization.fx._decomposed")  # operators of quantised programs
    log = logging.getLogger("torch.export")
    disabled, log.disabled = log.disabled, True  # of the traceback that it writes before it raises
    try:
        return torch.export.load(str(path) if path is not None else file)
    except Exception as error:  # of many kinds, for many kinds of damage
        text = _hint(path) or " ".join(str(error).split())
        raise SpecError(f"{path or IN_MEMORY}: no program of torch.export: {text:.300}") from None
    finally:
        log.disabled = disabled


def _hint(path: str | PathLike[str] | None) -> str:
    """Return advice for a file of ``torch.save``; empty for others."""
    if path is None or not zipfile.is_zipfile(path):
        return ""
    with zipfile.ZipFile(path) as archive:
        weights = any(name.endswith("/data.pkl") for name in archive.namelist())
    wanted = "torch.export.save(torch.export.export(module, inputs), path) writes one"
    return f"torch.save wrote it; {wanted}" if weights else ""


def program_of(
    torch: Any, where: str, program: Any, values: Mapping[str, Any] | None = None, *,
    with_state: bool = False,
) -> TorchProgram:  # fmt: skip
    """Return the calls of a program, decomposed to ones that have rules as far as possible.

    Raises UnsupportedError where it changes a parameter, or a tensor that may not be state.
    """
    graph = functional_graph(torch, program)
    if graph is None:
        program = decompose(torch, where, program)
        graph = program.graph
    checks = torch.ops.aten._assert_tensor_metadata.default
    for node in graph.find_nodes(op="call_function", target=checks):
        graph.erase_node(node)  # types are fixed here
    signature, values = program.graph_signature, values or {}
    nodes = {node.name: node for node in graph.nodes}
    if any(node.op == "get_attr" for node in graph.nodes):  # graphs: of tensors they are inputs
        raise UnsupportedError(f"{where}: data decides which of its calls are made (torch.cond)")
    changed = {**signature.buffers_to_mutate, **signature.user_inputs_to_mutate}
    fixed = {**getattr(signature, "parameters_to_mutate", {}), **({} if with_state else changed)}
    if fixed:
        names = ", ".join(map(repr, sorted(fixed.values())))
        raise UnsupportedError(
            f"{where}: the program changes {names:.300}, and here nothing lasts from one run to "
            "the next; call eval() on the module, or make what it changes an argument that it "
            "returns"
        )
    known = {**program.state_dict, **program.constants}
    tensors, inputs, state = dict[Any, Any](), list[Any](), dict[Any, ProgramState]()
    following = {target: nodes[name] for name, target in changed.items()}
    for spec in signature.input_specs:
        node = nodes.get(getattr(spec.arg, "name", ""))
        if node is None:
            continue
        new = following.get(spec.target or node.name)
        if new is not None and new is not node:
            like = node.meta["val"]
            first = known.get(spec.target)
            zeros = torch.zeros(like.shape, dtype=like.dtype) if first is None else first
            state[node] = ProgramState(spec.target or node.name, zeros, new)
        elif spec.target is not None:
            tensors[node] = known[spec.target]
        elif hasattr(node.meta.get("val"), "dtype"):
            inputs.append(node)
    _check_names(where, "value", values, [node.name for node in inputs])
    for node in inputs:
        if node.name in values:
            tensors[node] = _value(torch, where, node, values[node.name])
    free = tuple(node for node in inputs if node.name not in values)
    outputs = tuple(graph.output_node().args[0])[len(changed) :]
    return TorchProgram(where, tuple(graph.nodes), free, outputs, tensors, state)


def _value(torch: Any, where: str, node: Any, value: Any) -> Any:
    """Return a tensor of an input's type and shape; a number is for all elements."""
    like = node.meta["val"]
    try:
        array = torch.as_tensor(np.asarray(value)).to(like.dtype)
    except (TypeError, ValueError, RuntimeError):
        raise SpecError(
            f"{where}: value of {node.name!r}: expected numbers, got {value!r:.200}"
        ) from None
    if array.dim() and array.numel() != like.numel():
        raise SpecError(
            f"{where}: value of {node.name!r}: {array.numel()} numbers for the shape "
            f"{list(like.shape)}"
        )
    return array.reshape(like.shape) if array.dim() else array.expand(like.shape)


def _check_names(where: str, what: str, asked: Mapping[str, Any], known: list[str]) -> None:
    if unknown := [name for name in asked if name not in known]:
        raise SpecError(
            f"{where}: {what} of {unknown[0]!r:.200}: no input has that name; expected one of "
            f"{', '.join(known)!r:.300}"
        )


def run_program(
    program: TorchProgram, inputs: Mapping[str, Array], dtype: str = "float64"
) -> dict[str, Array]:
    """Compute all tensors by PyTorch itself, floating point ones in ``dtype``; return by name."""
    torch = torch_module()
    known, kind = dict(program.values), getattr(torch, dtype)
    known |= {node: torch.from_numpy(inputs[node.name]) for node in program.inputs}
    known |= {node: state.first for node, state in program.state.items()}
    with torch.no_grad():
        for node in select_calls(program.nodes, program.made):
            with pytorch_failures(program.where, f"it computes {node.target} in {dtype}"):
                run_calls([node], known, known.keys(), dtype=kind)
    arrays = dict[str, Array]()
    for node, value in known.items():
        several = isinstance(value, list | tuple)
        for at, part in enumerate(value if several else [value]):
            if hasattr(part, "numpy"):
                wide = part.to(kind) if part.is_floating_point() else part
                arrays[f"{node.name}.{at}" if several else node.name] = wide.detach().numpy()
    return arrays


def run_calls(
    calls: Sequence[Any], values: dict[Any, Any], kept: Collection[Any],
    operators: Operators = MappingProxyType({}), dtype: Any = None,
) -> None:  # fmt: skip
    """Add the results of calls to ``values``; floating point ones in ``dtype``, if it is told.

    ``operators`` take the place of some of PyTorch's. Others than ``kept`` are dropped after their
    last use.
    """
    torch = torch_module()

    def widen(value: Any, kind: Any) -> Any:
        if isinstance(value, list | tuple):
            return [widen(part, kind) for part in value]
        real = kind and isinstance(value, torch.Tensor) and value.is_floating_point()
        return value.to(kind) if real else value

    kind_of_device = "cuda" if any(getattr(x, "is_cuda", False) for x in values.values()) else "cpu"
    last = {source: node for node in calls for source in node.all_input_nodes}
    for node in calls:
        narrow = str(node.target).startswith("quantized")  # which takes nothing wider
        kind = torch.float32 if dtype and narrow else dtype
        wide = {source: widen(values[source], kind) for source in node.all_input_nodes}
        args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), wide.__getitem__)
        with torch.autocast(kind_of_device, enabled=False):  # the calls say what it casts
            values[node] = operators.get(node.target, node.target)(*args, **kwargs)
        for source in node.all_input_nodes:
            if last[source] is node and source not in kept:
                del values[source]
