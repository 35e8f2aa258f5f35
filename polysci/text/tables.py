"""Aligned plain text: columns, bytes and times as people read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import wrap as wrap_lines
from typing import Final

WIDEST: Final = 60  # characters of a name in a table
_SHORTEST = 16  # characters of a cell that was cut


def columns(rows: Sequence[Sequence[str]], left: Sequence[int] = (0,), indent: str = "  ") -> str:
    """Rows of cells as lines; columns in ``left`` start together, the others end together."""
    count = max(map(len, rows))
    widths = [max(len(row[i]) for row in rows if i < len(row)) for i in range(count)]
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width) if i in left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=False))
        ]
        lines.append((indent + "  ".join(cells)).rstrip())
    return "\n".join(lines)


def fit(
    rows: Sequence[Sequence[str]],
    width: int | None,
    *,
    drop: Sequence[str] = (),
    wrap: Sequence[str] = (),
    clip: Sequence[str] = (),
    left: Sequence[str] = (),
    indent: str = "",
) -> str:
    """``columns`` of rows below their headings, in ``width`` characters; None: as wide as they are.

    As far as it takes, columns are left out in the order of ``drop``; then cells of the columns
    ``wrap`` go on in lines below, the widest column first, but no word is broken; then cells are
    shortened in the columns ``clip``, in their order. Columns are called by their headings.
    """
    head = list(rows[0])
    table = [[*row, *[""] * (len(head) - len(row))] for row in rows]
    for name in drop:
        if _excess(table, indent, width) > 0 and name in table[0]:
            at = table[0].index(name)
            table = [[*row[:at], *row[at + 1 :]] for row in table]
    table = _wrap(table, [table[0].index(name) for name in wrap if name in table[0]],
                  _excess(table, indent, width))  # fmt: skip
    for name in clip:
        excess = _excess(table, indent, width)
        if excess > 0 and name in table[0]:
            at = table[0].index(name)
            longest = max(_SHORTEST, len(name), max(len(row[at]) for row in table) - excess)
            for row in table:
                row[at] = shorten(row[at], longest)
    return columns(table, [table[0].index(name) for name in left if name in table[0]], indent)


def pairs(rows: Sequence[tuple[str, str]], width: int | None, indent: str = "  ") -> str:
    """Names, each with a text beside it; what exceeds ``width`` goes on in lines below."""
    table = [list(row) for row in rows]
    return columns(_wrap(table, (0, 1), _excess(table, indent, width)), (0, 1), indent)


def paragraph(text: str, width: int | None, indent: str = "  ", first: str | None = None) -> str:
    """Lines of at most ``width`` characters, the first behind ``first``; no word is broken."""
    opening = indent if first is None else first
    if width is None:
        return opening + text
    return "\n".join(
        wrap_lines(
            text, width, initial_indent=opening, subsequent_indent=indent,
            break_long_words=False, break_on_hyphens=False,
        )
    )  # fmt: skip


def _wrap(table: list[list[str]], at: Sequence[int], excess: int) -> list[list[str]]:
    """Return the rows, ``excess`` narrower if they can be, with columns ``at`` over several lines.

    The widest of the columns gives first, as far as its longest word.
    """
    widths = {i: max(len(row[i]) for row in table) for i in at}
    longest = {i: max(len(word) for row in table for word in row[i].split() or [""]) for i in at}
    for _ in range(excess):
        able = [i for i in at if widths[i] > max(_SHORTEST, longest[i])]
        if not able:
            break
        widths[max(able, key=widths.__getitem__)] -= 1
    return [line for row in table for line in _lines(row, widths)] if excess > 0 else table


def _lines(row: Sequence[str], widths: Mapping[int, int]) -> list[list[str]]:
    """One row as several: cells of the columns in ``widths`` are broken to their widths."""
    cells = [
        paragraph(cell, widths[i], "").split("\n") if i in widths else [cell]
        for i, cell in enumerate(row)
    ]
    height = max(map(len, cells))
    return [[cell[at] if at < len(cell) else "" for cell in cells] for at in range(height)]


def _excess(table: Sequence[Sequence[str]], indent: str, width: int | None) -> int:
    """Return by how many characters the table is wider than ``width``."""
    if width is None:
        return 0
    return max(map(len, columns(table, (), indent).split("\n"))) - width


def bytes_text(size: float) -> str:
    """Three digits and a unit: ``1.50 MiB``."""
    for unit in ("B", "KiB", "MiB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.3g} {unit}"
        size /= 1024
    return f"{size:.3g} GiB"


def time_text(seconds: float) -> str:
    """Microseconds up to 10 ms, then milliseconds or seconds."""
    if abs(seconds) < 10e-3:
        return f"{seconds * 1e6:.1f} us"
    return f"{seconds * 1e3:.1f} ms" if abs(seconds) < 10 else f"{seconds:.1f} s"


def shorten(text: str, widest: int = WIDEST) -> str:
    """One printable line, cut where it is too long."""
    plain = "".join(letter if letter.isprintable() else "?" for letter in text)
    return plain if len(plain) <= widest else f"{plain[: widest - 3]}..."
