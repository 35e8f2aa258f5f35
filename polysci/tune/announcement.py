"""Say that the machine is being measured, where no caller shows progress."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


def describe(x: str) -> str:
    """Return the line that announces a calibration for inputs of type ``x``."""
    return f"measuring this machine once for {x} (less than a minute)"


@contextmanager
def announce(x: str) -> Iterator[Callable[[int, int], None]]:
    """Write one line to standard error; on a terminal, a bar that vanishes with the block."""
    if not (sys.stderr and sys.stderr.isatty()):
        if sys.stderr:
            sys.stderr.write(f"{describe(x)}\n")
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True, redirect_stdout=False) as bar:
        task = bar.add_task(describe(x))
        yield lambda done, total: bar.update(task, completed=done, total=total)
