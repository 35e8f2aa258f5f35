"""Row fusions in groups of work-items, as loop IR that the interpreter runs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from polysci.loop_ir.interpreter import Interpreter
from polysci.loop_ir.memory import InterpretedMemory, Pointer
from polysci.loop_ir.nodes import LoopFunction, LoopModule
from polysci.network.code import Code
from polysci.network.options import CompileOptions
from polysci.network.prepare import (
    fuse_with_schedules,
    generate_code,
    prepare_with,
    search_schedules,
)
from polysci.program.passes.row_fusion import Chain, FusionSpace, Run
from polysci.program.stages import LayerStage, RowFusion
from polysci.target.machine_file import read as read_machine
from tests.support.interpreted import Change, change_module
from tests.support.networks import read

MACHINE = Path(__file__).parents[2] / "experiments" / "machines" / "t4-40.toml"
BYTE = np.dtype(np.int8)


def whole_chain(height: int) -> Any:
    """Return a pass that makes one row fusion of all stages, in order, in blocks of a height."""

    def fuse(placed: Any, *_: Any) -> FusionSpace:
        members = placed.program.stages
        return FusionSpace(placed, (Chain(members, ((Run(0, len(members), height),),)),), (), {})

    return fuse


@dataclass(frozen=True)
class InterpretedFusion:
    """The code of a network whose row fusion the interpreter runs; its input is x."""

    code: Code
    module: LoopModule

    @classmethod
    def of(cls, model: onnx.ModelProto) -> InterpretedFusion:
        """Compile a model for a described GPU."""
        described = read_machine(MACHINE)
        options = CompileOptions("estimate", target=described.target, machine=described.machine)
        prepared, plan = prepare_with(read(model), options), options.plan()
        results = search_schedules(prepared, plan)
        schedules = {key: result.schedule for key, result in results.items()}
        seconds = {key: result.predicted for key, result in results.items()}
        fused = fuse_with_schedules(prepared, schedules, seconds, plan, {})
        code = generate_code(fused.placed, schedules, "net", plan)
        return cls(code, code.module)

    @property
    def fusion(self) -> RowFusion:
        """The only stage."""
        (stage,) = self.code.placed.program.stages
        assert isinstance(stage, RowFusion)
        return stage

    @property
    def kernel(self) -> LoopFunction:
        """The function that launches its groups."""
        return self.module.functions["net_s0"]

    def change(self, change: Change) -> InterpretedFusion:
        """Return it with other statements: ``None`` leaves one out."""
        return replace(self, module=change_module(self.module, change))

    def run(self, x: np.ndarray, seed: int = 0) -> np.ndarray:
        """Return the output. Raises MemoryFaultError."""
        program, interpreter = self.code.placed.program, Interpreter(self.module, 1, seed)
        packed = Pointer(
            InterpretedMemory.empty("packed", self.code.weights_file.packed_size), 0, BYTE
        )
        for call in self.code.calls.values():
            assert isinstance(call.layer, LayerStage) and call.packed_at is not None
            weights = np.ascontiguousarray(program.constants[call.layer.weights])
            w = Pointer(InterpretedMemory.of("w", weights), 0, BYTE)
            packing = f"{call.source.symbol}_pack_weights"
            interpreter.run(packing, {"w": w, "packed": packed.move(call.packed_at)})
        value = program.values[program.outputs[0]]
        result = InterpretedMemory.empty("y", 4 * prod(value.shape))
        memory = {
            "in": [Pointer(InterpretedMemory.of("x", x), 0, BYTE)],
            "out": [Pointer(result, 0, BYTE)], "packed": packed,
            "arena": 0, "constants": 0,
        }  # fmt: skip
        interpreter.run(self.kernel, {"m": memory})
        assert result.written.all()
        return result.data.view(np.float32).reshape(value.shape)
