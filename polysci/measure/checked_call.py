"""Calls of a primitive on the operands of a check: what they return, what else they touch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from polysci.errors import CheckError
from polysci.loop_ir.interface import ALIGNMENT, NO_ISA, OK
from polysci.measure.operands import CheckedOperand, CheckMemory, Side
from polysci.numerics.arrays import Array
from polysci.numerics.dtypes import precision_named
from polysci.ops.problem import Problem
from polysci.runtime.backend import LoadedFunctions

OPTIONAL = ("bias", "residual", "clamp")


@dataclass(frozen=True, slots=True)
class CheckedCall:
    """The functions of a primitive, and the memory that one side of its check uses.

    ``x_zero`` and ``scales`` are the arguments of whole numbers, if any.
    """

    symbol: str
    functions: LoadedFunctions
    memory: CheckMemory
    side: Side
    problem: Problem
    x_zero: tuple[int, ...] = ()
    scales: tuple[Any, ...] = ()

    def pack(self, w: CheckedOperand) -> CheckedOperand:
        """Return packed weights, to be read. Raises CheckError for a write outside of them."""
        memory = self.memory
        packed = memory.reserve(self.functions.packed_size, self.side, ALIGNMENT)
        self.functions.pack(memory.argument(w), memory.argument(packed), *self.x_zero)
        expect_intact(f"{self.symbol}_pack_weights", packed=packed, w=w)
        return memory.freeze(packed)

    def run(
        self, what: str, operands: Mapping[str, CheckedOperand], packed: CheckedOperand
    ) -> Array:
        """Return the result for x and some of OPTIONAL.

        Raises CheckError for a status that is not OK, or a write outside of the result.
        """
        memory, y_type = self.memory, precision_named(self.problem.dtype).y
        shape = self.problem.y_shape
        y = memory.reserve(y_type.bytes * prod(shape), self.side, y_type.bytes)
        workspace = memory.reserve(self.functions.workspace_size, self.side, ALIGNMENT)
        x, *optional = (memory.argument(operands.get(name)) for name in ("x", *OPTIONAL))
        status = self.functions.run(
            x, memory.argument(packed), memory.argument(y), *optional, *self.scales,
            memory.argument(workspace),
        )  # fmt: skip
        expect_ok(what, status)
        expect_intact(what, **operands, packed=packed, y=y, workspace=workspace)
        result: Array = y.raw.view(y_type.numpy).reshape(shape)
        return result

    def cause(
        self, what: str, operands: Mapping[str, CheckedOperand], w: CheckedOperand, wrong: Array
    ) -> str:
        """Return what explains a wrong result; empty where nothing does.

        A result that depends on what lies beside an operand shows which of them is read outside.
        """
        packed = self.pack(w)
        buffers = {**operands, "w": w, "packed weights": packed}
        bare = {name: self.memory.without_margins(buffer) for name, buffer in buffers.items()}
        if None in bare.values():
            return ""
        if not _equal(self.run(what, operands, packed), wrong):
            return "; another call returns another result"
        names = list[str]()
        for name, buffer in bare.items():
            assert buffer
            changed = {"packed weights": buffer, "w": self.pack(buffer) if name == "w" else packed}
            others = {**operands, name: buffer} if name in operands else operands
            if not _equal(self.run(what, others, changed.get(name, packed)), wrong):
                names.append(name)
        return f"; it reads outside of {' and '.join(names)}" if names else ""


def _equal(one: Array, other: Array) -> bool:
    return one.tobytes() == other.tobytes()


def expect_ok(what: str, status: int) -> None:
    """Raise CheckError for a status that is not OK."""
    if status == NO_ISA:
        raise CheckError(f"{what}: this CPU lacks the instruction set it was generated for")
    if status != OK:
        raise CheckError(f"{what}: returned {status}, expected {OK}")


def expect_intact(what: str, **operands: CheckedOperand) -> None:
    """Raise CheckError for an operand that was written where it must not be."""
    for name, operand in operands.items():
        if fault := operand.fault(name):
            raise CheckError(f"{what}: {fault}")
