"""Bilinear algorithms of matrix products as coefficients, which are checked where they are made."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Final

import numpy as np
from numpy.typing import NDArray

from polysci.errors import SpecError

Integers = NDArray[np.int64]
Size = tuple[int, int, int]
SIGNS: Final = "-0+"
MOST_TERMS: Final = 256  # of a sum: PS_TERMS of microkernels/bilinear.h


@dataclass(frozen=True, slots=True, eq=False)
class BilinearProduct:
    """``<m, k, n; r>``: r products for an m x k by a k x n matrix, whose elements may be blocks.

    Product p is (sum over i of a[p, i] A[i]) (sum over j of b[p, j] B[j]), and C[l] is the sum over
    p of c[l, p] times product p; elements of a matrix are counted row by row. Raises SpecError
    unless that is the product whatever the elements are: an identity of integers.
    """

    m: int
    k: int
    n: int
    a: Integers = field(repr=False)
    b: Integers = field(repr=False)
    c: Integers = field(repr=False)

    def __post_init__(self) -> None:
        m, k, n = self.size
        shapes = (self.a.shape, self.b.shape, self.c.shape)
        if shapes != ((len(self.a), m * k), (len(self.a), k * n), (m * n, len(self.a))):
            raise SpecError(f"bilinear algorithm {self}: coefficients of shapes {shapes}")
        if max(self.most_terms) > MOST_TERMS:
            raise SpecError(f"bilinear algorithm {self}: a sum of more than {MOST_TERMS} terms")
        sums = np.einsum("pi,pj,lp->ijl", self.a, self.b, self.c)
        rows, depth, columns = (np.eye(size, dtype=np.int64) for size in self.size)
        # A[i, q] B[q', j] is a term of C[i', j'] where i = i', q = q' and j = j'.
        product = np.einsum("ax,by,cz->abycxz", rows, depth, columns).reshape(sums.shape)
        if not np.array_equal(sums, product):
            raise SpecError(f"bilinear algorithm {self}: its sums are not those of a product")

    def __str__(self) -> str:
        return f"<{self.m},{self.k},{self.n};{self.products}>"

    @property
    def size(self) -> Size:
        return self.m, self.k, self.n

    @property
    def products(self) -> int:
        return len(self.a)

    @property
    def saving(self) -> float:
        """How many products of blocks the definition needs for each of its own."""
        return self.m * self.k * self.n / self.products

    @property
    def terms(self) -> Size:
        """Terms in all of its sums: of blocks of A, of blocks of B, of products."""
        a, b, c = (int(np.count_nonzero(matrix)) for matrix in (self.a, self.b, self.c))
        return a, b, c

    @property
    def most_terms(self) -> Size:
        """Terms of the longest of these sums."""
        a, b, c = (int(np.count_nonzero(it, axis=1).max()) for it in (self.a, self.b, self.c))
        return a, b, c

    def of_blocks(self, inner: BilinearProduct) -> BilinearProduct:
        """Return the algorithm that forms each of its products by another one."""
        m, k, n = (own * other for own, other in zip(self.size, inner.size, strict=True))
        shapes = ((self.m, self.k), (self.k, self.n), (self.m, self.n))
        others = ((inner.m, inner.k), (inner.k, inner.n), (inner.m, inner.n))
        pairs = ((self.a, inner.a), (self.b, inner.b), (self.c.T, inner.c.T))
        a, b, c = (
            np.einsum("pij,qkl->pqikjl", one.reshape(-1, *shape), other.reshape(-1, *other_shape))
            .reshape(self.products * inner.products, -1)
            for (one, other), shape, other_shape in zip(pairs, shapes, others, strict=True)
        )  # fmt: skip
        return BilinearProduct(m, k, n, a, b, np.ascontiguousarray(c.T))

    @property
    def rotated(self) -> BilinearProduct:
        """The algorithm of ``k x n by n x m``: trace(A B C') is trace(B C' A)."""
        m, k, n = self.size
        return BilinearProduct(
            k, n, m, self.b, _turn(self.c.T, m, n), np.ascontiguousarray(_turn(self.a, m, k).T)
        )  # fmt: skip


def _turn(sums: Integers, rows: int, columns: int) -> Integers:
    """Return sums of the elements of a matrix as sums of those of its transposed one."""
    return sums.reshape(-1, rows, columns).swapaxes(1, 2).reshape(len(sums), -1)


def read_algorithm(text: str) -> BilinearProduct:
    """Return the algorithm of a text: m, k and n, then a line for each product.

    A line has the signs, ``-``, ``0`` or ``+``, of all elements of A and of B in the sums that are
    multiplied, and those with which all elements of C take the product. Raises SpecError.
    """
    try:
        first, *lines = text.strip().splitlines()
        m, k, n = map(int, first.split())
        columns = zip(*map(str.split, lines), strict=True)
        a, b, c = (
            np.array([[SIGNS.index(sign) - 1 for sign in signs] for signs in column], np.int64)
            for column in columns
        )
    except ValueError as error:
        raise SpecError(f"bilinear algorithm {text.strip()[:40]!r}: {error}") from None
    return BilinearProduct(m, k, n, a, b, np.ascontiguousarray(c.T))


_TEXTS = re.sub("#.*\n", "", Path(__file__).with_name("algorithms.txt").read_text("ascii"))
STRASSEN, *OTHERS = map(read_algorithm, _TEXTS.split("\n\n"))
SEARCHED: Final = (STRASSEN, STRASSEN.of_blocks(STRASSEN))  # others gain less than 3 %
_EVERY = (*SEARCHED, *OTHERS, *(its.rotated for its in OTHERS),
          *(its.rotated.rotated for its in OTHERS))  # fmt: skip
PRODUCTS: Final[Mapping[tuple[int, ...], BilinearProduct]] = MappingProxyType(
    {its.size: its for its in _EVERY}
)
