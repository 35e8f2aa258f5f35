"""lstm and gru as PyTorch's operators: whole layers, whose gradients are compiled networks too."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from types import MappingProxyType
from typing import Any, Final

import torch
from torch import Tensor, is_grad_enabled
from torch._C._dynamo.guards import TensorGuards
from torch.compiler import is_dynamo_compiling

from polysci.errors import UnsupportedError
from polysci.frontends.layers.model import INPUT, LayerGraph
from polysci.frontends.layers.recurrent import GRU, LSTM
from polysci.graph import graph as ir
from polysci.graph.differentiate import pull_back
from polysci.graph.passes.table import simplify
from polysci.network.compiled import Network, compile_network
from polysci.torch import settings
from polysci.torch.kernels import Calls, check_operands, new_strided, strides_in
from polysci.torch.library import check_tensors, define, is_watched, register

_F32: Final = torch.float32
_address: Final = Tensor.data_ptr
_KINDS: Final = (Tensor, torch.nn.Parameter)


class DirectLayers:
    """Layers one after the other on operands of these types, shapes and strides.

    ``runs``: each layer's, on addresses of x, its first states, weights, y and last states;
    ``results``: the shapes of y and of the last states of all layers.
    """

    def __init__(
        self, runs: Sequence[Callable[[Sequence[int]], None]], operands: Sequence[Tensor],
        results: Sequence[tuple[int, ...]],
    ) -> None:  # fmt: skip
        self._runs = runs
        self._weights = (len(operands) - len(results)) // len(runs)  # of each layer
        self._step = 4 * prod(results[1]) // len(runs)  # bytes of a layer's states
        self._results = [(shape, strides_in("nchw", shape), _F32) for shape in results]
        self._learns = any(x.requires_grad for x in operands)
        self._fits = TensorGuards(
            *operands,
            dynamic_dims_sizes=[[*x.shape] for x in operands],
            dynamic_dims_strides=[[*x.stride()] for x in operands],
        ).check

    def fits(self, operands: Sequence[Tensor]) -> bool:
        """Tell whether these can be taken, and nobody wants gradients."""
        return bool(self._fits(*operands)) and not (self._learns and is_grad_enabled())

    def __call__(self, operands: Sequence[Tensor]) -> list[Tensor]:
        """Return y and the last states."""
        results = [new_strided(*result) for result in self._results]
        if len(self._runs) == 1:
            self._runs[0]([*map(_address, operands), *map(_address, results)])
            return results
        ys = [*(new_strided(*self._results[0]) for _ in self._runs[1:]), results[0]]
        x, *places = map(_address, operands)
        lasts = [*map(_address, results[1:])]
        first, weights = places[: len(lasts)], places[len(lasts) :]
        for layer, (run, result) in enumerate(zip(self._runs, ys, strict=True)):
            params = weights[layer * self._weights : (layer + 1) * self._weights]
            y, at = result.data_ptr(), layer * self._step
            run([x, *[h + at for h in first], *params, y, *[h + at for h in lasts]])
            x = y
        return results


def is_plain(operands: Sequence[Tensor]) -> bool:
    """Tell whether these are f32 tensors that lie as networks read them, and learn nothing here."""
    learns = is_grad_enabled()
    return all(
        type(x) in _KINDS and x.dtype is _F32 and x.is_cpu and x.layout is torch.strided
        and x.is_contiguous() and not x.is_neg() and not (learns and x.requires_grad)
        for x in operands
    )  # fmt: skip


CELLS: Mapping[str, Any] = MappingProxyType({"lstm": LSTM, "gru": GRU})
STATES: Mapping[str, tuple[str, ...]] = MappingProxyType({"lstm": ("h", "c"), "gru": ("h",)})
_TENSORS: Final = "Tensor input, Tensor[] hx, Tensor[] params"
_RESULTS: Final = "results"  # y and the last states, one after the other
_calls, _direct = Calls(), Calls()


@dataclass(frozen=True, slots=True)
class RecurrentShape:
    """The form of a recurrent layer: the cell, x, and the shapes of the weights."""

    cell: str
    x: tuple[int, ...]
    hidden: int
    directions: int
    bias: bool
    batch_first: bool

    @property
    def results(self) -> list[tuple[int, ...]]:
        """Return the shapes of y and the last states."""
        batch = self.x[0 if self.batch_first else 1]
        y = (*self.x[:2], self.directions * self.hidden)
        return [y, *[(self.directions, batch, self.hidden)] * len(STATES[self.cell])]

    def graph(self) -> tuple[ir.Graph, list[str]]:
        """Return the graph of x, states and parameters in PyTorch's order, and its outputs."""
        layer = CELLS[self.cell](
            self.x[2], self.hidden, 1, self.bias, self.batch_first, self.directions == 2
        )
        x = ir.Tensor(INPUT, self.x)
        empty = ir.Graph(self.cell, (x,), (), (), {}, {INPUT: x})
        graph, states, turned = LayerGraph(empty), list[str](), list[str]()
        for name, shape in zip(STATES[self.cell], self.results[1:], strict=True):
            graph.tensors[name] = ir.Tensor(name, shape)
            states.append(name)
            turned.append(graph.transpose(name, (1, 0, 2)) if self.batch_first else name)
        y, lasts = layer.add_layer(graph, INPUT, "", 0, turned)
        if self.batch_first:
            lasts = [graph.transpose(last, (1, 0, 2)) for last in lasts]
        kinds = ["weight_ih", "weight_hh", *["bias_ih", "bias_hh"] * self.bias]
        ends = ["", "_reverse"][: self.directions]
        names = [INPUT, *states, *(f"{kind}_l0{end}" for end in ends for kind in kinds)]
        outputs = [y, *lasts]
        inputs = [graph.tensors[name] for name in names]
        return graph.to_graph(inputs, outputs), outputs

    def gradients(self) -> ir.Graph:
        """Return the graph of all inputs' gradients, from the inputs and the results' gradients."""
        graph, outputs = self.graph()
        grown = LayerGraph(graph)
        flat = [grown.reshape(name, (grown.graph.tensors[name].size,)) for name in outputs]
        size = sum(grown.tensors[name].size for name in flat)
        joined = grown.add("concat", flat, (size,), axis=0)
        grown.tensors[_RESULTS] = replace(grown.tensors[joined], name=_RESULTS)
        grown.nodes.append(ir.Node("identity", (joined,), (_RESULTS,)))
        whole = grown.to_graph(graph.inputs, [_RESULTS])
        back = pull_back(whole, _RESULTS, [tensor.name for tensor in graph.inputs])
        return replace(back, outputs=back.outputs[1:])


