"""Programs of torch.export whose calls all have rules, with new tensors for changes in place."""

from __future__ import annotations

from collections.abc import Mapping
from operator import getitem
from types import MappingProxyType
from typing import Any, Final

from polysci.frontends.pytorch.failures import pytorch_failures
from polysci.frontends.pytorch.importer import OPERATORS, needed_calls, operator_name

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
    known = all(_has_rule(node) for node in needed_calls([*graph.nodes], outputs))
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
