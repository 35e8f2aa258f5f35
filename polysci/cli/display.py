"""Progress over layers: a live line on a terminal, one plain line a layer otherwise."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

from polysci.cli.layers import say, title

if TYPE_CHECKING:
    from polysci.ops.problem import Problem
    from polysci.tune import Progress


class Display:
    """``with Display(n) as display``: ``display.watch`` follows a search, ``done`` ends a layer."""

    def __init__(self, layers: int) -> None:
        self.layers, self.finished, self.start = layers, 0, time.monotonic()
        self._status = None
        if sys.stderr.isatty():
            from rich.console import Console

            self._status = Console(stderr=True).status("starting")

    def __enter__(self) -> Self:
        if self._status:
            self._status.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._status:
            self._status.stop()

    def watch(self, problem: Problem, step: Progress) -> None:
        """Show the progress of a search."""
        if self._status is None:
            if step.stage == "calibrating" and step.done == 1:
                say("measuring this machine once (less than a minute)")
            return
        from rich.markup import escape

        share = f" {step.done}/{step.total}" if step.total > 1 else ""
        spent = time.monotonic() - self.start
        self._status.update(
            f"layer {self.finished + 1}/{self.layers} {escape(title(problem))}: "
            f"{step.stage}{share}, {spent:.0f} s"
        )

    def note(self, text: str) -> None:
        """Show ``text`` between or after the layers."""
        if self._status is None:
            say(text)
        else:
            self._status.update(text)

    def done(self, line: str) -> None:
        """One layer is finished: print ``line``."""
        self.finished += 1
        if self._status is None:
            say(f"[{self.finished}/{self.layers}] {line}")
        else:
            from rich.markup import escape

            self._status.console.print(escape(line), highlight=False)
