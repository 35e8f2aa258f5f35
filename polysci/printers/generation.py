"""The C of a library that reads tokens: a prompt by runs of several lengths, then one at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Final

from polysci.numerics.dtypes import array_type
from polysci.printers.network import RunEntry, told_sizes
from polysci.text import templates

_TEMPLATES: Final = Path(__file__).with_name("templates")
_TOKENS: Final = ("int64", "int32")
_SCORES: Final = "float32"  # the type of results by which a token may be chosen


@dataclass(frozen=True, slots=True)
class GenerationCode:
    """Values of a network's templates: functions that read tokens; bytes that a context needs."""

    values: Mapping[str, str]
    room: int = 0


NO_GENERATION: Final = GenerationCode({"GENERATE": "", "GENERATE_HEADER": "", "ROWS_SIZE": ""})


@dataclass(frozen=True, slots=True)
class TokenEntry:
    """An entry that reads so many tokens, and the rows of results that it makes: of all, or one."""

    entry: RunEntry
    length: int
    rows: int


def token_entries(entries: Sequence[RunEntry]) -> list[TokenEntry]:
    """Return entries, the longest first, of a library that reads tokens alone; none of another one.

    They have one input, of whole numbers, and one output, whose last axis is that of the numbers of
    a token; one of them reads one token, and no two as many.
    """
    readers, widths = list[TokenEntry](), set[int]()
    for entry in entries:
        if [argument.word for argument in entry.arguments] != ["x0", "y0"]:
            return []
        tokens, results = entry.arguments
        if tokens.dtype not in _TOKENS or not results.shape or not tokens.shape:
            return []
        length, width = prod(tokens.shape), results.shape[-1]
        rows = prod(results.shape[:-1])
        if length != tokens.shape[-1] or rows not in (1, length):
            return []
        widths.add(width)
        readers.append(TokenEntry(entry, length, rows))
    lengths = {own.length for own in readers}
    if 1 not in lengths or len(lengths) < len(readers) or len(widths) > 1:
        return []
    return sorted(readers, key=lambda own: -own.length)


def generation_code(
    entries: Sequence[RunEntry], name: str, counter: int, capacity: int | None
) -> GenerationCode:
    """Return the functions of a library that reads tokens, if this one does.

    ``counter`` is the byte of the state where it counts tokens, ``capacity`` how many it holds.
    """
    readers = token_entries(entries)
    if not readers:
        return NO_GENERATION
    tokens, results = readers[0].entry.arguments
    width = results.shape[-1]
    values = {
        "NAME": name,
        "UPPER": name.upper(),
        "TOKEN": tokens.kind,
        "RESULT": results.kind,
        "RESULTS": str(width),
        "LENGTHS": ", ".join(str(own.length) for own in readers),
        "ROWS": ", ".join(str(own.rows) for own in readers),
        "COUNTER": str(counter),
        "CAPACITY": "INT64_MAX" if capacity is None else str(capacity),
        "CAPACITY_TEXT": "any number" if capacity is None else f"at most {capacity}",
        "CASES": "\n".join(
            f"        case {at}: {_call(own.entry, name, 'tokens, all')}; break;"
            for at, own in enumerate(readers)
        ),
        "DECODE": _call(readers[-1].entry, name, "&token, results"),
        "SAMPLE": "",
    }
    sampling = ""
    if results.dtype == _SCORES:
        values["SAMPLE"] = templates.fill(_TEMPLATES / "sample.c", values)
        sampling = templates.fill(_TEMPLATES / "sample.h", values)
    room = max(own.rows for own in readers) * width * array_type(results.dtype).itemsize
    texts = {
        "GENERATE": templates.fill(_TEMPLATES / "generate.c", values),
        "GENERATE_HEADER": (templates.fill(_TEMPLATES / "generate.h", values) + sampling).rstrip(),
        "ROWS_SIZE": f" + {room}",
    }
    return GenerationCode(texts, room)


def _call(entry: RunEntry, name: str, arguments: str) -> str:
    """Return the call of an entry; of one for a range of sizes, of the largest."""
    if told_sizes([entry]):
        return f"{name}_run(context, {', '.join(entry.largest)}, {arguments})"
    return f"{entry.symbol}_run(context, {arguments})"
