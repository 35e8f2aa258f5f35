"""Libraries for single sizes of a range, compiled behind runs of the generic code.

They are held up to a number of bytes; the size that was asked for longest ago leaves first.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from polysci.network.runner import Runner
from polysci.runtime.build.process import kill_started_by, one_at_a_time
from polysci.text.tables import bytes_text, shorten

Sizes = tuple[tuple[str, int], ...]
Build = Callable[[Mapping[str, int]], Runner]
_NICER: Final = 10  # steps of priority below that of the process
_EXIT_S: Final = 5.0  # in which the thread ends when the process does
_LISTED: Final = 400  # letters of a list


class _Ended(SystemExit):
    """Ends what a thread does, without a word."""


@dataclass(slots=True)
class Held:
    """A library for one size: its bytes of code, weights and a context, and runs so far."""

    runner: Runner
    bytes: int
    hits: int = 0


class SpecializedSizes:
    """Libraries for sizes that were asked for, which a thread of low priority compiles.

    ``build`` compiles one, and ``most_bytes`` is what all of them may take together, as code,
    weights and one context each. Any number of threads may ask for sizes.
    """

    def __init__(self, build: Build, most_bytes: int) -> None:
        self.build, self.most_bytes = build, most_bytes
        self._lock = threading.Lock()
        self._held = dict[Sizes, Held]()  # the size that was asked for last is the last one
        self._waiting = dict[Sizes, None]()  # the first one is under way, if there is a thread
        self._failed = dict[Sizes, str]()
        self._thread: threading.Thread | None = None
        self._closed, self.dropped = False, 0
        _stores.add(self)

    def find(self, sizes: Sizes) -> Runner | None:
        """Return what runs these sizes alone; None where that is not there yet, or will not be."""
        with self._lock:
            if (held := self._held.pop(sizes, None)) is not None:
                self._held[sizes] = held
                held.hits += 1
                return held.runner
            if sizes in self._waiting or sizes in self._failed or self._closed:
                return None
            self._waiting[sizes] = None
            if self._thread is None:
                self._start()
        return None

    def _start(self) -> None:
        thread = threading.Thread(
            target=_work, args=(weakref.ref(self),), daemon=True, name="specialize"
        )
        try:
            thread.start()
        except RuntimeError:  # none can be had, as while the process ends
            self._waiting.clear()
        else:
            self._thread = thread

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until no size is to be compiled, or so many seconds; return whether it is so."""
        thread = self._thread
        if thread is not None:
            thread.join(seconds)
        return not self._waiting

    def close(self) -> None:
        """Compile no further sizes, and end what is under way; libraries that are there stay."""
        with self._lock:
            self._closed = True
            self._waiting.clear()
            thread = self._thread
        if thread is not None:
            _end(thread)

    @property
    def bytes(self) -> int:
        """The bytes of all that is held."""
        with self._lock:
            return sum(held.bytes for held in self._held.values())

    def report(self) -> str:
        """Return sizes with their runs, bytes that are held, and sizes that could not be had."""
        with self._lock:
            held, waiting, failed = dict(self._held), [*self._waiting], dict(self._failed)
        sizes = [f"{_text(own)} ({it.hits} run{'s' * (it.hits != 1)})" for own, it in held.items()]
        total = sum(it.bytes for it in held.values())
        hits = sum(it.hits for it in held.values())
        lines = [
            f"specialised: {shorten('; '.join(sizes) or 'no size yet', _LISTED)}: {hits} "
            f"hit{'s' * (hits != 1)}, {bytes_text(total)} of at most "
            f"{bytes_text(self.most_bytes)}, {self.dropped} dropped"
        ]
        if waiting:
            lines.append(f"to compile: {shorten('; '.join(map(_text, waiting)), _LISTED)}")
        lines += [f"not specialised: {_text(own)}: {why}" for own, why in failed.items()]
        return "\n".join(lines)

    def begin_in_child(self) -> None:
        """Go on in a child of fork, which has the libraries of its parent, but no thread."""
        self._lock, self._thread, self._waiting = threading.Lock(), None, {}

    def next(self) -> Sizes | None:
        """Return the size to compile now; without one the thread ends."""
        with self._lock:
            sizes = next(iter(self._waiting), None)
            if sizes is None:
                self._thread = None
            return sizes

    def keep(self, sizes: Sizes, result: Held | str) -> None:
        """Keep a library and drop others for it, or note why there is none."""
        with self._lock:
            self._waiting.pop(sizes, None)
            if isinstance(result, str):
                self._failed[sizes] = result
            elif result.bytes > self.most_bytes:
                taken, most = bytes_text(result.bytes), bytes_text(self.most_bytes)
                self._failed[sizes] = f"it takes {taken}, and all may take {most}"
            else:
                self._held[sizes] = result
                self._drop()

    def _drop(self) -> None:
        """Drop libraries of sizes that were asked for longest ago until the others fit."""
        total = sum(held.bytes for held in self._held.values())
        for sizes in [*self._held]:
            if total <= self.most_bytes:
                break
            total -= self._held.pop(sizes).bytes
            self.dropped += 1


def _text(sizes: Sizes) -> str:
    return ", ".join(f"{name}={size}" for name, size in sizes)


# The threads of this process, of which one compiles at a time.

_turn = threading.Lock()
_threads: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
_stores: weakref.WeakSet[SpecializedSizes] = weakref.WeakSet()


def _work(reference: weakref.ref[SpecializedSizes]) -> None:
    """Compile the sizes of a network one after the other, as long as it has some and is needed."""
    _threads.add(threading.current_thread())
    with suppress(_Ended), one_at_a_time():
        _lower_priority()
        while (store := reference()) is not None and (sizes := store.next()) is not None:
            build = store.build
            del store
            with _turn:
                result = _result_of(build, sizes)
            if (store := reference()) is not None:
                store.keep(sizes, result)
            del store, result


def _result_of(build: Build, sizes: Sizes) -> Held | str:
    """Return what runs these sizes, or why there is none."""
    try:
        runner = build(dict(sizes))
        code = runner.library.path.stat().st_size
        return Held(runner, code + runner.model_bytes + runner.context_bytes)
    except Exception as error:  # of many kinds: the generic code goes on
        return shorten(" ".join(f"{type(error).__name__}: {error}".split()), _LISTED)


def _lower_priority() -> None:
    """Give this thread, and programs that it starts, a lower priority where threads have one."""
    if sys.platform == "linux":
        own = threading.get_native_id()
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, own, os.getpriority(os.PRIO_PROCESS, own) + _NICER)


def _end(thread: threading.Thread) -> None:
    """End a thread and what it runs, soon."""
    ident, until = thread.ident, time.monotonic() + _EXIT_S
    if ident is None or thread is threading.current_thread():
        return
    if thread.is_alive():
        raised = ctypes.py_object(_Ended)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), raised)
    while thread.is_alive() and time.monotonic() < until:
        kill_started_by({ident})
        thread.join(0.02)


@atexit.register
def _end_all() -> None:
    for thread in [*_threads]:
        _end(thread)


def _forget() -> None:
    """Forget the threads of the parent in a child of fork."""
    global _turn
    _turn = threading.Lock()
    _threads.clear()
    for store in [*_stores]:
        store.begin_in_child()


os.register_at_fork(after_in_child=_forget)
