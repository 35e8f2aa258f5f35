"""Records as JSON text; a file is validated completely before any record is used."""

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, NoReturn

from polysci.border.files import read_named, replace_file
from polysci.errors import PolysciError, WisdomError, cut_line
from polysci.tune.wisdom.record import COLUMNS, QUALITY, Record

FORMAT: Final = "polysci-wisdom"
SCHEMA: Final = 2
_FIRST_SCHEMA: Final = 1  # its records lack the members of QUALITY
_SIZE_LIMIT: Final = 64 << 20  # bytes; a record takes about 500


def dump(records: Iterable[Record]) -> str:
    """The JSON text of records; the same records in the same order give the same bytes."""
    content = {"format": FORMAT, "schema": SCHEMA, "records": [asdict(r) for r in records]}
    return json.dumps(content, indent=1, sort_keys=True, allow_nan=False) + "\n"


def write(path: Path, text: str) -> None:
    """Replace the file atomically. Raises ``WisdomError``."""
    try:
        with replace_file(path) as file:
            file.write(text.encode("ascii"))
    except OSError as error:
        raise WisdomError(
            f"{path}: cannot be written: {error.strerror}; give another output file"
        ) from error


def read(path: Path, validate: Callable[[Record], object]) -> tuple[Record, ...]:
    """The records of an exported file, each accepted by ``validate``. Raises ``WisdomError``."""
    try:
        data = read_named(path, _SIZE_LIMIT)
    except OSError as error:
        raise WisdomError(f"{cut_line(path)}: cannot be read: {error.strerror}") from error
    try:
        content = json.loads(
            data.decode("utf-8"), object_pairs_hook=_object, parse_constant=_constant
        )
    except (ValueError, RecursionError) as error:
        raise _refusal(path, f"not valid JSON: {error}") from None
    return tuple(
        _record(path, index, item, validate) for index, item in enumerate(_items(path, content))
    )


def _items(path: Path, content: Any) -> list[Any]:
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise _refusal(path, f'expected an object with "format": "{FORMAT}"')
    schema, items = content.get("schema"), content.get("records")
    if schema not in (_FIRST_SCHEMA, SCHEMA) or isinstance(schema, bool):
        raise _refusal(path, f"expected schema {_FIRST_SCHEMA} or {SCHEMA}, got {schema!r:.80}")
    if not isinstance(items, list) or content.keys() != {"format", "schema", "records"}:
        raise _refusal(path, "expected exactly the members format, schema and records (a list)")
    if schema == _FIRST_SCHEMA:
        return [QUALITY | item if isinstance(item, dict) else item for item in items]
    return items


def _record(path: Path, index: int, item: Any, validate: Callable[[Record], object]) -> Record:
    if not isinstance(item, dict) or item.keys() != set(COLUMNS):
        actual = ", ".join(map(str, item)) if isinstance(item, dict) else repr(item)
        raise _refusal(path, f"record {index}: expected {', '.join(COLUMNS)}; got {actual:.200}")
    try:
        record = Record(**item)
        validate(record)
    except (ValueError, PolysciError) as error:
        raise _refusal(path, f"record {index}: {error}") from error
    return record


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("a member is given twice")
    return members


def _constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number here")


def _refusal(path: Path, reason: str) -> WisdomError:
    return WisdomError(f"{path}: {reason}; nothing was imported")
