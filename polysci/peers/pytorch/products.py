"""The ways to multiply matrices: eagerly, on a factor packed ahead, and compiled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from polysci.errors import UnsupportedError
from polysci.ops import Matmul
from polysci.peers.pytorch.graph import compile_module
from polysci.peers.pytorch.operands import Operands, Step, Way, activate, attribute_of


def ways(operands: Operands) -> Sequence[Way]:
    """Return the eager call for two changing matrices; a constant factor is packed."""
    product = _product(operands)
    eager = [Way("eager matmul", _eager)]
    if not product.constant:
        return eager
    eager += [Way("eager matmul, constant factor transposed ahead", _transpose_factor)]
    if product.constant == "a" or product.batch is not None or _is_by_columns(product):
        return eager
    return (
        Way("mkldnn._linear_pointwise", _pointwise, fused=True),
        Way("mkl._mkl_linear", _mkl),
        Way("oneDNN Graph", _linear, script=True),
        Way("torch.compile, autotuned and frozen", _compile, once=True, fused=True),
        *eager,
    )


def _eager(operands: Operands, w: Any) -> Step:
    """``A @ B``, or the product of the transposed where the result is stored column by column."""
    product, call = _product(operands), operands.torch.matmul
    constant_first = product.constant == "a"
    w = _logical(product, "w", w)
    if _is_by_columns(product):
        w, constant_first = w.mT, not constant_first

    def step(x: Any) -> Any:
        x = _logical(product, "x", x)
        x = x.mT if _is_by_columns(product) else x
        return call(w, x) if constant_first else call(x, w)

    return step


def _transpose_factor(operands: Operands, w: Any) -> Step:
    return _eager(operands, w.mT.contiguous().mT)


def _linear(operands: Operands, w: Any) -> Step:
    call, weights = operands.torch.nn.functional.linear, _weights(operands, w)
    return lambda x: call(_logical(_product(operands), "x", x), weights)


def _pointwise(operands: Operands, w: Any) -> Step:
    """Return what inductor's freezing calls, on a factor packed ahead."""
    torch, product = operands.torch, _product(operands)
    packed = torch.ops.mkldnn._reorder_linear_weight(_weights(operands, w), product.M)
    call, attribute = torch.ops.mkldnn._linear_pointwise.default, attribute_of(operands)
    return lambda x: call(_logical(product, "x", x), packed, None, *attribute)


def _mkl(operands: Operands, w: Any) -> Step:
    """MKL's product of f32 on a factor packed ahead for so many rows."""
    torch, product = operands.torch, _product(operands)
    if w.dtype != torch.float32:
        raise RuntimeError("MKL packs f32 alone")
    weights = _weights(operands, w)
    packed = torch.ops.mkl._mkl_reorder_linear_weight(weights, product.M)
    call = torch.ops.mkl._mkl_linear.default
    return lambda x: call(_logical(product, "x", x), packed, weights, None, product.M)


def _compile(operands: Operands, w: Any) -> Step:
    return compile_module(operands.torch, [_linear(operands, w), *activate(operands)], operands.x)


def _product(operands: Operands) -> Matmul:
    if isinstance(operands.problem, Matmul):
        return operands.problem
    raise UnsupportedError(f"{operands.problem}: expected a product of matrices")


def _weights(operands: Operands, w: Any) -> Any:
    """B in the order of PyTorch's linear layers, N x K."""
    return _logical(_product(operands), "w", w).mT.contiguous()


def _logical(product: Matmul, name: str, tensor: Any) -> Any:
    """A factor as M x K or K x N, however it is stored."""
    first = product.axes[name].split()[-2:][0]
    second = (name == "w") != (product.constant == "a")
    return tensor if first == ("K" if second else "M") else tensor.mT


def _is_by_columns(product: Matmul) -> bool:
    """Return whether the result is stored column by column."""
    return product.axes["y"].split()[-1] == "M"
