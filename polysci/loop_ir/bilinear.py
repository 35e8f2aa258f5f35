"""The routines around products of blocks: sums of blocks of both factors, and of products."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import numpy as np

from polysci.loop_ir.memory import Pointer
from polysci.loop_ir.microkernels import Fields, User, activate, clamp_values


def _terms(user: User, table: Pointer, number: int) -> Iterator[tuple[int, np.float32]]:
    """Yield the terms of a sum: which block or product, and its factor."""
    first, last = (int(user.read(table, number + end)) for end in (0, 1))
    for at in range(first, last, 2):
        yield int(user.read(table, at)), np.float32(user.read(table, at + 1))


def _sums(user: User, g: Fields, x: Pointer, sums: Pointer, first: int, count: int) -> None:
    """Sum rows of blocks of A; what lies outside of A is 0."""
    lanes = user.unit.lanes
    steps = np.arange(-(-g["deep"] // lanes) * lanes)
    band = first + np.arange(count)
    for p in range(g["products"]):
        total = np.zeros((count, len(steps)), np.float32)
        for at, factor in _terms(user, g["u"], p):
            rows = at // g["across_a"] * g["high"] + band
            columns = at % g["across_a"] * g["deep"] + steps
            real = np.ix_(
                np.flatnonzero((band < g["high"]) & (rows < g["rows"])),
                np.flatnonzero((steps < g["deep"]) & (columns < g["depth"])),
            )
            total[real] += factor * user.read(x, rows[real[0]] * g["x_row"] + columns[real[1]])
        places = p * g["sum"] + np.arange(count)[:, None] * g["sum_row"] + steps
        user.write(sums, places, total)


def _factor(
    user: User, g: Fields, w: Pointer, panel: Pointer, p: int, column: int, count: int
) -> None:
    """Sum columns of blocks of B, in rows as B is stored; what lies outside of B is 0."""
    depth, columns, lanes = np.arange(g["deep"]), column + np.arange(count), user.unit.lanes
    total = np.zeros((g["deep"], count), np.float32)
    by_k, by_n = (1, g["w_row"]) if g["turned"] else (g["w_row"], 1)
    for at, factor in _terms(user, g["v"], p):
        k = at // g["across"] * g["deep"] + depth
        n = at % g["across"] * g["wide"] + columns
        inside = (columns < g["wide"]) & (n < g["columns"])
        real = np.ix_(np.flatnonzero(k < g["depth"]), np.flatnonzero(inside))
        total[real] += factor * user.read(w, k[real[0]] * by_k + n[real[1]] * by_n)
    rows = total.T if g["turned"] else total
    whole = np.zeros((len(rows), -(-rows.shape[1] // lanes) * lanes), np.float32)
    whole[:, : rows.shape[1]] = rows
    places = np.arange(len(rows))[:, None] * g["panel_row"] + np.arange(whole.shape[1])
    user.write(panel, places, whole)


def _output(
    user: User, g: Fields, args: Fields, products: Pointer, first: int, count: int, column: int,
    width: int, activation: Any,
) -> None:  # fmt: skip
    """Sum products to rows of blocks of C, and finish those that C has."""
    alpha, beta = np.float32(g["alpha"]), np.float32(g["beta"])
    band = np.arange(min(count, g["high"] - first))
    for number in range(g["blocks"]):
        rows = number // g["across"] * g["high"] + first + band
        begin = number % g["across"] * g["wide"] + column
        columns = np.arange(max(0, min(width, g["wide"] - column, g["columns"] - begin)))
        inside = band[rows < g["rows"], None]
        total = np.zeros((len(inside), len(columns)), np.float32)
        for p, factor in _terms(user, g["w"], number):
            places = p * g["product"] + inside * g["product_row"] + columns
            total += factor * user.read(products, places)
        y = rows[rows < g["rows"], None] * g["y_row"] + begin + columns
        total = alpha * total
        if args["bias"]:
            total = total + user.read(args["bias"], begin + columns)
        if args["residual"]:
            total = total + beta * user.read(args["residual"], y)
        user.write(args["y"], y, clamp_values(user, activate(total, activation), args["clamp"]))


BILINEAR: Final[Mapping[str, Callable[..., Any]]] = {
    "ps_bilinear_sums": _sums,
    "ps_bilinear_factor": _factor,
    "ps_bilinear_output": _output,
}
