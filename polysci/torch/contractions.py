"""einsum as PyTorch's operator: products of two operands at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from string import ascii_letters
from typing import Any

from torch import Tensor
from torch.compiler import is_dynamo_compiling

from polysci.border.arguments import check_type
from polysci.errors import UnsupportedError
from polysci.torch import settings
from polysci.torch.kernels import Calls
from polysci.torch.library import compose, is_direct
from polysci.torch.packed_weights import new_strided
from polysci.torch.products import matmul, plan_matmul

_calls = Calls()


def einsum(equation: str, *operands: Tensor) -> Tensor:
    """``torch.einsum`` of two or more tensors, two at a time from the left, by ``matmul``.

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
            call = _calls.get(key)
            if call is None:
                call = _calls.add(key, lambda: _plan(equation, a, b))
            return call(a, b)
    return _contract(equation, *operands)


def _plan(equation: str, a: Tensor, b: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    """One call on both operands where they lie, unless one has to be summed or copied first."""
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
    """The letters of two factors and of their product, from the left; all operands to multiply.

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
        """Letters that the product does not keep are summed over."""
        one, two, kept = pair
        a, one = _sum_alone(one, a, two + kept)
        b, two = _sum_alone(two, b, one + kept)
        extents = dict(zip(one + two, (*a.shape, *b.shape), strict=True))
        batch = [x for x in one if x in two and x in kept]
        m, n = [x for x in one if x not in two], [x for x in two if x not in one]
        k = [x for x in one if x in two and x not in kept]
        sizes = [[extents[x] for x in group] for group in (batch, m, k, n)]
        lead = [prod(sizes[0])] if batch else []
        axes = [*batch, *m, *n]
        return FactorPair(
            a.permute([one.index(x) for x in (*batch, *m, *k)])
            .reshape([*lead, prod(sizes[1]), prod(sizes[2])]),
            b.permute([two.index(x) for x in (*batch, *k, *n)])
            .reshape([*lead, prod(sizes[2]), prod(sizes[3])]),
            [*sizes[0], *sizes[1], *sizes[3]],
            [axes.index(x) for x in kept],
        )  # fmt: skip

    def result(self, product: Tensor) -> Tensor:
        """A view of the product of both matrices."""
        return product.reshape(self.sizes).permute(self.order)


def _sum_alone(term: str, x: Tensor, others: str) -> tuple[Tensor, str]:
    """The operand summed over its letters that nothing else has, and the letters left."""
    alone = [at for at, letter in enumerate(term) if letter not in others]
    if not alone:
        return x, term
    return x.sum(alone), "".join(letter for letter in term if letter in others)


compose(
    "einsum(str equation, Tensor[] operands) -> Tensor",
    lambda equation, operands: einsum(equation, *operands),
)
