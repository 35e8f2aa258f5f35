"""Several programs at a time; an error or Ctrl-C leaves none of them behind."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable
from concurrent.futures import CancelledError, ThreadPoolExecutor
from threading import Lock, get_ident
from typing import TypeVar

from polysci.runtime.build import process

T = TypeVar("T")


def together(
    calls: Iterable[Callable[[], T]], jobs: int, meanwhile: Callable[[], None] = lambda: None
) -> list[T]:
    """The results of all calls, ``jobs`` at a time, in their order; this thread does ``meanwhile``.

    The error of the first that fails, after those under way have ended; Ctrl-C kills what they run,
    at whatever moment it comes.
    """
    starting = Lock()
    interrupted = False
    under_way: set[int] = set()  # the threads that run a call now

    def one(call: Callable[[], T]) -> T:
        with starting:
            if interrupted:
                raise CancelledError
            under_way.add(get_ident())
        try:
            return call()
        finally:
            under_way.discard(get_ident())

    with ThreadPoolExecutor(max(1, jobs)) as pool:
        try:
            futures = [pool.submit(one, call) for call in calls]
            meanwhile()
            return [future.result() for future in futures]
        except BaseException as error:
            if not isinstance(error, Exception):
                with starting:
                    interrupted = True
            pool.shutdown(wait=False, cancel_futures=True)
            while interrupted and under_way:  # Ctrl-C does not wait for a hanging compiler
                with contextlib.suppress(KeyboardInterrupt):  # pressed again
                    process.kill_started_by(under_way)
                    time.sleep(0.02)
            raise
