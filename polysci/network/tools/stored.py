"""What another process needs to run a network: its library, its weights, and a signature."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from polysci.network.compile.compiled import Network
from polysci.network.runtime.runner import Runner, TensorPort

_SIGNATURE, _WEIGHTS = "signature.json", "weights"


def save(network: Network, folder: Path) -> None:
    """Write it into a directory of its own; the library stays in the cache."""
    with (folder / _WEIGHTS).open("wb") as file:
        file.writelines(network.code.weights_file.pieces())
    signature = {
        "library": str(network.runner.library.path),
        "name": network.name,
        "declarations": network.code.declarations,
        "inputs": [asdict(port) for port in network.inputs],
        "outputs": [asdict(port) for port in network.outputs],
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
