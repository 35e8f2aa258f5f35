"""The C of a network -> a loaded library with its weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from polysci.network.codegen.emit import Code
from polysci.network.runner import FUNCTIONS, Runner, TensorPort
from polysci.network.stored import save
from polysci.runtime.backends import backend_named


def library_of(code: Code, flags: Sequence[str] | None = None) -> Path:
    """The library of a network, built or found in the cache."""
    texts = [text for path, text in code.files.items() if path.endswith(".c")]
    head = code.files[f"{code.name}.h"]
    texts = [text.replace(f'#include "{code.name}.h"\n', head) for text in texts]
    symbols = [f"{code.name}_{function}" for function in FUNCTIONS]
    return backend_named(code.backend).build(texts, flags=flags, symbols=symbols)


def runner_of(code: Code, flags: Sequence[str] | None = None) -> Runner:
    """The same, loaded with its weights."""
    return load_runner(code, library_of(code, flags))


def load_runner(code: Code, path: Path) -> Runner:
    """The library of a network, loaded with its weights."""
    inputs, outputs = ports(code)
    weights = [np.ascontiguousarray(array) for _, array in code.weights_file.parts]
    return Runner(path, code.name, code.declarations, weights, inputs, outputs, code.backend)


def store(code: Code, library: Path, folder: Path) -> None:
    """Write what another process needs to run a network to a folder of its own."""
    pieces = code.weights_file.pieces()
    save(folder, library, signature_of(code), pieces)


def signature_of(code: Code) -> dict[str, Any]:
    """Return what ``stored.restore_runner`` takes, as JSON has it."""
    inputs, outputs = ([asdict(port) for port in its] for its in ports(code))
    return {
        "name": code.name, "declarations": code.declarations, "backend": code.backend,
        "inputs": inputs, "outputs": outputs,
    }  # fmt: skip


def ports(code: Code) -> tuple[tuple[TensorPort, ...], tuple[TensorPort, ...]]:
    """Inputs and outputs, by the names that the model gives them."""
    program = code.placed.program
    values = program.values
    inputs = [
        TensorPort(n, values[n].shape, values[n].dtype, range=program.ranges.get(n))
        for n in program.arguments
    ]
    counted = {
        title: (mark.axis, program.titles.index(mark.count))
        for title, mark in program.counted.items()
    }
    outputs = [
        TensorPort(title, values[n].shape, values[n].dtype, counted.get(title))
        for n, title in zip(program.outputs, program.titles, strict=True)
    ]
    return tuple(inputs), tuple(outputs)
