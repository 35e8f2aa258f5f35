"""A terminal that is not there: what a program writes to it."""

import contextlib
import os
import pty
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TextIO


def shown_on_terminal(write: Callable[[TextIO], object]) -> str:
    """What ``write`` writes to a stream that is a terminal, with its control sequences."""
    master, slave = pty.openpty()
    with os.fdopen(slave, "w") as stream, ThreadPoolExecutor(1) as pool:
        reading = pool.submit(_read_to_the_end, master)
        write(stream)
        stream.close()  # the reader sees the end of a terminal that nobody has open
        shown = reading.result()
    os.close(master)
    return shown


def _read_to_the_end(terminal: int) -> str:
    parts = []
    with contextlib.suppress(OSError):  # Linux: EIO once the other side is closed
        while part := os.read(terminal, 1 << 16):
            parts.append(part)
    return b"".join(parts).decode()
