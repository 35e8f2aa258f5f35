"""Compiler flags that only some C files of a project need, as build files say it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from polysci.target.header_sets import flags_in


def file_flags(sources: Mapping[str, object]) -> dict[str, str]:
    """Return FILE_FLAGS_MAKE and FILE_FLAGS_CMAKE of the templates; ``sources`` by path."""
    wanted = list(_wanted(sources))
    make = (f"{path.removesuffix('.c')}.o: FLAGS += {' '.join(flags)}\n" for path, flags in wanted)
    cmake = (
        f'set_source_files_properties({path} PROPERTIES COMPILE_OPTIONS "{";".join(flags)}")\n'
        for path, flags in wanted
    )
    return {"FILE_FLAGS_MAKE": "".join(make), "FILE_FLAGS_CMAKE": "".join(cmake)}


def _wanted(sources: Mapping[str, object]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The C files that ask for flags, with these."""
    for path, text in sources.items():
        if path.endswith(".c") and isinstance(text, str) and (flags := flags_in(text)):
            yield path, flags
