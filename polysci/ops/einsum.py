"""Subscripts of an einsum as the fields of a matrix product.

``bmk,bnk->bmn b=8 m=64 n=48 k=32``: a letter is an axis; those of both factors and the result are
the batch, those of one factor and the result the rows (M) and columns (N), those of both factors
are summed over (K). Letters with one role follow each other in one order wherever they stand.
"""

from __future__ import annotations

import re
from math import prod
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from polysci.ops.words import Line

RULE: Final = "As in: mm:mk,kn->mn m=64 n=48 k=32, mm:bmk,bnk->bmn b=8 m=64 n=48 k=32"
_SUBSCRIPTS = re.compile(r":([A-Za-z]+),([A-Za-z]+)->([A-Za-z]+)(?=\s|\Z)")
_EXTENT = re.compile(r"\s+([A-Za-z])=([0-9]{1,18})(?=\s|\Z)")
# (in the first factor, in the second, in the result) -> role
_ROLES: Final = {
    (True, True, True): "batch",
    (True, False, True): "M",
    (False, True, True): "N",
    (True, True, False): "K",
}


def read_subscripts(line: Line, at: int) -> tuple[dict[str, Any], int]:
    """M, K, N, batch and transposed of subscripts with their extents, and the column behind them.

    Raises SpecError, with a caret, for what is no (batched) product of two matrices.
    """
    match = _SUBSCRIPTS.match(line.text, at)
    if match is None:
        raise line.error(at + 1, "expected subscripts of two factors and the result", RULE)
    operands, starts = match.groups(), [match.start(group) for group in (1, 2, 3)]
    a, b, o = operands
    roles = {
        letter: _ROLES.get((letter in a, letter in b, letter in o)) for letter in "".join(operands)
    }
    for letters, start in zip(operands, starts, strict=True):
        for position, letter in enumerate(letters):
            if letter in letters[:position]:
                raise line.error(start + position, f"{letter} is repeated", RULE)
            if roles[letter] is None:
                raise line.error(start + position, f"{letter} is in one operand alone", RULE)
    by_role = {role: [one for one in roles if roles[one] == role] for role in _ROLES.values()}
    transposed = ""
    for name, letters, start, axes in zip("abo", operands, starts, ("MK", "KN", "MN"), strict=True):
        straight, turned = (
            "".join("".join(by_role[role]) for role in ("batch", *order))
            for order in (axes, axes[::-1])
        )
        if letters not in (straight, turned):
            either = " or ".join(dict.fromkeys((straight, turned)))
            raise line.error(start, f"expected {either}: the batch, and axes side by side", RULE)
        transposed += name * (letters != straight)
    extents, at = _extents(line, match.end(), roles)
    sizes = {role: prod(extents[one] for one in by_role[role]) for role in "MKN"}
    batch = {"batch": prod(extents[one] for one in by_role["batch"])} if by_role["batch"] else {}
    return sizes | batch | {"transposed": transposed}, at


def _extents(line: Line, at: int, letters: Any) -> tuple[dict[str, int], int]:
    """The extent of each letter, and the column behind the last one."""
    extents: dict[str, int] = {}
    while (match := _EXTENT.match(line.text, at)) and match[1] in letters:
        if match[1] in extents:
            raise line.error(match.start(1), f"{match[1]} is repeated", RULE)
        extents[match[1]], at = int(match[2]), match.end()
    if missing := [letter for letter in letters if letter not in extents]:
        raise line.error(at, f"expected the extent of {missing[0]}: {missing[0]}=64", RULE)
    return extents, at
