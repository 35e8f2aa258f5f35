"""Layers whose loop IR runs in the interpreter, without a compiler."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from polysci.loop_ir.interpreter import Interpreter
from polysci.loop_ir.memory import InterpretedMemory, MemoryFaultError, Pointer
from polysci.loop_ir.nodes import LoopModule, Team
from polysci.lower.algorithm import EmitOptions
from polysci.lower.registry import algorithm_of
from polysci.measure.integer_reference import Arrays
from polysci.numerics.dtypes import Precision, precision_named
from polysci.ops.problem import Problem
from polysci.runtime.source import Source, emit
from polysci.space.schedule import Schedule
from tests.support.interpreted import Change, change_module

SYMBOL = "layer"
BYTE = np.dtype(np.int8)


def pointer(name: str, array: np.ndarray | None) -> Any:
    """Return the pointer to an array; 0 for none."""
    return (
        0
        if array is None
        else Pointer(InterpretedMemory.of(name, np.ascontiguousarray(array)), 0, BYTE)
    )


@dataclass(frozen=True, slots=True)
class InterpretedLayer:
    """The loop IR of a problem under a schedule; ``team``: all threads run its entry."""

    problem: Problem
    schedule: Schedule
    source: Source
    module: LoopModule
    threads: int = 1
    team: bool = False

    @classmethod
    def of(
        cls, problem: Problem, schedule: Schedule, threads: int = 1, *, team: bool = False
    ) -> InterpretedLayer:
        """Lower a problem, for threads of its own or for a team that is there."""
        options = EmitOptions(SYMBOL, team=Team.OPENMP if team else Team.OWN)
        source = emit(problem, schedule, threads, options)
        return cls(problem, schedule, source, source.module, threads, team)

    def change(self, change: Change) -> InterpretedLayer:
        """Return the layer with other statements: ``None`` leaves one out."""
        return replace(self, module=change_module(self.module, change))

    @property
    def precision(self) -> Precision:
        return precision_named(self.problem.dtype)

    def arrays(self, seed: int = 0) -> Arrays:
        """Return integers for which nothing is rounded, with their results."""
        exact = algorithm_of(self.schedule).exact_inputs(self.problem)
        return Arrays.of(self.problem, seed, exact)

    def run(self, arrays: Arrays, *, fused: bool = False, seed: int = 0) -> np.ndarray:
        """Return y, with bias, residual and clamp if ``fused``. Raises MemoryFaultError."""
        team = self.threads if self.team else 1
        interpreter = Interpreter(self.module, team, seed)
        inputs: Mapping[str, np.ndarray] = arrays.inputs
        packed = Pointer(InterpretedMemory.empty("packed", self.source.packed), 0, BYTE)
        weights = {"w": pointer("w", inputs["w"]), "packed": packed, "x_zero": arrays.x_zero}
        interpreter.threads = 1
        interpreter.run(f"{SYMBOL}_pack_weights", weights)
        interpreter.threads = team
        names = ("bias", "residual", "clamp")
        operands = {name: pointer(name, inputs[name] if fused else None) for name in names}
        y = InterpretedMemory.empty("y", prod(self.problem.y_shape) * self.precision.y.bytes)
        workspace = InterpretedMemory.empty("workspace", self.source.workspace)
        result = interpreter.run(SYMBOL, {
            **operands, "x": pointer("x", inputs["x"]), "packed": packed, "to": self.scales(arrays),
            "y": Pointer(y, 0, BYTE), "workspace": Pointer(workspace, 0, BYTE),
        })  # fmt: skip
        assert result == 0
        if not y.written.all():
            raise MemoryFaultError("y has elements without values")
        return y.data.view(self.precision.y.numpy).reshape(self.problem.y_shape)

    def scales(self, arrays: Arrays) -> Any:
        """Return the record of scales, if results are scaled."""
        scales = arrays.scales
        if scales is None:
            return 0
        channels = self.problem.y_shape[self.problem.bias_axis]
        return {
            "scale": replace(pointer("scale", scales.by_channel(channels)), dtype=np.dtype("f4")),
            "residual_scale": scales.residual_scale, "residual_zero": scales.residual_zero,
            "y_zero": scales.y_zero,
        }  # fmt: skip


def check(layer: InterpretedLayer, seed: int = 0) -> None:
    """Assert that both variants are right, each in an order of turns of its own."""
    for fused in (False, True):
        arrays, variant = layer.arrays(seed), "fused" if fused else "plain"
        result = layer.run(arrays, fused=fused, seed=2 * seed + fused)
        if layer.problem.activation:
            expected = arrays.fused if fused else arrays.plain
            np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)
        else:
            fault = arrays.fault(variant, result)
            assert fault is None, f"{variant}: {fault}"
