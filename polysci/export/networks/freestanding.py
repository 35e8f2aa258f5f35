"""A network as freestanding C: no heap, no files, weights as constants or at a given address."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import MappingProxyType

import numpy as np

from polysci.errors import SpecError
from polysci.export import folder
from polysci.export.build_texts import file_flags
from polysci.export.folder import Content
from polysci.export.networks.c_project import (
    DATA,
    fill_template,
    mark_files,
    program_parts,
    rows,
    selftest_bytes,
)
from polysci.export.networks.pool_texts import free_pool_texts
from polysci.export.networks.selftest_data import SelftestData, make_selftest_data
from polysci.export.networks.sized_networks import only_size
from polysci.lower.weights_file import LINE, digest_of, packed_pieces, pieces_of
from polysci.network.code import arguments_of
from polysci.network.compiled import Network
from polysci.printers.network import RunEntry, print_stages, size_constants
from polysci.text.tables import bytes_text

_FILES = MappingProxyType(
    {
        "{0}.h": "free.h",
        "{0}.c": "free.c",
        "selftest.c": "free_selftest.c",
        "Makefile": "free_makefile.mk",
        "README.md": "free_readme.md",
    }
)
_PATTERNS = ("{0}_*.c", "{0}.weights", DATA)
_BUILT = ("lib{0}.a", "{0}.o", "{0}_*.o", "selftest")
_WORDS = 4  # of 64 bits a line


def write_freestanding(network: Network, out: Path, *, force: bool = False) -> list[Path]:
    """Write freestanding C and its self-test into the directory ``out``; returns the paths written.

    Raises SpecError for a network of several threads that are not of the caller's pool, and as
    ``write_project`` does.
    """
    check_freestanding(out, network.name, network.threads, network.code.pool, force=force)
    contents = files(network, make_selftest_data(network))
    return folder.write(out, contents, leftovers=_leftovers(network.name), force=force)


def check_freestanding(
    out: Path, name: str, threads: int, pool: str, *, force: bool = False
) -> None:
    """Raise what ``write_freestanding`` would find wrong, before there is a network."""
    if threads > 1 and pool != "callback":
        raise SpecError(
            f"threads={threads}: freestanding code has one thread, or with callback:{threads} "
            "those of a pool of yours"
        )
    paths = [pattern.format(name) for pattern in (*_FILES, *_PATTERNS)]
    folder.check(out, paths, leftovers=_leftovers(name), force=force)


def _leftovers(name: str) -> tuple[str, ...]:
    return tuple(pattern.format(name) for pattern in _BUILT)


def files(network: Network, told: SelftestData) -> dict[str, Content]:
    """The content of every file."""
    name, code = network.name, network.code
    data = network.runner.packed_weights()
    texts = {path: text for path, text in code.files.items() if path.startswith(f"{name}_")}
    sources = [f"{name}.c", *texts, f"{name}_weights.c"]
    size, entry = LINE + data.nbytes, RunEntry(name, arguments_of(code.placed.program))
    values = {
        **code.values,
        **program_parts(only_size(network)),
        **file_flags(texts),
        **free_pool_texts(code, network.threads),
        "CODE": print_stages(code.values),
        "DIGEST": digest_of(pieces_of(data)),
        "SIZES": size_constants([entry], name, {"ARENA": max(1, code.arena.size), "WEIGHTS": size}),
        "OBJECTS": " ".join(path.removesuffix(".c") + ".o" for path in sources),
        "SOURCES": " ".join(sources),
        "TABLE": "\n".join(rows(network)),
        "ARENA_TEXT": bytes_text(code.arena.size),
        "WEIGHTS_TEXT": bytes_text(size),
        "TOLERANCE": f"{told.tolerance:.3g}",
        "DERIVED": told.derived,
    }
    made = {path.format(name): fill_template(file, values) for path, file in _FILES.items()}
    return {
        **mark_files(texts, name),
        **made,
        f"{name}_weights.c": partial(_weights_text, name, data),
        f"{name}.weights": partial(packed_pieces, data),
        DATA: lambda: selftest_bytes(name, [told]),
    }


def _weights_text(name: str, data: memoryview) -> Iterator[bytes]:
    """The file of weights as a constant array in C."""
    yield fill_template("free_weights.c", {"NAME": name, "UPPER": name.upper()}).encode()
    for piece in packed_pieces(data):
        words = np.frombuffer(piece, "<u8").tolist()
        for first in range(0, len(words), _WORDS):
            yield f"    {', '.join(map(hex, words[first : first + _WORDS]))},\n".encode()
    yield b"};\n"
