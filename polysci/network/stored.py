"""What another process needs to run a network: its library, its weights, and a signature."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from polysci.network.runner import Array, Runner, TensorPort
from polysci.program.value_ranges import ValueRange
from polysci.target.target import HOST

_SIGNATURE, _WEIGHTS = "signature.json", "weights"


def save(
    folder: Path,
    library: Path,
    signature: Mapping[str, Any],
    weights: Iterable[bytes | memoryview],
) -> None:
    """Write a network into a directory of its own; the library stays in the cache.

    ``signature`` is that of ``build.signature_of``, ``weights`` are the pieces of their file.
    """
    with (folder / _WEIGHTS).open("wb") as file:
        file.writelines(weights)
    text = json.dumps({"library": str(library), **signature})
    (folder / _SIGNATURE).write_text(text, encoding="utf-8")


def restore(folder: Path) -> Runner:
    """The network that ``save`` wrote."""
    told = json.loads((folder / _SIGNATURE).read_text(encoding="utf-8"))
    return restore_runner(Path(told["library"]), told, folder / _WEIGHTS)


def restore_runner(
    library: Path, signature: Mapping[str, Any], weights: Sequence[Array] | Path
) -> Runner:
    """A network of a library, what ``signature_of`` tells of it, and its weights."""
    inputs, outputs = (
        [
            TensorPort(
                port["name"],
                tuple(port["shape"]),
                port["dtype"],
                tuple(port["counted"]) if port["counted"] else None,
                _range_of(port["range"]),
            )
            for port in signature[which]
        ]
        for which in ("inputs", "outputs")
    )
    return Runner(
        library, signature["name"], signature["declarations"], weights, inputs, outputs,
        signature.get("backend", HOST),
    )  # fmt: skip


def _range_of(told: Mapping[str, Any] | None) -> ValueRange | None:
    return None if told is None else ValueRange(**{**told, "without": tuple(told["without"])})
