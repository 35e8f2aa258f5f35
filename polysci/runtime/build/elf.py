"""The check that a file is a complete shared object for this machine, without loading it.

Mapping a truncated one kills the process with SIGBUS, so the question comes before dlopen.
"""

from __future__ import annotations

import mmap
import platform
import struct
from collections.abc import Collection
from pathlib import Path

from polysci.errors import BuildError

# System V ABI, ELF-64: file header, then program and section headers.
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_SHARED = 3  # ET_DYN
_SYMBOLS = 11  # SHT_DYNSYM: what the dynamic linker finds
_NOBITS = 8  # SHT_NOBITS: takes no room in the file
_MACHINES = {"x86_64": 62, "aarch64": 183, "riscv64": 243}


def verify_shared_object(path: Path) -> None:
    """BuildError naming the file and the fault unless every header and segment lies inside it."""
    fault = fault_of(path)
    if fault:
        raise BuildError(f"{path}: not a usable shared object: {fault}")


def fault_of(path: Path, symbols: Collection[str] = ()) -> str | None:
    """Return the file's fault, or None; it must define ``symbols``."""
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            if size < _HEADER.size:
                return f"{size} bytes are too few for an ELF header"
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _fault(data, size) or _lacking(data, symbols)
    except OSError as error:
        return error.strerror or str(error)


def _fault(data: mmap.mmap, size: int) -> str | None:
    header = _HEADER.unpack_from(data)
    ident, kind, machine = header[:3]
    segments, sections, (segment_size, segment_count, section_size, section_count) = (
        header[5],
        header[6],
        header[9:13],
    )
    if ident[:6] != b"\x7fELF\x02\x01":
        return "no little-endian 64-bit ELF header"
    if kind != _SHARED:
        return f"ELF type {kind} instead of {_SHARED} (shared object)"
    if machine != _MACHINES.get(platform.machine(), machine):
        return f"built for ELF machine {machine}, this is {platform.machine()}"
    if (segment_size, section_size) != (_SEGMENT.size, _SECTION.size) or not segment_count:
        return "no program headers or section headers of the usual size"
    ends = [
        segments + segment_count * segment_size,
        sections + section_count * section_size,
    ]
    if max(ends) > size:
        return f"truncated: headers end at byte {max(ends)}, the file at {size}"
    for index in range(segment_count):
        fields = _SEGMENT.unpack_from(data, segments + index * segment_size)
        ends.append(fields[2] + fields[5])
    for index in range(section_count):
        fields = _SECTION.unpack_from(data, sections + index * section_size)
        ends.append(0 if fields[1] == _NOBITS else fields[4] + fields[5])
    return None if max(ends) <= size else f"truncated: needs {max(ends)} bytes, has {size}"


def _lacking(data: mmap.mmap, symbols: Collection[str]) -> str | None:
    """Return a text that names the symbols which a whole file does not define, or None."""
    lacking = sorted({*symbols} - _defined_symbols(data)) if symbols else []
    return f"it does not define {', '.join(lacking)}" if lacking else None


def _defined_symbols(data: mmap.mmap) -> set[str]:
    """Return the symbols that a whole file defines for others."""
    header = _HEADER.unpack_from(data)
    sections = [
        _SECTION.unpack_from(data, header[6] + at * _SECTION.size) for at in range(header[12])
    ]
    names = set[str]()
    for section in sections:
        kind, start, size, link = section[1], section[4], section[5], section[6]
        if kind != _SYMBOLS or link >= len(sections):
            continue
        first, length = sections[link][4:6]
        texts = data[first : first + length]
        for at in range(start, start + size - _SYMBOL.size + 1, _SYMBOL.size):
            name, _, _, owner, *_ = _SYMBOL.unpack_from(data, at)
            if owner:  # 0: it is another library's
                names.add(texts[name : texts.find(b"\0", name)].decode(errors="replace"))
    return names
