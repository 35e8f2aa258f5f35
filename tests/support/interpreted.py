"""Networks whose stages run in the interpreter of loop IR, without a compiler."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from polysci.graph.graph import Graph
from polysci.graph.passes.table import simplify
from polysci.loop_ir.interpreter import Interpreter
from polysci.loop_ir.memory import InterpretedMemory, Pointer
from polysci.loop_ir.nodes import LoopFunction, LoopModule, LoopStatement, map_statements
from polysci.lower.stages.program import StageLowering
from polysci.lower.weights_file import WeightsUse, weights_file_of
from polysci.network.prepare import prepare
from polysci.numerics.dtypes import array_type
from polysci.printers.network import MEMORY
from polysci.target.host import detect

Change = Callable[[LoopStatement], LoopStatement | None]


@dataclass(frozen=True, slots=True)
class InterpretedNetwork:
    """The loop IR of a network without layers, for some threads."""

    lowering: StageLowering
    module: LoopModule
    constants: np.ndarray

    @classmethod
    def of(cls, graph: Graph, threads: int, *, fuse: bool = True) -> InterpretedNetwork:
        """Lower a graph. Its tensors share no memory, so that a wrong place has no values."""
        target = detect("portable")
        placed = prepare(simplify(graph), fuse=fuse, target=target).placed
        assert not placed.program.layers()
        file, (offsets,) = weights_file_of([WeightsUse(placed, {})], flush=False)
        lowering = StageLowering(
            placed, "small", target.isa, threads, {}, offsets, apart=True, timed=False
        )
        stages = LoopFunction("stages", (MEMORY,), lowering.stages())
        constants = np.zeros(file.constants_size, np.uint8)
        for at, part in zip(file.constants, file.parts, strict=False):
            data = np.frombuffer(np.ascontiguousarray(part.array).tobytes(), np.uint8)
            constants[at : at + len(data)] = data
        return cls(lowering, LoopModule((*lowering.functions, stages)), constants)

    def change(self, change: Change) -> InterpretedNetwork:
        """Return the network with other statements: ``None`` leaves one out."""
        return replace(self, module=change_module(self.module, change))

    def run(self, inputs: Mapping[str, np.ndarray], seed: int = 0) -> dict[str, np.ndarray]:
        """Return the outputs. Raises MemoryFaultError."""
        program, byte = self.lowering.placed.program, np.dtype(np.int8)
        memory: dict[str, Any] = {
            "in": [],
            "out": [],
            "arena": Pointer(InterpretedMemory.empty("arena", self.lowering.arena.size), 0, byte),
            "constants": Pointer(InterpretedMemory.of("constants", self.constants), 0, byte),
        }
        for name in program.arguments:
            value = program.values[name]
            array = np.ascontiguousarray(inputs[name].astype(array_type(value.dtype)))
            memory["in"].append(Pointer(InterpretedMemory.of(name, array), 0, byte))
        results = dict[str, InterpretedMemory]()
        for name in program.outputs:
            value = program.values[name]
            results[name] = InterpretedMemory.empty(name, prod(value.shape) * value.item)
            memory["out"].append(Pointer(results[name], 0, byte))
        interpreter = Interpreter(self.module, self.lowering.threads, seed)
        interpreter.run(self.module.functions["stages"], {"m": memory})
        outputs = dict[str, np.ndarray]()
        for title, name in zip(program.titles, program.outputs, strict=True):
            value = program.values[name]
            assert results[name].written.all(), f"{title} has elements without values"
            outputs[title] = results[name].data.view(array_type(value.dtype)).reshape(value.shape)
        return outputs


def change_module(module: LoopModule, change: Change) -> LoopModule:
    """Return a module with other statements in its functions: ``None`` leaves one out."""
    parts = tuple(
        replace(part, body=map_statements(part.body, change))
        if isinstance(part, LoopFunction) else part
        for part in module.parts
    )  # fmt: skip
    return LoopModule(parts)
