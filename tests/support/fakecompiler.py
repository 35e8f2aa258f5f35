"""C compilers that misbehave: shell scripts in front of the real one, which CC names."""

import platform
import shutil
from pathlib import Path

from polysci.printers import headers
from polysci.runtime.build.library import load

# What any build does: write a library, or an object, of no text at all.
EMPTY = (
    'what=-shared; for word; do [ "$word" = -c ] && what=-c; done\n'
    'while [ "$1" != -o ]; do shift; done\n'
    'case "$2" in *.gch) exit 1;; esac\n'
    'exec $real -fPIC $what -o "$2" -x c /dev/null'
)

INTRINSICS = headers.INTRINSICS.get(platform.machine(), "")  # of a text: its header is precompiled
NO_HEADER = 'case "$*" in *c-header*) exit 1;; esac'


def write(folder: Path, body: str) -> Path:
    """The path of a compiler that says who it is and for the rest does ``body``.

    That may run ``$real``, and is followed by ``exec $real "$@"``.
    """
    path = folder / "fake-cc"
    path.write_text(
        f"#!/bin/sh\nreal={shutil.which('cc')}\n"
        'case "$*" in *--version* | *-dumpmachine*) exec $real "$@";; esac\n'
        f'{body}\nexec $real "$@"\n'
    )
    path.chmod(0o700)
    return path


def text(number: int) -> str:
    """C that is built to a library whose ``value`` is a number."""
    return f"int value(void);\nint value(void) {{ return {number}; }}\n"


def value(path: Path) -> int:
    """What the library says."""
    return int(load(path, "int value(void);").lib.value())
