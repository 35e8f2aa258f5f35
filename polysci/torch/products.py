"""linear, matmul and einsum as PyTorch's operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from string import ascii_letters
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling

from polysci.border.arguments import check_type
from polysci.errors import UnsupportedError
from polysci.ops.matmul import Matmul
from polysci.torch import settings
from polysci.torch.kernels import (
    CallResult,
    Calls,
    Kernel,
    check_operands,
    compile_kernel,
    find_call,
    keep_call,
    new_strided,
    precision,
    strides_in,
)
from polysci.torch.library import check_tensors, define, is_direct, register

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
    """Return matrices one after the other, stored as a call reads them: themselves, or a copy."""
    if batch:
        matrix = matrix.expand(*batch, *matrix.shape[-2:])
    matrix = matrix.resolve_neg()
    return (matrix.mT if operand in transposed else matrix).contiguous()


def plan_matmul(a: Tensor, b: Tensor) -> MatmulCall:
    """Plan the product of tensors with these shapes, strides and types."""
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
    """Return the shape of a product, its rows, terms and columns. Raises ValueError for none."""
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
    """Compute ``torch.matmul``: of matrices, batches of them, which broadcast, or vectors.

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
    call: Callable[..., Tensor] = _calls.get(key) or _calls.add(key, lambda: plan_matmul(a, b))
    return call(a, b)


def _fake_matmul(a: Tensor, b: Tensor) -> Tensor:
    check_operands("matmul", a, other=b)
    return a.new_empty(_product_shape(a, b)[0])


def _save_operands(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(*inputs[:2])


def _matmul_gradients(context: Any, dy: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """Return ``da = dy b'`` and ``db = a' dy``, summed over what was broadcast."""
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
    """Compute ``torch.nn.functional.linear``: ``input @ weight.T + bias``.

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
    plan_key = (*key, w.shape, w.dtype)
    kernel, result = _calls.get(plan_key) or _calls.add(plan_key, lambda: _plan_linear(x, w))
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


_einsum_calls = Calls()


def einsum(equation: str, *operands: Tensor) -> Tensor:
    """Compute ``torch.einsum`` of two or more tensors, two at a time from the left, by ``matmul``.

    Raises UnsupportedError for one operand or a letter twice in an operand, ValueError for an
    equation that does not fit the operands.
    """
    if len(operands) == 2 and not is_dynamo_compiling():
        a, b = operands
        if is_direct(a, b, None) and not (a.is_neg() or b.is_neg()):
            key = (
                equation, a.shape, a.stride(), a.dtype, b.shape, b.stride(), b.dtype, b.device,
                settings.key(),
            )  # fmt: skip
            call: Callable[..., Tensor] = _einsum_calls.get(key) or _einsum_calls.add(
                key, lambda: _plan_einsum(equation, a, b)
            )
            return call(a, b)
    return _contract(equation, *operands)


def _plan_einsum(equation: str, a: Tensor, b: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    """Plan one call on both operands where they lie, unless one is summed or copied first."""
    (pair,), operands = _pairs(equation, (a, b))
    product = FactorPair.of(pair, *operands)
    if product.a.data_ptr() == a.data_ptr() and product.b.data_ptr() == b.data_ptr():
        call = plan_matmul(product.a, product.b)
        if call.kernel is not None and not call.copies:
            y = product.result(new_strided(call.shape, call.strides, call.dtype))
            return replace(call, shape=tuple(y.shape), strides=y.stride())
    return partial(_contract, equation)


def _contract(equation: str, *operands: Tensor) -> Tensor:
    pairs, (product, *others) = _pairs(equation, operands)
    for pair, other in zip(pairs, others, strict=True):
        factors = FactorPair.of(pair, product, other)
        product = factors.result(matmul(factors.a, factors.b))
    return product


def _pairs(
    equation: str, operands: Sequence[Tensor]
) -> tuple[list[tuple[str, str, str]], Sequence[Tensor]]:
    """Return the letters of two factors and of their product, from the left, and all operands.

    Raises UnsupportedError or ValueError.
    """
    for at, operand in enumerate(operands):
        if not isinstance(operand, Tensor):
            kind = type(operand).__name__
            raise TypeError(f"einsum: operand {at}: expected a tensor, got {kind}")
    check_type("einsum: equation", equation, str)
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
    term, pairs = terms[0], list[tuple[str, str, str]]()
    for at, other in enumerate(terms[1:], 2):
        needed = set(output).union(*terms[at:])
        kept = "".join(x for x in dict.fromkeys(term + other) if x in needed)
        kept = kept if at < len(terms) else output
        pairs.append((term, other, kept))
        term = kept
    return pairs, operands


def _name_axes(
    terms: Sequence[str], output: str, operands: Sequence[Tensor]
) -> tuple[list[str], str, tuple[Tensor, ...]]:
    """Name the axes of an ellipsis by letters, from the last one; repeat those of extent 1."""
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


@dataclass(frozen=True, slots=True)
class FactorPair:
    """Two factors as matrices, (batch, m, k) and (batch, k, n), and what their product becomes.

    ``sizes``: the extents that the product has then; ``order``: of those, the result's axes.
    """

    a: Tensor
    b: Tensor
    sizes: Sequence[Any]
    order: Sequence[int]

    @staticmethod
    def of(pair: tuple[str, str, str], a: Tensor, b: Tensor) -> FactorPair:
        """Return the matrices of two tensors; letters that the product lacks are summed over."""
        left, right, kept = pair
        a, left = _sum_alone(left, a, right + kept)
        b, right = _sum_alone(right, b, left + kept)
        extents = dict(zip(left + right, (*a.shape, *b.shape), strict=True))
        batch = [x for x in left if x in right and x in kept]
        m, n = [x for x in left if x not in right], [x for x in right if x not in left]
        k = [x for x in left if x in right and x not in kept]
        sizes = [[extents[x] for x in group] for group in (batch, m, k, n)]
        lead = [prod(sizes[0])] if batch else []
        axes = [*batch, *m, *n]
        return FactorPair(
            a.permute([left.index(x) for x in (*batch, *m, *k)])
            .reshape([*lead, prod(sizes[1]), prod(sizes[2])]),
            b.permute([right.index(x) for x in (*batch, *k, *n)])
            .reshape([*lead, prod(sizes[2]), prod(sizes[3])]),
            [*sizes[0], *sizes[1], *sizes[3]],
            [axes.index(x) for x in kept],
        )  # fmt: skip

    def result(self, product: Tensor) -> Tensor:
        """Return the result as a view of the product of both matrices."""
        return product.reshape(self.sizes).permute(self.order)


def _sum_alone(term: str, x: Tensor, others: str) -> tuple[Tensor, str]:
    """Sum an operand over its letters that nothing else has; return it and the letters left."""
    alone = [at for at, letter in enumerate(term) if letter not in others]
    if not alone:
        return x, term
    return x.sum(alone), "".join(letter for letter in term if letter in others)


define(
    "einsum(str equation, Tensor[] operands) -> Tensor",
    lambda equation, operands: einsum(equation, *operands),
)
