"""Parts of modules of WebAssembly: sections that engines pass over, the memory that is imported.

Sections and numbers are those of the WebAssembly core specification, 5.2 and 5.5.
"""

from __future__ import annotations

from typing import Final

MAGIC: Final = b"\0asm"  # with which modules begin
HEADER: Final = 8  # bytes of a module before its sections
PAGE: Final = 1 << 16  # bytes
MOST_PAGES: Final = (1 << 16) - 1  # of 32-bit addresses; one more is too many for some linkers
_IMPORTS: Final = 2  # the section
_MEMORY: Final = 2  # the kind of an import


def custom_section(name: str, content: bytes) -> bytes:
    """Return a section that engines pass over."""
    return custom_section_head(name, len(content)) + content


def custom_section_head(name: str, size: int) -> bytes:
    """Return what stands before the ``size`` bytes of a section that engines pass over."""
    known = name.encode()
    named = _leb128(len(known)) + known
    return b"\0" + _leb128(len(named) + size) + named


def _leb128(number: int) -> bytes:
    """Return an unsigned number in groups of 7 bits, the low ones first."""
    groups = [number >> at & 127 for at in range(0, max(1, number.bit_length()), 7)]
    return bytes([*(group | 128 for group in groups[:-1]), groups[-1]])


def pages_of_import(module: bytes) -> int:
    """Return the least pages of the memory that a module imports, which imports nothing else.

    Raises ValueError for another module.
    """
    at = HEADER
    while at < len(module):
        section, (size, start) = module[at], _number(module, at + 1)
        if section == _IMPORTS:
            count, at = _number(module, start)
            for _ in range(2):  # the names of a module and of what it is to hold
                length, at = _number(module, at)
                at += length
            if count == 1 and module[at] == _MEMORY:
                return _number(module, at + 2)[0]
            break
        at = start + size
    raise ValueError("expected a module that imports a memory and nothing else")


def _number(module: bytes, at: int) -> tuple[int, int]:
    """Return an unsigned number in groups of 7 bits, and where it ends."""
    number = shift = 0
    while True:
        number |= (module[at] & 127) << shift
        shift, at = shift + 7, at + 1
        if module[at - 1] < 128:
            return number, at
