"""Progress over layers: lines that vanish on a terminal, one plain line a layer otherwise."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Self

from polysci.cli.layers import say, title

if TYPE_CHECKING:
    from rich.live import Live

    from polysci.farm import FarmMachine
    from polysci.ops.problem import Problem
    from polysci.tune import Progress

_LAST = 8  # finished layers that stay in sight
PATIENCE = 2.0  # seconds of a layer before a plain line says what is being compiled


class Display:
    """``with Display(n) as display``: ``display.watch`` follows a search, ``done`` ends a layer.

    On a terminal the last layers stand above what is being done now; all of it goes with the block.
    """

    def __init__(self, layers: int) -> None:
        self.layers, self.finished, self.start = layers, 0, time.monotonic()
        self._interrupted = False
        self._live: Live | None = None
        self._lines: deque[str] = deque(maxlen=_LAST)
        self._calibrating = False
        self._begun, self._patience = self.start, PATIENCE
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.live import Live

            self._live = Live(console=Console(stderr=True), transient=True, redirect_stdout=False)

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
            self._show("starting")
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Let Ctrl-C end the block and no more, until ``end``."""
        try:
            yield
        except KeyboardInterrupt:
            self._interrupted = True

    def end(self) -> None:
        """Raise the KeyboardInterrupt that was held, once what was measured is shown."""
        if self._interrupted:
            raise KeyboardInterrupt

    def watch_machine(self, problem: Problem, machine: FarmMachine, step: Progress) -> None:
        """Show the progress of a search on a machine of a farm."""
        self.watch(problem, step)

    def watch(self, problem: Problem, step: Progress) -> None:
        """Show the progress of a search."""
        if self._live is None:
            if step.stage == "calibrating" and not self._calibrating:
                from polysci.numerics.dtypes import precision_named
                from polysci.tune.result import describe_calibration

                say(describe_calibration(precision_named(problem.dtype).x.name))
            self._calibrating = step.stage == "calibrating"
            if step.stage == "compiling" and step.total > 1:
                self._tell(problem, step)
            return
        share = f" {step.done}/{step.total}" if step.total > 1 else ""
        spent = time.monotonic() - self.start
        self._show(
            f"layer {self.finished + 1}/{self.layers} {title(problem)}: "
            f"{step.stage}{share}, {spent:.0f} s"
        )

    def _tell(self, problem: Problem, step: Progress) -> None:
        """Say in a plain line what a layer is at, each time after twice as many seconds."""
        spent = time.monotonic() - self._begun
        if spent >= self._patience:
            self._patience = 2 * spent
            say(
                f"{title(problem)}: {step.stage} {step.done} of {step.total} at most, {spent:.0f} s"
            )

    def note(self, text: str) -> None:
        """Show ``text`` between or after the layers."""
        if self._live is None:
            say(text)
        else:
            self._show(text)

    def done(self, line: str) -> None:
        """One layer is finished: show ``line``."""
        self.finished += 1
        self._begun, self._patience = time.monotonic(), PATIENCE
        self._lines.append(line)
        if self._live is None:
            say(f"[{self.finished}/{self.layers}] {line}")
        else:
            self._show("")

    def _show(self, now: str) -> None:
        """Redraw the last layers and what is being done now, each in one line."""
        from rich.console import Group
        from rich.spinner import Spinner
        from rich.text import Text

        if self._live:
            lines = (Text(line, no_wrap=True, overflow="ellipsis") for line in self._lines)
            current = Text(now, no_wrap=True, overflow="ellipsis")
            self._live.update(Group(*lines, Spinner("dots", current)))
