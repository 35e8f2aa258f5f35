"""linear and matmul as PyTorch's operators."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling

from polysci.ops.matmul import Matmul
from polysci.torch import settings
from polysci.torch.images import strides_in
from polysci.torch.kernels import Calls, Kernel, check_operands, compile_kernel, precision
from polysci.torch.library import check_tensors, is_direct, register
from polysci.torch.packed_weights import CallResult, find_call, keep_call, new_strided

_calls = Calls()


@dataclass(frozen=True, slots=True, eq=False)
class MatmulCall:
    """A product of matrices of fixed shapes and strides; without a kernel nothing is summed.

    ``copies``: an operand lies otherwise than the kernel reads it.
    """

    kernel: Kernel | None
    batch: tuple[int, ...]
    transposed: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    copies: bool
    strides: tuple[int, ...]

    def __call__(self, a: Tensor, b: Tensor) -> Tensor:
        if self.kernel is None:
            return torch.zeros(self.shape, dtype=self.dtype, device="cpu")
        y = new_strided(self.shape, self.strides, self.dtype)
        if self.copies or a.is_neg() or b.is_neg():
            a, b = (
                _store(x, name, self.batch, self.transposed) for x, name in ((a, "a"), (b, "b"))
            )
        self.kernel(a.data_ptr(), b.data_ptr(), y.data_ptr())
        return y


def _store(matrix: Tensor, operand: str, batch: Sequence[int], transposed: str) -> Tensor:
    """Matrices one after the other, stored as a call reads them: themselves, or a copy."""
    if batch:
        matrix = matrix.expand(*batch, *matrix.shape[-2:])
    matrix = matrix.resolve_neg()
    return (matrix.mT if operand in transposed else matrix).contiguous()


def plan_matmul(a: Tensor, b: Tensor) -> MatmulCall:
    """The product of tensors with these shapes, strides and types."""
    check_operands("matmul", a, other=b)
    shape, m, k, n = _product_shape(a, b)
    batch = shape[: len(shape) - (a.dim() > 1) - (b.dim() > 1)]
    transposed = ""
    if b.dim() == 2 and a.is_contiguous():  # rows of all matrices are rows of one
        m, batch = m * prod(batch), ()
    if b.dim() == 1:  # a column is stored as a row
        m, batch = m * prod(batch), ()
    for operand, matrix in (("a", a), ("b", b)):
        last = matrix.dim() > 1 and not matrix.is_contiguous() and matrix.mT.is_contiguous()
        transposed += operand * last
    copies = any(
        _store(x, name, batch, transposed).data_ptr() != x.data_ptr()
        for x, name in ((a, "a"), (b, "b"))
    )
    parts = batch, transposed, shape, a.dtype, copies, strides_in("nchw", shape)
    if 0 in (*batch, m, k, n):
        return MatmulCall(None, *parts)
    problem = Matmul(
        m, k, n, prod(batch) if batch else None, dtype=precision("matmul", a), transposed=transposed
    )
    return MatmulCall(compile_kernel(problem), *parts)


def _product_shape(a: Tensor, b: Tensor) -> tuple[tuple[Any, ...], Any, Any, Any]:
    """The shape of a product, its rows, terms and columns. Raises ValueError for no product."""
    if not a.dim() or not b.dim():
        raise ValueError("matmul: expected at least 1 axis each, got a tensor without axes")
    rows, columns = a.shape[-2:-1] or (1,), b.shape[-1:] if b.dim() > 1 else (1,)
    terms = b.shape[-2] if b.dim() > 1 else b.shape[0]
    if a.shape[-1] != terms:
        raise ValueError(f"matmul: shapes {tuple(a.shape)} and {tuple(b.shape)} do not fit")
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    shape = (*batch, *a.shape[-2:-1], *(columns if b.dim() > 1 else ()))
    return shape, rows[0], terms, columns[0]


def matmul(input: Tensor, other: Tensor) -> Tensor:  # noqa: A002
    """``torch.matmul``: matrices, batches of them, which broadcast, or vectors.

    Matrices stored row by row or column by column are read as they lie, others are copied. Raises
    UnsupportedError, TypeError or ValueError for operands that do not fit.
    """
    if not (isinstance(input, Tensor) and isinstance(other, Tensor)):
        check_tensors("matmul", {"input": input, "other": other})
    if not is_dynamo_compiling() and is_direct(input, other, None):
        return _multiply(input, other)
    return _MATMUL(input, other)


def _multiply(a: Tensor, b: Tensor) -> Tensor:
    key = a.shape, a.stride(), a.dtype, b.shape, b.stride(), b.dtype, b.device, settings.key()
    call = _calls.get(key)
    if call is None:
        call = _calls.add(key, lambda: plan_matmul(a, b))
    return call(a, b)


def _fake_matmul(a: Tensor, b: Tensor) -> Tensor:
    check_operands("matmul", a, other=b)
    return a.new_empty(_product_shape(a, b)[0])


def _save_operands(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(*inputs[:2])


def _matmul_gradients(context: Any, dy: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """``da = dy b'`` and ``db = a' dy``, summed over what was broadcast."""
    a, b = context.saved_tensors
    rows, columns = a.unsqueeze(0) if a.dim() == 1 else a, b.unsqueeze(1) if b.dim() == 1 else b
    dy = dy.unsqueeze(-1) if b.dim() == 1 else dy
    dy = dy.unsqueeze(-2) if a.dim() == 1 else dy
    da = db = None
    if context.needs_input_grad[0]:
        da = matmul(dy, columns.mT).sum_to_size(rows.shape).reshape(a.shape)
    if context.needs_input_grad[1]:
        if columns.dim() == 2:  # sums over all matrices of a at once
            rows, dy = _rows(rows), _rows(dy)
        db = matmul(rows.mT, dy).sum_to_size(columns.shape).reshape(b.shape)
    return da, db


_MATMUL = register(
    "matmul(Tensor input, Tensor other) -> Tensor",
    _multiply, _fake_matmul, _save_operands, _matmul_gradients,
)  # fmt: skip


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:  # noqa: A002
    """``torch.nn.functional.linear``: ``input @ weight.T + bias``.

    Raises UnsupportedError, TypeError or ValueError for operands that do not fit.
    """
    if not (isinstance(input, Tensor) and isinstance(weight, Tensor)):
        check_tensors("linear", {"input": input, "weight": weight})
    if not is_dynamo_compiling() and is_direct(input, weight, bias):
        return _linear(input, weight, bias)
    return _LINEAR(input, weight, bias)


def _linear(x: Tensor, w: Tensor, bias: Tensor | None) -> Tensor:
    key = "linear", x.shape, x.stride(), x.dtype, settings.key()
    call = find_call(w, key)
    if call is not None:
        return call(x, bias)
    whole = (*key, w.shape, w.dtype)
    plan = _calls.get(whole)
    if plan is None:
        plan = _calls.add(whole, lambda: _plan_linear(x, w))
    kernel, result = plan
    if kernel is None:
        y = torch.zeros(result.shape, dtype=x.dtype, device="cpu")
        return y if bias is None else y + bias
    return keep_call(kernel, w, key, result)(x, bias)


def _plan_linear(x: Tensor, w: Tensor) -> tuple[Kernel | None, CallResult]:
    check_operands("linear", x, weight=w)
    shape = _linear_shape(x, w)
    m, (n, k) = prod(shape[:-1]), w.shape
    strides = strides_in("nchw", shape)
    copies = x.numel() < 2 or not x.is_contiguous()
    result = CallResult(_contiguous if copies else None, shape, strides, x.dtype, n)
    if 0 in (m, k, n):
        return None, result
    problem = Matmul(m, k, n, dtype=precision("linear", x), transposed="b", constant="b")
    return compile_kernel(problem), result


def _contiguous(x: Tensor) -> Tensor:
    return x.resolve_neg().contiguous()


def _linear_shape(x: Tensor, w: Tensor) -> tuple[Any, ...]:
    if w.dim() != 2 or not x.dim() or x.shape[-1] != w.shape[1]:
        shapes = f"{tuple(x.shape)} and {tuple(w.shape)}"
        raise ValueError(f"linear: expected input (..., IN) and weight (OUT, IN), got {shapes}")
    return (*x.shape[:-1], w.shape[0])


def _rows(x: Tensor) -> Tensor:
    return x.flatten(0, -2) if x.dim() > 1 else x.unsqueeze(0)


def _fake_linear(x: Tensor, w: Tensor, bias: Tensor | None) -> Tensor:
    check_operands("linear", x, weight=w)
    return x.new_empty(_linear_shape(x, w))


def _linear_gradients(context: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    (x, w), wants = context.saved_tensors, context.needs_input_grad
    rows = _rows(dy)
    dx = matmul(dy, w) if wants[0] else None
    dw = matmul(rows.mT, _rows(x)) if wants[1] else None
    return dx, dw, rows.sum(0) if wants[2] else None


_LINEAR = register(
    "linear(Tensor input, Tensor weight, Tensor? bias) -> Tensor",
    _linear, _fake_linear, _save_operands, _linear_gradients,
)  # fmt: skip
