"""The C of a network -> a loaded library with its weights."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from polysci.network.codegen.emit import Code
from polysci.network.runtime.runner import FUNCTIONS, Runner, TensorPort
from polysci.runtime.backend import CPU


def runner_of(code: Code, flags: Sequence[str] | None = None) -> Runner:
    """Build (or find in the cache) and load the library of a network."""
    texts = [text for path, text in code.files.items() if path.endswith(".c")]
    head = code.files[f"{code.name}.h"]
    texts = [text.replace(f'#include "{code.name}.h"\n', head) for text in texts]
    inputs, outputs = ports(code)
    symbols = [f"{code.name}_{function}" for function in FUNCTIONS]
    path = CPU.build(texts, flags=flags, symbols=symbols)
    weights = [np.ascontiguousarray(array) for _, array in code.weights_file.parts]
    return Runner(path, code.name, code.declarations, weights, inputs, outputs)


def ports(code: Code) -> tuple[tuple[TensorPort, ...], tuple[TensorPort, ...]]:
    """Inputs and outputs, by the names that the model gives them."""
    program = code.placed.program
    values = program.values
    inputs = [TensorPort(n, values[n].shape, values[n].dtype) for n in program.arguments]
    counted = {
        title: (mark.axis, program.titles.index(mark.count))
        for title, mark in program.counted.items()
    }
    outputs = [
        TensorPort(title, values[n].shape, values[n].dtype, counted.get(title))
        for n, title in zip(program.outputs, program.titles, strict=True)
    ]
    return tuple(inputs), tuple(outputs)
