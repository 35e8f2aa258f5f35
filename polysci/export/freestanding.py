"""A network as freestanding C, with a self-test for this machine and for microcontrollers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path
from typing import Final

import numpy as np

from polysci.errors import SpecError
from polysci.export.build_texts import build_values
from polysci.export.files import FREESTANDING, Content, fill_template, mark_files
from polysci.export.network_project import (
    DATA,
    check_language,
    memory_values,
    program_values,
    selftest_bytes,
    table_rows,
)
from polysci.export.selftest_data import SelftestData, make_selftest_data
from polysci.lower.weights_file import digest_of, packed_pieces, pieces_of
from polysci.network.build import runner_of
from polysci.network.code import arguments_of
from polysci.network.compiled import Network, PlannedNetwork
from polysci.network.runner import Runner, TensorPort
from polysci.network.sizes import only_size
from polysci.numerics.arrays import LINE
from polysci.numerics.dtypes import array_type
from polysci.printers.network import RunEntry, print_stages, size_constants
from polysci.text.tables import bytes_text

_WORDS: Final = 4  # of 64 bits, in a line of weights as C
STACK: Final = 32 << 10  # bytes that a run takes at most, with a compiler that optimizes


@dataclass(frozen=True, slots=True)
class BoardMemory:
    """The bytes of flash and RAM that a network takes, beside its code and its stack.

    ``weights`` are those of the constant array, head and all; ``state`` is the part of the
    ``arena`` that lasts from run to run; ``inputs`` and ``outputs`` are the caller's arrays.
    """

    weights: int
    arena: int
    state: int
    inputs: int
    outputs: int

    @staticmethod
    def of(network: PlannedNetwork) -> BoardMemory:
        """Return what a network takes."""
        arena, weights = network.code.arena, network.code.weights_file
        size = LINE + weights.constants_size + weights.packed_size
        inputs, outputs = map(_bytes, (network.inputs, network.outputs))
        return BoardMemory(size, max(1, arena.size), arena.state, inputs, outputs)

    def lines(self) -> list[str]:
        """Return the lines of the command: what lies in flash, and what in RAM."""
        state = f", {self.state} of it state" * bool(self.state)
        return [
            f"flash: {self.weights} bytes of weights, and the code",
            f"RAM: {self.arena} bytes of arena{state}, {self.inputs} of inputs, {self.outputs} of "
            f"outputs, less than {STACK} of stack",
        ]

    def values(self) -> dict[str, str]:
        """Return the values of the README."""
        sizes = {
            "WEIGHTS": self.weights, "ARENA": self.arena, "STATE": self.state,
            "INPUT": self.inputs, "OUTPUT": self.outputs, "STACK": STACK,
        }  # fmt: skip
        texts = {f"{name}_TEXT": bytes_text(size) for name, size in sizes.items()}
        return texts | {f"{name}_BYTES": str(size) for name, size in sizes.items()}


def _bytes(ports: Sequence[TensorPort]) -> int:
    return sum(prod(port.shape) * array_type(port.dtype).itemsize for port in ports)


def write_freestanding(network: PlannedNetwork, out: Path, *, force: bool = False) -> list[Path]:
    """Write freestanding C and its self-test into the directory ``out``; returns the paths written.

    Weights are packed by the same code, which this machine's compiler must take. Raises SpecError
    for a network of several threads that are not of the caller's pool, and as ``write_project``
    does.
    """
    check_language(network)
    check_freestanding(out, network.name, network.threads, network.code.pool, force=force)
    runner = network.runner if isinstance(network, Network) else runner_of(network.code)
    contents = _files(network, runner, make_selftest_data(network))
    return FREESTANDING.write(out, network.name, contents, force=force)


def check_freestanding(
    out: Path, name: str, threads: int, pool: str, *, force: bool = False
) -> None:
    """Raise what ``write_freestanding`` would find wrong, before there is a network."""
    if threads > 1 and pool != "callback":
        raise SpecError(
            f"threads={threads}: freestanding code has one thread, or with callback:{threads} "
            "those of a pool of yours"
        )
    FREESTANDING.check(out, name, force=force)


def _files(
    network: PlannedNetwork, runner: Runner, selftest: SelftestData
) -> dict[str, Content]:  # fmt: skip
    """Return the content of every file; ``runner`` has the weights."""
    name, code = network.name, network.code
    data, use = runner.packed_weights(), BoardMemory.of(network)
    layers = {path: text for path, text in code.files.items() if path.startswith(f"{name}_")}
    sources = {f"{name}.c": "", **layers, f"{name}_weights.c": ""}
    entry = RunEntry(name, arguments_of(code.placed.program))
    memory = {"ARENA": use.arena, "WEIGHTS": use.weights}
    memory |= {"STATE": use.state} if use.state else {}
    values = {
        **code.values,
        **program_values(only_size(network)),
        **build_values(sources, f"{name}.h", network.threads, code.pool, exact=True),
        **memory_values(code),
        **use.values(),
        **selftest.values(),
        "FREE": "yes",
        "TITLE": f"A network of {code.values['SIZE']} in freestanding C11",
        "CPUS": f"these features: {code.values['FEATURES']}",
        "CODE": print_stages(code.values),
        "DIGEST": digest_of(pieces_of(data)),
        "SIZES": size_constants([entry], name, memory),
        "TABLE": "\n".join(table_rows(network)),
    }
    return {
        **mark_files(layers, name),
        **FREESTANDING.fill(name, values),
        f"{name}_weights.c": partial(_weights_text, name, runner),
        f"{name}.weights": lambda: packed_pieces(runner.packed_weights()),
        DATA: lambda: selftest_bytes(name, [selftest]),
    }


def _weights_text(name: str, runner: Runner) -> Iterator[bytes]:
    """Yield the file of weights as a constant array in C."""
    yield fill_template("free_weights.c", {"NAME": name, "UPPER": name.upper()}).encode()
    for piece in packed_pieces(runner.packed_weights()):
        integers = np.frombuffer(piece, "<u8").tolist()
        for first in range(0, len(integers), _WORDS):
            yield f"    {', '.join(map(hex, integers[first : first + _WORDS]))},\n".encode()
    yield b"};\n"
