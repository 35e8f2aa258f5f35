"""linear, matmul and einsum as PyTorch's operators."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from string import ascii_letters
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling

from polysci.errors import UnsupportedError
from polysci.ops.matmul import Matmul
from polysci.torch import settings
from polysci.torch.images import strides_in
from polysci.torch.kernels import Calls, Kernel, check_operands, compile_kernel, precision
from polysci.torch.library import compose, is_direct, register
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


def _plan_matmul(a: Tensor, b: Tensor) -> MatmulCall:
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
    if not is_dynamo_compiling() and is_direct(input, other, None):
        return _multiply(input, other)
    return _MATMUL(input, other)


def _multiply(a: Tensor, b: Tensor) -> Tensor:
    key = a.shape, a.stride(), a.dtype, b.shape, b.stride(), b.dtype, b.device, settings.key()
    call = _calls.get(key)
    if call is None:
        call = _calls.add(key, lambda: _plan_matmul(a, b))
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


def einsum(equation: str, *operands: Tensor) -> Tensor:
    """``torch.einsum`` of two or more tensors, two at a time from the left, by ``matmul``.

    Raises UnsupportedError for one operand or a letter twice in an operand, ValueError for an
    equation that does not fit the operands.
    """
    left, arrow, output = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(operands):
        raise ValueError(f"einsum: {equation!r} is of {len(terms)} operands, got {len(operands)}")
    letters = "".join(terms).replace("...", "")
    if not arrow:
        output = "".join(sorted(x for x in set(letters) if letters.count(x) == 1))
        output = f"...{output}" if "..." in left else output
    if "..." in left:
        terms, output, operands = _name_axes(terms, output, operands)
    _check_equation(equation, terms, output, operands)
    term, product = terms[0], operands[0]
    for at in range(1, len(terms)):
        needed = set(output).union(*terms[at + 1 :])
        kept = "".join(x for x in dict.fromkeys(term + terms[at]) if x in needed)
        product = _contract(term, product, terms[at], operands[at], kept)
        term = kept
    return product.permute([term.index(x) for x in output])


def _name_axes(
    terms: Sequence[str], output: str, operands: Sequence[Tensor]
) -> tuple[list[str], str, tuple[Tensor, ...]]:
    """Letters for the axes of an ellipsis, from the last one; those of extent 1 are repeated."""
    counts = [x.dim() - len(term) + 3 if "..." in term else 0
              for term, x in zip(terms, operands, strict=True)]  # fmt: skip
    taken = {*"".join(terms), *output}
    spare = [x for x in ascii_letters if x not in taken][: max(0, *counts)]
    named, extents = list[str](), dict[str, int]()
    for term, count, x in zip(terms, counts, operands, strict=True):
        named.append(term.replace("...", "".join(spare[len(spare) - max(0, count) :])))
        for letter, extent in zip(named[-1], x.shape, strict=False):
            extents[letter] = max(extent, extents.get(letter, 1))
    wide = tuple(
        x.expand([extents[letter] if letter in spare and extent == 1 else extent
                  for letter, extent in zip(term, x.shape, strict=True)])
        if len(term) == x.dim() else x
        for term, x in zip(named, operands, strict=True)
    )  # fmt: skip
    return named, output.replace("...", "".join(spare)), wide


def _check_equation(equation: str, terms: list[str], output: str, operands: Any) -> None:
    """Raise UnsupportedError or ValueError."""
    if len(terms) < 2 or any(len(set(term)) < len(term) for term in terms):
        raise UnsupportedError(
            f"einsum: {equation!r}: expected two or more operands, and each letter at most once "
            "in an operand"
        )
    extents: dict[str, Any] = {}
    for term, operand in zip(terms, operands, strict=True):
        if len(term) != operand.dim() or not all(map(str.isalpha, term)):
            shape = tuple(operand.shape)
            raise ValueError(f"einsum: {equation!r}: {term!r} does not fit shape {shape}")
        for letter, extent in zip(term, operand.shape, strict=True):
            if extents.setdefault(letter, extent) != extent:
                raise ValueError(
                    f"einsum: {equation!r}: {letter} is {extents[letter]} and {extent}"
                )
    if len(set(output)) < len(output) or not set(output) <= set(extents):
        raise ValueError(f"einsum: {equation!r}: expected each letter of an operand at most once")


def _contract(one: str, a: Tensor, two: str, b: Tensor, kept: str) -> Tensor:
    """The product of two operands, with the letters ``kept``: the others are summed over."""
    for term, other in ((one, two), (two, one)):
        alone = [at for at, x in enumerate(term) if x not in other and x not in kept]
        if alone and term is one:
            a, one = a.sum(alone), "".join(x for at, x in enumerate(one) if at not in alone)
        elif alone:
            b, two = b.sum(alone), "".join(x for at, x in enumerate(two) if at not in alone)
    extents = dict(zip(one + two, (*a.shape, *b.shape), strict=True))
    batch = [x for x in one if x in two and x in kept]
    m, n = [x for x in one if x not in two], [x for x in two if x not in one]
    k = [x for x in one if x in two and x not in kept]
    sizes = [[extents[x] for x in group] for group in (batch, m, k, n)]
    lead = [prod(sizes[0])] if batch else []
    a = a.permute([one.index(x) for x in (*batch, *m, *k)]).reshape(
        [*lead, prod(sizes[1]), prod(sizes[2])]
    )
    b = b.permute([two.index(x) for x in (*batch, *k, *n)]).reshape(
        [*lead, prod(sizes[2]), prod(sizes[3])]
    )
    y = matmul(a, b).reshape([*sizes[0], *sizes[1], *sizes[3]])
    order = [*batch, *m, *n]
    return y.permute([order.index(x) for x in kept])


compose(
    "einsum(str equation, Tensor[] operands) -> Tensor",
    lambda equation, operands: einsum(equation, *operands),
)
