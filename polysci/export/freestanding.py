"""A network as freestanding C: no heap, no files, weights as constants or at a given address."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np

from polysci.errors import SpecError
from polysci.export.build_texts import build_values
from polysci.export.files import FREESTANDING, Content, fill_template, mark_files
from polysci.export.network_project import (
    DATA,
    memory_values,
    only_size,
    program_values,
    selftest_bytes,
    table_rows,
)
from polysci.export.selftest_data import SelftestData, make_selftest_data
from polysci.lower.weights_file import LINE, digest_of, packed_pieces, pieces_of
from polysci.network.code import arguments_of
from polysci.network.compiled import Network
from polysci.printers.network import RunEntry, print_stages, size_constants
from polysci.text.tables import bytes_text

_WORDS = 4  # of 64 bits a line


def write_freestanding(network: Network, out: Path, *, force: bool = False) -> list[Path]:
    """Write freestanding C and its self-test into the directory ``out``; returns the paths written.

    Raises SpecError for a network of several threads that are not of the caller's pool, and as
    ``write_project`` does.
    """
    check_freestanding(out, network.name, network.threads, network.code.pool, force=force)
    contents = _files(network, make_selftest_data(network))
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


def _files(network: Network, selftest: SelftestData) -> dict[str, Content]:
    """Return the content of every file."""
    name, code = network.name, network.code
    data = network.runner.packed_weights()
    layers = {path: text for path, text in code.files.items() if path.startswith(f"{name}_")}
    sources = {f"{name}.c": "", **layers, f"{name}_weights.c": ""}
    size, entry = LINE + data.nbytes, RunEntry(name, arguments_of(code.placed.program))
    memory = {"ARENA": max(1, code.arena.size), "WEIGHTS": size}
    values = {
        **code.values,
        **program_values(only_size(network)),
        **build_values(sources, f"{name}.h", network.threads, code.pool, exact=True),
        **memory_values(code),
        **selftest.values(),
        "FREE": "yes",
        "TITLE": f"A network of {code.values['SIZE']} in freestanding C11",
        "CPUS": f"these features: {code.values['FEATURES']}",
        "CODE": print_stages(code.values),
        "DIGEST": digest_of(pieces_of(data)),
        "SIZES": size_constants([entry], name, memory),
        "TABLE": "\n".join(table_rows(network)),
        "WEIGHTS_TEXT": bytes_text(size),
    }
    return {
        **mark_files(layers, name),
        **FREESTANDING.fill(name, values),
        f"{name}_weights.c": partial(_weights_text, name, data),
        f"{name}.weights": partial(packed_pieces, data),
        DATA: lambda: selftest_bytes(name, [selftest]),
    }


def _weights_text(name: str, data: memoryview) -> Iterator[bytes]:
    """Yield the file of weights as a constant array in C."""
    yield fill_template("free_weights.c", {"NAME": name, "UPPER": name.upper()}).encode()
    for piece in packed_pieces(data):
        words = np.frombuffer(piece, "<u8").tolist()
        for first in range(0, len(words), _WORDS):
            yield f"    {', '.join(map(hex, words[first : first + _WORDS]))},\n".encode()
    yield b"};\n"
