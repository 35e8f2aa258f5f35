"""What another process needs to run a network: its library, its weights, and a signature."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

from polysci.network.runtime.runner import Runner, TensorPort

_SIGNATURE, _WEIGHTS = "signature.json", "weights"


def save(
    folder: Path,
    library: Path,
    name: str,
    declarations: str,
    weights: Iterable[bytes | memoryview],
    ports: tuple[Sequence[TensorPort], Sequence[TensorPort]],
) -> None:
    """Write it into a directory of its own; the library stays in the cache.

    ``weights`` are the pieces of their file, ``ports`` inputs and outputs.
    """
    with (folder / _WEIGHTS).open("wb") as file:
        file.writelines(weights)
    signature = {
        "library": str(library),
        "name": name,
        "declarations": declarations,
        "inputs": [asdict(port) for port in ports[0]],
        "outputs": [asdict(port) for port in ports[1]],
    }
    (folder / _SIGNATURE).write_text(json.dumps(signature), encoding="utf-8")


def restore(folder: Path) -> Runner:
    """The network that ``save`` wrote."""
    told = json.loads((folder / _SIGNATURE).read_text(encoding="utf-8"))
    inputs, outputs = (
        [
            TensorPort(
                port["name"],
                tuple(port["shape"]),
                port["dtype"],
                tuple(port["counted"]) if port["counted"] else None,
            )
            for port in told[which]
        ]
        for which in ("inputs", "outputs")
    )
    library = Path(told["library"])
    weights = folder / _WEIGHTS
    return Runner(library, told["name"], told["declarations"], weights, inputs, outputs)
