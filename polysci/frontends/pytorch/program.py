"""Programs of torch.export: read, given fixed extents, decomposed into calls that have rules."""

from __future__ import annotations

import logging
import warnings
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from os import PathLike
from pathlib import Path
from typing import IO, Any, Final

import numpy as np

from polysci.errors import SpecError, UnsupportedError
from polysci.frontends.pytorch.failures import pytorch_failures
from polysci.frontends.pytorch.functional import decompose, functional_graph
from polysci.frontends.pytorch.importer import graph_of_calls, needed_calls
from polysci.graph.graph import Graph
from polysci.numerics.arrays import Array

ENDING: Final = ".pt2"
INSTALL: Final = "pip install 'polysci[torch]'"
IN_MEMORY: Final = "exported program"


@dataclass(frozen=True, slots=True)
class TorchProgram:
    """The calls of a program: its inputs and outputs, and tensors that are known, by node.

    An output that is no tensor is a number or None.
    """

    where: str
    nodes: tuple[Any, ...]
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]
    values: Mapping[Any, Any]

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

    Parameters and buffers are constants. ``dims`` binds dimensions that are free, by their name or
    as ``INPUT.AXIS``, ``values`` inputs to constants. Raises SpecError for a file that is none or a
    dimension that is free; RefusedNodesError with every call that cannot be computed.
    """
    program = read_program(model, dims, values)
    calls = needed_calls(program.nodes, program.made)
    return graph_of_calls(
        program.where, calls, program.inputs, program.made, program.values
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
        return program_of(torch, where, fix_extents(torch, where, program, dims or {}), values)


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
    torch: Any, where: str, program: Any, values: Mapping[str, Any] | None = None
) -> TorchProgram:
    """Return the calls of a program, decomposed to ones that have rules as far as possible.

    Raises UnsupportedError where it changes a tensor.
    """
    graph = functional_graph(torch, program)
    if graph is None:
        program = decompose(torch, where, program)
        graph = program.graph
    return _program_of(torch, where, program, graph, values or {})


def _program_of(
    torch: Any, where: str, program: Any, graph: Any, values: Mapping[str, Any]
) -> TorchProgram:
    signature = program.graph_signature
    nodes = {node.name: node for node in graph.nodes}
    if any(node.op == "get_attr" for node in graph.nodes):  # graphs: of tensors they are inputs
        raise UnsupportedError(f"{where}: data decides which of its calls are made (torch.cond)")
    changed = {
        **signature.buffers_to_mutate, **signature.user_inputs_to_mutate,
        **getattr(signature, "parameters_to_mutate", {}),
    }  # fmt: skip
    if changed:
        names = ", ".join(map(repr, sorted(changed.values())))
        raise UnsupportedError(
            f"{where}: the program changes {names:.300}, and a network keeps no state; call eval() "
            "on the module before export, or make what it changes an argument that it returns"
        )
    known = {**program.state_dict, **program.constants}
    tensors, inputs = dict[Any, Any](), list[Any]()
    for spec in signature.input_specs:
        node = nodes.get(getattr(spec.arg, "name", ""))
        if spec.target is not None and node is not None:
            tensors[node] = known[spec.target]
        elif node is not None and hasattr(node.meta.get("val"), "dtype"):
            inputs.append(node)
    _check_names(where, "value", values, [node.name for node in inputs])
    for node in inputs:
        if node.name in values:
            tensors[node] = _value(torch, where, node, values[node.name])
    free = tuple(node for node in inputs if node.name not in values)
    return TorchProgram(
        where, tuple(graph.nodes), free, tuple(graph.output_node().args[0]), tensors
    )


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


def fix_extents(torch: Any, where: str, program: Any, dims: Mapping[str, int]) -> Any:
    """Return the program for one size of each free dimension."""
    free = free_dims(program)
    labels = {label for symbol, places in free.items() for label in (symbol, *places)}
    if unused := [name for name in dims if name not in labels]:
        raise SpecError(
            f"{where}: dimension {unused[0]!r:.200}: no input has a free one of that name"
        )
    sizes = dict[str, int]()
    for symbol, places in free.items():
        for label in (*places, symbol):
            if label in dims:
                sizes.setdefault(symbol, dims[label])
    if missing := [places[0] for symbol, places in free.items() if symbol not in sizes]:
        options = " ".join(f"--dim {place}=1" for place in missing)
        raise SpecError(f"{where}: dimensions {', '.join(missing)} are free; bind them: {options}")
    if not free:
        return program
    return export_again(torch, where, program, lambda name, axis, size: (
        sizes[str(size)] if str(size) in sizes else int(size)
    ))  # fmt: skip


def free_dims(program: Any) -> dict[str, list[str]]:
    """Return by symbol the dimensions that it is the size of: ``INPUT.AXIS``."""
    places = dict[str, list[str]]()
    for node in _placeholders(program):
        for axis, size in enumerate(getattr(node.meta.get("val"), "shape", ())):
            if not isinstance(size, int):
                places.setdefault(str(size), []).append(f"{node.name}.{axis}")
    return places


def _placeholders(program: Any) -> list[Any]:
    names = {*program.graph_signature.user_inputs}
    return [node for node in program.graph.nodes if node.op == "placeholder" and node.name in names]


def export_again(
    torch: Any, where: str, program: Any, size_of: Callable[[str, int, Any], int]
) -> Any:
    """Export a program again with inputs of fixed sizes. Raises SpecError for those it refuses."""
    arrays = [
        torch.zeros([size_of(node.name, axis, size) for axis, size in enumerate(value.shape)],
                    dtype=value.dtype)
        if hasattr(value := node.meta.get("val"), "dtype") else value
        for node in _placeholders(program)
    ]  # fmt: skip
    arguments, words = torch.utils._pytree.tree_unflatten(arrays, program.call_spec.in_spec)
    try:
        return torch.export.export(program.module(), arguments, words)
    except Exception as error:  # of many kinds
        text = str(error).split("\n", maxsplit=1)[0] or type(error).__name__
        raise SpecError(f"{where}: sizes that the program does not take: {text:.300}") from None


def run_program(
    program: TorchProgram, inputs: Mapping[str, Array], dtype: str = "float64"
) -> dict[str, Array]:
    """Compute all tensors by PyTorch itself, floating point ones in ``dtype``; return by name."""
    torch = torch_module()
    kind = getattr(torch, dtype)

    def wide(value: Any) -> Any:
        if isinstance(value, list | tuple):
            return [wide(part) for part in value]
        return value.to(kind) if hasattr(value, "dtype") and value.is_floating_point() else value

    known = {node: wide(value) for node, value in program.values.items()}
    known |= {node: wide(torch.from_numpy(inputs[node.name])) for node in program.inputs}
    with torch.no_grad():
        for node in needed_calls(program.nodes, program.made):
            own = [known[source] for source in node.all_input_nodes]
            if str(node.target).startswith("quantized"):  # which takes nothing wider
                own = [x.float() if x.is_floating_point() else x for x in own]
            values = dict(zip(node.all_input_nodes, own, strict=True))
            arguments, words = torch.fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
            with pytorch_failures(program.where, f"it computes {node.target} in {dtype}"):
                known[node] = wide(node.target(*arguments, **words))
    arrays = dict[str, Array]()
    for node, value in known.items():
        parts = value if isinstance(value, list | tuple) else [value]
        several = isinstance(value, list | tuple)
        for at, part in enumerate(parts):
            if hasattr(part, "numpy"):
                arrays[f"{node.name}.{at}" if several else node.name] = part.detach().numpy()
    return arrays