def _shape_of(
    cell: str, x: Tensor, states: Sequence[Tensor], params: Sequence[Tensor], batch_first: bool
) -> RecurrentShape:
    """Raise UnsupportedError, TypeError or ValueError for tensors that do not fit each other."""
    weights = {
        f"params[{at}]": tensor
        for at, tensor in enumerate(params)
        if tensor.dtype is not torch.float32
    }  # those of f32 are read as they are
    check_operands(cell, x, **weights,
                   **{f"hx[{at}]": tensor for at, tensor in enumerate(states)})  # fmt: skip
    if x.dim() != 3 or len(states) != len(STATES[cell]) or states[0].dim() != 3:
        shapes = [tuple(tensor.shape) for tensor in (x, *states)]
        raise ValueError(f"{cell}: expected an input and states of 3 axes, got {shapes}")
    if not x.shape[1 if batch_first else 0] or not x.shape[2]:
        raise UnsupportedError(
            f"{cell}: input: expected at least one step and one feature, got {tuple(x.shape)}"
        )
    directions, hidden = states[0].shape[0], states[0].shape[2]
    bias = len(params) == 4 * directions
    if directions not in (1, 2) or len(params) not in (2 * directions, 4 * directions):
        raise UnsupportedError(
            f"{cell}: expected 2 or 4 parameters (weights, biases) for each direction of a layer, "
            f"got {len(params)} for {directions}: projections are not supported"
        )
    shape = RecurrentShape(cell, tuple(x.shape), hidden, directions, bias, batch_first)
    rows = (4 if cell == "lstm" else 3) * hidden
    shapes = [(rows, x.shape[2]), (rows, hidden), *[(rows,), (rows,)] * bias] * directions
    for what, tensors, sizes in (("params", params, shapes), ("hx", states, shape.results[1:])):
        for at, (tensor, size) in enumerate(zip(tensors, sizes, strict=True)):
            if tuple(tensor.shape) != size:
                fault = f"expected shape {size}, got {tuple(tensor.shape)}"
                raise ValueError(f"{cell}: {what}[{at}]: {fault}")
    return shape


