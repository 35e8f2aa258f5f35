"""Graphs that learn: forward and backward pass of AOTAutograd, each as compiled networks."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import torch
from torch._decomp import core_aten_decompositions
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch.utils._python_dispatch import _disable_current_modes

from polysci.errors import UnsupportedError
from polysci.frontends.pytorch.importer import OPERATORS, operator_name
from polysci.frontends.pytorch.program import TorchProgram
from polysci.frontends.pytorch.training import MAX_POOL_BACKWARD
from polysci.torch.compiled_part import CHANNELS_LAST
from polysci.torch.fallback import leave, reason_of
from polysci.torch.library import LIBRARY
from polysci.torch.parts import split_program
from polysci.torch.variants import ModuleOptions, compile_parts, is_slower

aten = torch.ops.aten
LAST = "polysci_channels_last"  # of a node: a tensor whose channels became its last axis
_WINDOWS = re.compile("convolution|batch_norm|pool")
_POOLS = {2: aten.max_pool2d_with_indices, 3: aten.max_pool3d_with_indices}
_POOL_GRADIENTS = {
    2: aten.max_pool2d_with_indices_backward,
    3: aten.max_pool3d_with_indices_backward,
}


def compile_training(graph: Any, example_inputs: Sequence[Any], options: ModuleOptions) -> Any:
    """A graph of TorchDynamo whose passes are compiled when they first run.

    Raises UnsupportedError where nothing of the forward pass can be compiled.
    """
    forward = partial(_compile, options)
    backend = aot_autograd(
        fw_compiler=forward, bw_compiler=partial(_compile, options, refuses=False),
        decompositions=decompositions(), partition_fn=partition,
    )  # fmt: skip
    return backend(graph, example_inputs)


@cache
def decompositions() -> dict[Any, Callable[..., Any]]:
    """Return the decompositions of operators that have no rule."""
    table = {
        operator: function for operator, function in core_aten_decompositions().items()
        if not (hasattr(operator, "_schema") and operator_name(operator) in OPERATORS)
    }  # fmt: skip
    table[aten.native_dropout.default] = drop
    table[aten._scaled_dot_product_flash_attention_for_cpu_backward.default] = attention_gradient
    for operator in _POOL_GRADIENTS.values():
        table[operator.default] = pool_gradient
    return table


def drop(x: Any, p: float, train: bool | None) -> tuple[Any, Any]:
    """Dropout by a mask of PyTorch's generator, which depends on no other tensor."""
    if train is False or p == 0:
        return x, torch.ones_like(x, dtype=torch.bool)
    kept = aten.bernoulli.p(torch.empty(x.shape, dtype=torch.bool, device=x.device), 1 - p)
    return x * kept * (0.0 if p == 1 else 1 / (1 - p)), kept


