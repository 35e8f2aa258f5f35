"""Synthetic load: processes that compute."""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

SPIN = "import os; os.sched_setaffinity(0, {cpus}); exec('while True: pass')"


@contextmanager
def busy(*cpus: int) -> Iterator[None]:
    """A process that computes for every processor named, on that one alone."""
    with ExitStack() as stack:
        for cpu in cpus:
            code = SPIN.format(cpus={cpu})
            process = subprocess.Popen([sys.executable, "-c", code])
            stack.callback(process.wait)
            stack.callback(process.kill)
        time.sleep(0.2)
        yield