def _network(shape: RecurrentShape, *, gradients: bool) -> Network:
    def make() -> Network:
        chosen = settings.current()
        graph = shape.gradients() if gradients else shape.graph()[0]
        return compile_network(
            simplify(graph), chosen.level, settings.threads(), name=shape.cell,
            reproducible=chosen.reproducible,
        )  # fmt: skip

    key = shape, gradients, settings.key()
    network: Network = _calls.get(key) or _calls.add(key, make)
    return network


def _execute(
    network: Network,
    inputs: Sequence[Tensor],
    shapes: Sequence[Sequence[int]],
    kinds: Sequence[Any],
) -> list[Tensor]:
    """Compute a network's results, of these shapes and types; narrow ones in f32."""
    results = [torch.empty(tuple(shape), dtype=torch.float32, device="cpu") for shape in shapes]
    arrays = [tensor.detach().float().contiguous().numpy() for tensor in inputs]
    network.runner.into(arrays, [result.numpy() for result in results])
    return [result.to(kind) for result, kind in zip(results, kinds, strict=True)]


def _register_gradients(cell: str) -> Any:
    """Register the operator from the gradients of a layer's results to those of its operands."""

    def kernel(
        x: Tensor, states: Sequence[Tensor], params: Sequence[Tensor], dys: Sequence[Tensor],
        batch_first: bool,
    ) -> list[Tensor]:  # fmt: skip
        shape, operands = _shape_of(cell, x, states, params, batch_first), (x, *states, *params)
        if not x.numel():
            return [torch.zeros_like(operand) for operand in operands]
        flat, shapes = torch.cat([dy.reshape(-1) for dy in dys]), [x.shape for x in operands]
        kinds = [operand.dtype for operand in operands]
        return _execute(_network(shape, gradients=True), (*operands, flat), shapes, kinds)

    def fake(
        x: Tensor, states: Sequence[Tensor], params: Sequence[Tensor], dys: Sequence[Tensor],
        batch_first: bool,
    ) -> list[Tensor]:  # fmt: skip
        return [operand.new_empty(operand.shape) for operand in (x, *states, *params)]

    def refuse(ctx: Any, *dys: Any) -> Any:
        raise UnsupportedError(f"polysci.torch.{cell} has no second gradients")

    return register(
        f"{cell}_layer_gradients({_TENSORS}, Tensor[] grads, bool batch_first) -> Tensor[]",
        kernel, fake, lambda ctx, inputs, output: None, refuse,
    )  # fmt: skip


def _register_layer(cell: str) -> Any:
    """Register the operator of one layer."""
    gradient_operator = _register_gradients(cell)

    def kernel(
        x: Tensor, states: Sequence[Tensor], params: Sequence[Tensor], batch_first: bool
    ) -> tuple[Tensor, ...]:
        shape = _shape_of(cell, x, states, params, batch_first)
        if not x.numel():
            return tuple(x.new_zeros(result) for result in shape.results)
        network = _network(shape, gradients=False)
        kinds = [x.dtype] * len(shape.results)
        return tuple(_execute(network, (x, *states, *params), shape.results, kinds))

    def fake(
        x: Tensor, states: Sequence[Tensor], params: Sequence[Tensor], batch_first: bool
    ) -> tuple[Tensor, ...]:
        shape = _shape_of(cell, x, states, params, batch_first)
        return tuple(x.new_empty(result) for result in shape.results)

    def setup(ctx: Any, inputs: Any, output: Any) -> None:
        x, states, params, ctx.batch_first = inputs
        ctx.states, ctx.shapes = len(states), [result.shape for result in output]
        ctx.save_for_backward(x, *states, *params)

    def gradients(ctx: Any, *dys: Any) -> tuple[Any, ...]:
        x, *rest = ctx.saved_tensors
        states, params = rest[: ctx.states], rest[ctx.states :]
        pairs = zip(dys, ctx.shapes, strict=True)
        known = [x.new_zeros(shape) if dy is None else dy for dy, shape in pairs]
        dx, *others = gradient_operator(x, states, params, known, ctx.batch_first)
        return dx, others[: ctx.states], others[ctx.states :], None

    results = ", ".join(["Tensor"] * (1 + len(STATES[cell])))
    schema = f"{cell}_layer({_TENSORS}, bool batch_first) -> ({results})"
    return register(schema, kernel, fake, setup, gradients, narrowed=2)


_LAYERS: Final = {cell: _register_layer(cell) for cell in CELLS}


