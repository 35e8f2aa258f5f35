"""C of private copies: which one a turn sums into, and the sum of all at the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from polysci.printers import ctree as c
from polysci.space.directives.private import PrivateCopies
from polysci.space.resolve import Plan

_READ: Mapping[str, str] = {"bf16": "ps_bf16_value({})", "f16": "ps_f16_value({})"}
_WRITTEN: Mapping[str, str] = {"bf16": "ps_bf16_of({})", "f16": "ps_f16_of({})"}


def copy_of(private: PrivateCopies, origin: Mapping[str, str], at: int) -> c.Generable:
    """The statement that lets a turn's calls write to its copy; ``at`` bytes lie before them."""
    terms, size = list[str](), private.size * private.count
    for dim, (step, turns) in private.turns.items():
        size //= turns
        terms.append(f"{size} * ({origin[dim]} / {step})")
    return c.Statement(f"local.y = {' + '.join([_copies(at), *terms])}")


def _copies(at: int) -> str:
    return f"(ps_y *)((char *)workspace + {at})"


def starts_of(plan: Plan, private: PrivateCopies, origin: Mapping[str, str]) -> str:
    """C text of whether a call is the first one of its copy that adds to its sums."""
    starts = []
    for dim in plan.split:
        step, _ = private.turns.get(dim, (0, 0))
        if step != plan.tile[dim]:
            starts.append(f"({origin[dim]}) % {step} == 0" if step else f"{origin[dim]} == 0")
    return " && ".join(starts) or "1"


def call_sums(symbol: str, plan: Plan, at: int, threads: int) -> list[c.Generable]:
    """The statement with which a thread sums its share of the copies."""
    assert plan.private
    rows, *_ = _rows(plan.private, plan.channel_axis)
    share = f"{rows} * thread / {threads}, {rows} * (thread + 1) / {threads}"
    words = f"{_copies(at)}, y, bias, residual, clamp, {share if threads > 1 else f'0, {rows}'}"
    return [c.Statement(f"{symbol}_sum({words})")]


def sums_function(symbol: str, plan: Plan, private: PrivateCopies) -> c.Generable:
    """``static void SYMBOL_sum(copies, y, bias, residual, clamp, first, last)``: rows of y.

    Copies are added in pairs, pairs of pairs and so on, whoever does it; then follow bias,
    residual, activation and clamp in the order of ``ps_end``.
    """
    y, channel = private.y, plan.channel_axis
    _, around, run = _rows(private, channel)
    activation = plan.contraction.activation
    alpha, beta = (
        "" if factor == 1 else f"{float(np.float32(factor)).hex()}f * "
        for factor in (plan.contraction.alpha, plan.contraction.beta)
    )
    where, rest = list[c.Generable](), "row"
    bias = "bias[i]" if channel not in around else f"bias[at{channel}_]"
    for axis in reversed(around):
        where.append(c.Statement(f"const int64_t at{axis}_ = {rest} % {private.shape[axis]}"))
        rest = f"{rest} / {private.shape[axis]}"
    place = " + ".join([f"{private.stored[axis]} * at{axis}_" for axis in around] or ["0"])
    places = range(0, private.size * private.count, private.size)
    copies = [f"from[{at} + i]" if at else "from[i]" for at in places]
    read, written = (table.get(y.name, "{}") for table in (_READ, _WRITTEN))
    body = [
        c.Statement(f"float sum = {alpha}{_tree(copies)}"),
        c.when("bias", c.Statement(f"sum += {bias}")),
        c.when("residual", c.Statement(f"sum += {beta}{read.format('beside[i]')}")),
        *([c.Statement(f"sum = ps_f_{activation}(sum)")] if activation else []),
        c.when("clamp", c.Block([
            c.Statement("sum = clamp[0] > sum ? clamp[0] : sum"),
            c.Statement("sum = clamp[1] < sum ? clamp[1] : sum"),
        ])),
        c.Statement(f"to[i] = {written.format('sum')}"),
    ]  # fmt: skip
    lines = [
        *where,
        c.Statement(f"const float *restrict from = copies + {run} * row"),
        c.Statement(f"{y.c_type} *to = y + {place}"),
        c.Statement(f"const {y.c_type} *beside = residual ? residual + {place} : 0"),
        c.loop("int64_t i = 0", f"i < {run}", "++i", c.Block(body)),
    ]
    words = [
        "const float *restrict copies", f"{y.c_type} *y", "const float *bias",
        f"const {y.c_type} *residual", "const float *clamp", "int64_t first", "int64_t last",
    ]  # fmt: skip
    head = f"static PS_KERNEL void {symbol}_sum({', '.join(words)})"
    return c.function(head, [c.loop("int64_t row = first", "row < last", "++row", c.Block(lines))])


def _tree(terms: Sequence[str]) -> str:
    """A sum in pairs: its rounding grows with the logarithm of their number."""
    if len(terms) == 1:
        return terms[0]
    half = (len(terms) + 1) // 2
    return f"({_tree(terms[:half])} + {_tree(terms[half:])})"


def _rows(private: PrivateCopies, channel: int) -> tuple[int, list[int], int]:
    """How many rows the sum has, their axes from the slowest on, and the elements of a row.

    A row lies in y without gaps, and one bias or one after the other belongs to it.
    """
    axes = sorted(range(len(private.shape)), key=lambda axis: (-private.strides[axis], axis))
    run = 1
    while axes:
        axis = axes[-1]
        size = private.shape[axis]
        if run > 1 and axis == channel:  # of one position too: all of the run have its bias
            break
        if size > 1 and private.stored[axis] != run:
            break
        run *= size
        axes.pop()
        if axis == channel:
            break
    return prod(private.shape[axis] for axis in axes), axes, run
