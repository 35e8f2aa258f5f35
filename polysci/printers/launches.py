"""The lines ahead of a device's code: how functions launch its kernels, a network's memory."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from polysci.errors import BuildError
from polysci.loop_ir.kernels import Launch, LaunchedFunction, LaunchLoop, Mark, Step

_PLAN: Final = "// launches: "
_NETWORK: Final = "// network: "


@dataclass(frozen=True, slots=True)
class NetworkMemory:
    """The memory of a network on a device, in bytes, and what fills it.

    ``constants`` are the places and sizes of arrays that stages read as they are; ``packed_by``
    names a function for each of the arrays behind them, which packs it. ``literals`` are floats and
    integers, of 32 bits each, that calls of layers take from memory. ``apart``: no two tensors of
    the arena share memory.
    """

    inputs: int
    outputs: int
    arena: int
    constants_size: int
    packed_size: int
    constants: tuple[tuple[int, int], ...]
    packed_by: tuple[str, ...]
    literals: tuple[float | int, ...] = ()
    apart: bool = False

    @property
    def buffers(self) -> tuple[str, ...]:
        """The parameters of its run: memory of its own, inputs, outputs."""
        inputs = (f"m_in{at}" for at in range(self.inputs))
        outputs = (f"m_out{at}" for at in range(self.outputs))
        return ("m_arena", "m_constants", "m_packed", "m_literals", *inputs, *outputs)


def print_memory(memory: NetworkMemory) -> str:
    """Return the line that says what memory a network needs."""
    return f"{_NETWORK}{json.dumps(asdict(memory))}"


def holds_network(text: str) -> bool:
    """Return whether a file holds a network, not layers."""
    return f"\n{_NETWORK}" in text


def read_network(text: str) -> NetworkMemory:
    """Return the memory of a network that a file holds. Raises BuildError for another text."""
    if not holds_network(text):
        raise BuildError("code of a device: the text has no memory of a network in its second line")
    members = json.loads(text.split("\n", 2)[1].removeprefix(_NETWORK))
    lists = {name: tuple(members[name]) for name in ("packed_by", "literals")}
    constants = tuple((at, size) for at, size in members["constants"])
    return NetworkMemory(**{**members, **lists, "constants": constants})


def print_launches(launched: Sequence[LaunchedFunction]) -> str:
    """Return the line that says what calls of functions launch."""
    members = [*map(_members, launched)]
    return f"{_PLAN}{json.dumps(members, separators=(',', ':'))}"


def read_launches(text: str) -> dict[str, LaunchedFunction]:
    """Return the functions that a file launches. Raises BuildError for another text."""
    first, _, _ = text.partition("\n")
    if not first.startswith(_PLAN):
        raise BuildError("code of a device: the text has no launches in its first line")
    functions = [_function(members) for members in json.loads(first.removeprefix(_PLAN))]
    return {function.name: function for function in functions}


def _members(function: LaunchedFunction) -> list[Any]:
    steps = [_step_members(step) for step in function.steps]
    return [function.name, function.parameters, steps, function.result]


def _step_members(step: Step) -> list[Any] | int:
    if isinstance(step, Mark):
        return step.place
    if isinstance(step, Launch):
        return [step.kernel, step.items, step.arguments, *[step.group] * (step.group > 1)]
    values = step.values
    steps = [_step_members(part) for part in step.steps]
    return [step.variable, [values.start, values.stop, values.step], steps]


def _function(members: list[Any]) -> LaunchedFunction:
    name, parameters, steps, result = members
    return LaunchedFunction(name, tuple(parameters), tuple(map(_step, steps)), result)


def _step(members: list[Any] | int) -> Step:
    if isinstance(members, int):
        return Mark(members)
    first, amount, rest, *group = members
    if isinstance(amount, int):
        return Launch(first, amount, tuple(rest), *group)
    return LaunchLoop(first, range(*amount), tuple(map(_step, rest)))


def kernels_in(text: str) -> str:
    """Return a device's code without the lines ahead of it."""
    lines = text.splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith((_PLAN, _NETWORK)))
