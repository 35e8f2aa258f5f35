"""Programs of torch.export given fixed extents in the place of free ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from polysci.errors import SpecError

_OF_NUMBERS: Final = ("_operator", "math", "torch")  # modules of functions as of sizes


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
    sizes |= _sums(program, sizes)
    if missing := [places[0] for symbol, places in free.items() if symbol not in sizes]:
        options = " ".join(f"--dim {place}=1" for place in missing)
        raise SpecError(f"{where}: dimensions {', '.join(missing)} are free; bind them: {options}")
    if not free:
        return program
    try:
        return _with_sizes(torch, program, sizes)
    except Exception:  # of many kinds: it has calls that fake tensors do not take, or other sizes
        return _export_again(torch, where, program, sizes)


def free_dims(program: Any) -> dict[str, list[str]]:
    """Return by symbol the dimensions that it is the size of: ``INPUT.AXIS``."""
    places = dict[str, list[str]]()
    for node in _placeholders(program):
        for axis, size in enumerate(getattr(node.meta.get("val"), "shape", ())):
            if not isinstance(size, int):
                places.setdefault(str(size), []).append(f"{node.name}.{axis}")
    return places


def _sums(program: Any, sizes: Mapping[str, int]) -> dict[str, int]:
    """Return the extents that are made of others which have a size, by symbol: ``s0 + 1``."""
    made = dict[str, int]()
    for node in _placeholders(program):
        for size in getattr(node.meta.get("val"), "shape", ()):
            if isinstance(size, int) or str(size) in sizes:
                continue
            known = {it: sizes.get(str(it)) for it in size.node.expr.free_symbols}
            if None not in known.values():
                made[str(size)] = int(size.node.expr.subs(known))
    return made


def _placeholders(program: Any) -> list[Any]:
    names = {*program.graph_signature.user_inputs}
    return [node for node in program.graph.nodes if node.op == "placeholder" and node.name in names]


def _is_pure(torch: Any, node: Any) -> bool:
    """Tell whether a node calls an operator, or a function of numbers, or nothing."""
    operator = isinstance(node.target, torch._ops.OpOverload)
    module = getattr(node.target, "__module__", "")
    return node.op in ("placeholder", "output") or operator or module in _OF_NUMBERS


def _with_sizes(torch: Any, program: Any, sizes: Mapping[str, int]) -> Any:
    """Return the program with its calls made on fake tensors of these sizes, which are in range."""
    bounds = {str(symbol): bound for symbol, bound in program.range_constraints.items()}
    if wrong := [
        name for name, size in sizes.items() if name in bounds and size not in bounds[name]
    ]:
        raise ValueError(wrong)
    if not all(_is_pure(torch, node) for node in program.graph.nodes):
        raise TypeError("it makes calls that change more than tensors, as those of vmap")

    def number(size: Any) -> int:
        if isinstance(size, int):
            return size
        expr = size.node.expr
        return int(expr.subs({symbol: sizes[str(symbol)] for symbol in expr.free_symbols}))

    graph, values = torch.fx.Graph(), dict[Any, Any]()  # of nodes: own ones, and what those make
    copies = dict[Any, Any]()
    with torch._subclasses.FakeTensorMode():
        for node in program.graph.nodes:
            known = node.meta.get("val")
            args, words = torch.fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
            if node.op == "call_function":
                values[node] = known = node.target(*args, **words)
                if known is None or isinstance(known, int | float):  # a size, or a check of one
                    copies[node] = known
                    continue
            elif node.op == "output":
                known = args[0]
            elif hasattr(known, "stride"):
                shape, strides = ([*map(number, its)] for its in (known.shape, known.stride()))
                known = torch.empty_strided(shape, strides, dtype=known.dtype, device=known.device)
            values[node] = known
            copies[node] = own = graph.node_copy(node, copies.__getitem__)
            own.name = node.name  # ``input`` would become another
            own.meta = {**node.meta, "val": known, "tensor_meta": None}
    return torch.export.ExportedProgram(
        program.graph_module, graph, program.graph_signature, program.state_dict, {},
        program.module_call_graph, program.example_inputs, program.constants,
        verifiers=program.verifiers,
    )  # fmt: skip


def _export_again(torch: Any, where: str, program: Any, sizes: Mapping[str, int]) -> Any:
    """Export a program again with inputs of fixed sizes. Raises SpecError for those it refuses."""

    def number(size: Any) -> int:
        return sizes[str(size)] if str(size) in sizes else int(size)

    arrays = [
        torch.zeros([*map(number, value.shape)], dtype=value.dtype)
        if hasattr(value := node.meta.get("val"), "dtype") else value
        for node in _placeholders(program)
    ]  # fmt: skip
    args, kwargs = torch.utils._pytree.tree_unflatten(arrays, program.call_spec.in_spec)
    try:
        return torch.export.export(program.module(), args, kwargs)
    except Exception as error:  # of many kinds
        text = str(error).split("\n", maxsplit=1)[0] or type(error).__name__
        raise SpecError(f"{where}: sizes that the program does not take: {text:.300}") from None