def attention_gradient(
    grad_out: Any, query: Any, key: Any, value: Any, out: Any, shares: Any, dropout_p: float,
    is_causal: bool, *, attn_mask: Any = None, scale: float | None = None,
) -> tuple[Any, Any, Any]:  # fmt: skip
    """Return the gradients of query, key and value; ``shares`` are softmax's."""
    heads = key.shape[1]
    key, value = (x.repeat_interleave(query.shape[1] // heads, 1) for x in (key, value))
    by_shares = grad_out @ value.transpose(-1, -2)
    by_scores = aten._softmax_backward_data(by_shares, shares, -1, shares.dtype)
    by_scores = by_scores * (query.shape[-1] ** -0.5 if scale is None else scale)
    of_heads = (
        x.unflatten(1, (heads, -1)).sum(2)
        for x in (by_scores.transpose(-1, -2) @ query, shares.transpose(-1, -2) @ grad_out)
    )
    return by_scores @ key, *of_heads


def pool_gradient(
    grad_output: Any, x: Any, kernel_size: Sequence[int], stride: Sequence[int],
    padding: Sequence[int], dilation: Sequence[int], ceil_mode: bool, indices: Any,
) -> Any:  # fmt: skip
    """The gradient of a pool without the places of its largest elements."""
    return torch.ops.polysci.max_pool_backward(
        grad_output, x, kernel_size, stride, padding, dilation, ceil_mode
    )


def _max_pool_backward(grad_output: Any, x: Any, *words: Any) -> Any:
    axes = len(words[0])
    return _POOL_GRADIENTS[axes](grad_output, x, *words, _POOLS[axes](x, *words)[1])


_NAME = MAX_POOL_BACKWARD.removeprefix("polysci::")
LIBRARY.define(
    f"{_NAME}(Tensor grad_output, Tensor input, int[] kernel_size, int[] stride, int[] padding, "
    "int[] dilation, bool ceil_mode) -> Tensor"
)
LIBRARY.impl(_NAME, _max_pool_backward, "CPU")
torch.library.register_fake(
    MAX_POOL_BACKWARD, lambda grad_output, x, *_: x.new_empty(x.shape), lib=LIBRARY
)


def partition(joint: Any, joint_inputs: Any, *, num_fwd_outputs: int, **words: Any) -> Any:
    """Forward and backward pass; images between them have their channels last in memory."""
    for node in joint.graph.nodes:
        if node.target in (aten.detach.default, aten.alias.default):
            node.replace_all_uses_with(node.args[0])
        elif node.target is aten.t.default and node.args[0].target is aten.t.default:
            node.replace_all_uses_with(node.args[0].args[0])
        elif node.target is aten.view.default:  # of images with channels last it may be a copy
            node.target = aten.reshape.default
    joint.graph.eliminate_dead_code()
    passes = min_cut_rematerialization_partition(
        joint, joint_inputs, num_fwd_outputs=num_fwd_outputs, **words
    )
    saved = {node.name: node for node in output_of(passes[0])[num_fwd_outputs:]
             if node.op != "placeholder"}  # fmt: skip
    for other in passes[1].graph.find_nodes(op="placeholder"):
        node = saved.get(other.name)
        if node is not None and _is_image(node, other):
            value = node.meta["val"]
            value = value.to(memory_format=CHANNELS_LAST[value.dim()])
            other.meta["val"] = node.meta["val"] = value
            other.meta[LAST] = True
    return passes


def _is_image(node: Any, other: Any) -> bool:
    """Whether layers with windows, or norms of a batch, make a tensor or read it."""
    value = node.meta["val"]
    if not isinstance(value, torch.Tensor) or value.dim() not in CHANNELS_LAST:
        return False
    calls = (node, *node.all_input_nodes, *node.users, *other.users)
    return any(_WINDOWS.search(str(call.target)) for call in calls)


def output_of(graph: Any) -> Sequence[Any]:
    """Return what a graph module returns: nodes, and values that are known."""
    (node,) = graph.graph.find_nodes(op="output")
    made: Sequence[Any] = node.args[0]
    return made


def program_of_graph(graph: Any) -> TorchProgram:
    """The calls of a graph of ATen's operators."""
    nodes = graph.graph.nodes
    values = {node: getattr(graph, node.target) for node in nodes if node.op == "get_attr"}
    if any(isinstance(value, torch.nn.Module) for value in values.values()):
        raise UnsupportedError("data decides which of the calls are made (torch.cond)")
    inputs = tuple(node for node in nodes if node.op == "placeholder")
    calls = tuple(node for node in nodes if node.op == "call_function")
    return TorchProgram("graph", (*inputs, *calls), inputs, tuple(output_of(graph)), values)


def _compile(
    options: ModuleOptions, graph: Any, example_inputs: Sequence[Any], refuses: bool = True
) -> Any:
    """A function of a list of tensors, which it empties."""
    if not all(isinstance(x, torch.Tensor) for x in example_inputs):
        raise UnsupportedError("sizes that are not fixed")
    compiled: Any = partial(_run_as_traced, graph)
    try:
        with _disable_current_modes():  # constants are tensors with memory
            compiled = TracedGraph(graph, options)
        if refuses and not compiled.split.parts:
            raise UnsupportedError("nothing of the graph can be compiled")
    except Exception as error:  # of many kinds
        if refuses:  # another backend takes both passes
            raise
        leave("the backward pass of a graph", reason_of(error))

    def run(inputs: list[Any]) -> Any:
        tensors = [*inputs]
        inputs.clear()
        return compiled(*tensors)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


class TracedGraph:
    """A graph of ATen's operators, whose parts are compiled and checked at the first call."""

    def __init__(self, graph: Any, options: ModuleOptions) -> None:
        self._graph, self._options = graph, options
        self.program = program_of_graph(graph)
        self.split = split_program(self.program)
        apart = {source for node in self.split.refused for source in node.all_input_nodes}
        self._plain = [at for at, node in enumerate(self.program.inputs) if node in apart]
        self._runs: Any = None

    def __call__(self, *inputs: Any) -> Any:
        if self._runs is None:
            self._runs = self._compile(inputs)
        return self._runs(*inputs)

    def _compile(self, inputs: Sequence[Any]) -> Any:
        eager = partial(self._eager, range(len(inputs)), self._graph)
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            plain = [*map(_as_traced, self.program.inputs, inputs)]
            runs, self.report = compile_parts(self.program, plain, self._options, self.split)
            if runs is None or is_slower(
                self._options, partial(eager, *inputs), partial(runs, *inputs)
            ):
                return eager
        return partial(self._eager, self._plain, runs) if self._plain else runs

    def _eager(self, places: Sequence[int], runs: Any, *inputs: Any) -> Any:
        """Run eager with inputs as PyTorch's operators expect them: some mistake strides."""
        tensors = [*inputs]
        for at in places:
            tensors[at] = _as_traced(self.program.inputs[at], tensors[at])
        return runs(*tensors)


def _run_as_traced(graph: Any, *inputs: Any) -> Any:
    """A graph by PyTorch's operators."""
    nodes = graph.graph.find_nodes(op="placeholder")
    return graph(*map(_as_traced, nodes, inputs))


def _as_traced(node: Any, x: Any) -> Any:
    """An image that the forward pass saved, contiguous as it was when it was traced."""
    return x.contiguous() if node.meta.get(LAST) else x
