"""Several programs at a time; an error or Ctrl-C leaves none of them behind."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import get_ident
from typing import TypeVar

from polysci.runtime.build import process

T = TypeVar("T")


def together(
    calls: Sequence[Callable[[], T]], jobs: int, meanwhile: Callable[[], None] = lambda: None
) -> list[T]:
    """The results of all calls, ``jobs`` at a time, in their order; this thread does ``meanwhile``.

    The error of the first that fails, after those under way have ended; Ctrl-C kills what they run.
    """
    threads: set[int] = set()
    with ThreadPoolExecutor(max(1, jobs), initializer=lambda: threads.add(get_ident())) as pool:
        futures = [pool.submit(call) for call in calls]
        try:
            meanwhile()
            return [future.result() for future in futures]
        except BaseException as error:
            pool.shutdown(wait=False, cancel_futures=True)
            interrupted = not isinstance(error, Exception)
            while interrupted and any(future.running() for future in futures):
                process.kill_started_by(threads)  # Ctrl-C does not wait for a hanging compiler
                time.sleep(0.02)
            raise