def _recur(
    cell: str, x: Tensor, states: Sequence[Tensor], params: Sequence[Tensor], has_biases: bool,
    num_layers: int, dropout: float, train: bool, bidirectional: bool, batch_first: bool,
) -> Sequence[Tensor]:  # fmt: skip
    """Compute all layers; past the dispatcher where that has nothing to do."""
    operands = x, *states, *params
    if not all(isinstance(operand, Tensor) for operand in operands):
        names = ("input", *["hx"] * len(states), *["params"] * len(params))
        for name, operand in zip(names, operands, strict=True):
            check_tensors(cell, {name: operand})
    drops, form = dropout if train else 0.0, (has_biases, num_layers, bidirectional, batch_first)
    if is_dynamo_compiling() or is_watched() or drops:
        return _recur_by_operators(cell, x, states, params, drops, *form)
    key = cell, x.shape, len(operands), form, settings.key()
    layers = _direct.get(key)
    if layers is not None and layers.fits(operands):
        return layers(operands)  # type: ignore[no-any-return]
    results = _recur_by_operators(cell, x, states, params, drops, *form)
    if is_plain(operands) and x.numel() and num_layers:
        _direct.put(key, _direct_layers(cell, operands, [tuple(y.shape) for y in results], form))
    return results


def _direct_layers(
    cell: str, operands: Sequence[Tensor], results: Sequence[tuple[int, ...]], form: Any
) -> DirectLayers:
    has_biases, num_layers, bidirectional, batch_first = form
    x, hidden = tuple(operands[0].shape), results[1][2]
    runs = list[Any]()
    for _ in range(num_layers):
        shape = RecurrentShape(cell, x, hidden, 1 + bidirectional, has_biases, batch_first)
        runs.append(_network(shape, gradients=False).runner.run_at)
        x = results[0]
    return DirectLayers(runs, operands, results)


def _recur_by_operators(
    cell: str, x: Tensor, states: Sequence[Tensor], params: Sequence[Tensor], dropout: float,
    has_biases: bool, num_layers: int, bidirectional: bool, batch_first: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Compute one layer after the other, with dropout between them."""
    directions, lasts = 1 + bidirectional, list[Sequence[Tensor]]()
    count = (4 if has_biases else 2) * directions  # parameters of a layer
    if len(params) != count * num_layers or states[0].shape[0] != directions * num_layers:
        raise UnsupportedError(
            f"{cell}: expected {count * num_layers} parameters and {directions * num_layers} first "
            f"states, got {len(params)} and {states[0].shape[0]}; projections are not supported"
        )
    for layer in range(num_layers):
        if layer and dropout:
            x = torch.nn.functional.dropout(x, dropout)
        first = [state.narrow(0, layer * directions, directions) for state in states]
        weights = list(params[layer * count : (layer + 1) * count])
        x, *last = _LAYERS[cell](x, first, weights, batch_first)
        lasts.append(last)
    return x, *(torch.cat(tensors) for tensors in zip(*lasts, strict=True))


def lstm(
    input: Tensor, hx: Sequence[Tensor], params: Sequence[Tensor], has_biases: bool,  # noqa: A002
    num_layers: int, dropout: float, train: bool, bidirectional: bool, batch_first: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Compute ``torch.lstm``: y, h_n and c_n; ``hx`` and ``params`` as torch.nn.LSTM has them.

    ``params`` are its ``_flat_weights``. bfloat16 and float16 are computed in float32. There are
    gradients, but no second ones. Raises UnsupportedError for projections and other element types,
    TypeError or ValueError for tensors that do not fit.
    """
    form = has_biases, num_layers, dropout, train, bidirectional, batch_first
    y, h, c = _recur("lstm", input, hx, params, *form)
    return y, h, c


def gru(
    input: Tensor, hx: Tensor, params: Sequence[Tensor], has_biases: bool,  # noqa: A002
    num_layers: int, dropout: float, train: bool, bidirectional: bool, batch_first: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Compute ``torch.gru``: y and h_n; all else as ``lstm``."""
    form = has_biases, num_layers, dropout, train, bidirectional, batch_first
    y, h = _recur("gru", input, [hx], params, *form)
    return y, h


_FORM = (
    "Tensor[] params, bool has_biases, int num_layers, float dropout, bool train, "
    "bool bidirectional, bool batch_first"
)
define(f"lstm(Tensor input, Tensor[] hx, {_FORM}) -> (Tensor, Tensor, Tensor)", lstm)
define(f"gru(Tensor input, Tensor hx, {_FORM}) -> (Tensor, Tensor)", gru)
