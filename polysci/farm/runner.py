"""The trials of a search on the machines of a farm, as ``tune.runner.LocalRunner`` does them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any, Final, Self

from distributed import Future, KilledWorker

from polysci.errors import FarmError, PolysciError
from polysci.farm import tasks
from polysci.farm.cluster import POLL_S, Farm, FarmMachine, result_of
from polysci.measure.samples import Samples
from polysci.ops.problem import Problem
from polysci.polyhedral.schedule import Schedule
from polysci.rank import Context
from polysci.tune.runner import FaultyScheduleError, usual_rate

FINAL_S: Final = 60.0  # after the deadline, for the comparison of what was measured
MOST: Final = 4  # schedules of a task
AHEAD: Final = 3  # tasks a worker that are submitted at a time: the next ones are compiled already

# A function of ``tasks``, its arguments behind the job, and the schedules that it needs compiled.
Call = tuple[Callable[..., Any], Sequence[Any], Sequence[str]]


class FarmRunner:
    """Runs trials on workers of one kind, until ``deadline`` of the monotonic clock if any."""

    resumable = True

    def __init__(
        self, farm: Farm, machine: FarmMachine, deadline: float | None, problem: Problem,
        context: Context,
    ) -> None:  # fmt: skip
        self.farm, self.machine, self.deadline = farm, machine, deadline
        self.compiler, self.width = machine.compiler, len(machine.workers)
        self.threads = context.threads
        job = tasks.TrialJob.of(problem, context.threads, machine.name, usual_rate(context))
        self.job = asdict(job)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        pass

    def try_all(
        self, schedules: Sequence[Schedule]
    ) -> Iterator[tuple[Schedule, Samples | PolysciError]]:
        """In the order in which workers answer; those that time is up for are left out.

        A worker gets several at a time where there are more searches than workers.
        """
        size = max(1, min(MOST, len(schedules) * self.farm.searches // self.width))
        yield from self._try([schedules[at : at + size] for at in range(0, len(schedules), size)])

    def _try(
        self, parts: Sequence[Sequence[Schedule]]
    ) -> Iterator[tuple[Schedule, Samples | PolysciError]]:
        texts = [[*map(str, part)] for part in parts]
        calls = [(self.farm.tasks.try_schedules, (text,), text) for text in texts]
        for at, answer in self._answers(calls):
            part = parts[at]
            if "fault" not in answer:
                yield from zip(part, map(tasks.samples_of, answer["rows"]), strict=True)
            elif len(part) > 1:  # find out which
                yield from self._try([[schedule] for schedule in part])
            else:
                yield part[0], tasks.error_of(answer)

    def compare(
        self, schedules: Sequence[Schedule], *, samples: int, eliminate: bool = False
    ) -> list[Samples]:
        """Samples taken in turns, by one worker."""
        texts, options = [*map(str, schedules)], {"samples": samples, "eliminate": eliminate}
        call: Call = self.farm.tasks.compare_schedules, (texts, options), texts
        rows = self._answer(call, dict(zip(texts, schedules, strict=True)))
        return [its for row in rows if isinstance(its := tasks.samples_of(row), Samples)]

    def peak(self) -> float:
        """Of one of the machines."""
        (peak,) = self._answer((self.farm.tasks.measure_peak, (), ()), {})
        return float(peak)

    def _answer(self, call: Call, schedules: Mapping[str, Schedule]) -> list[Any]:
        """The rows of one call, however late it is; a fault is raised."""
        for _, answer in self._answers([call], FINAL_S):
            if "guilty" in answer:
                raise FaultyScheduleError(schedules[answer["guilty"]], answer["fault"])
            if "fault" in answer:
                raise tasks.error_of(answer)
            return list(answer["rows"])
        raise KeyboardInterrupt  # nobody answers: what was measured before counts

    def _answers(
        self, calls: Sequence[Call], grace_s: float = 0.0
    ) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """The number of a call and its answer, as they come; fewer when the deadline passes."""
        done: SimpleQueue[Future] = SimpleQueue()
        pending: dict[str, tuple[Future, int, bool]] = {}
        todo, aside = [*reversed(range(len(calls)))], len(self.farm.aside)

        def start(at: int, built: Sequence[tasks.Answer] | None) -> None:
            """Compile what a call needs, anywhere; with that, take its times."""
            function, words, texts = calls[at]
            ready = built is not None or not texts
            future = (
                self.farm.time(self.machine, function, self.job, *words, *(built or ()))
                if ready
                else self.farm.compile(self.machine, self.job, texts)
            )
            pending[future.key] = future, at, ready
            future.add_done_callback(done.put)

        try:
            while pending or todo:
                while todo and len(pending) < AHEAD * self.width:
                    start(todo.pop(), None)
                ended = self._next(done)
                if len(self.farm.aside) > aside:
                    aside = len(self.farm.aside)
                    todo += self._recall(pending)
                if ended is None and self._late(grace_s):
                    return
                if ended is None or ended.key not in pending:
                    continue
                _, at, ready = pending.pop(ended.key)
                answer = self._result(ended)
                if not ready:
                    start(at, answer["built"] if answer and "built" in answer else ())
                elif answer:
                    yield at, answer
                else:
                    todo.append(at)
        finally:
            for future, *_ in pending.values():
                future.cancel()

    def _next(self, done: SimpleQueue[Future]) -> Future | None:
        """A task that has ended; None after a while. Raises KeyboardInterrupt for the others."""
        with self.farm.wait(), suppress(Empty):
            return done.get(timeout=POLL_S)
        if self.farm.stop.is_set():
            raise KeyboardInterrupt
        self.farm.count_workers(self.machine)
        return None

    def _late(self, grace_s: float) -> bool:
        return self.deadline is not None and time.monotonic() > self.deadline + grace_s

    def _result(self, future: Future) -> Mapping[str, Any] | None:
        """What a task answers; None where it must be repeated by another worker."""
        try:
            answer: Mapping[str, Any] = result_of(future)
        except FarmError as error:
            if isinstance(error.__cause__, KilledWorker):
                return {"fault": f"the workers that ran it died: {error}", "kind": "CheckError"}
            raise
        if "rate" not in answer:  # compiled, or a fault
            return answer
        seen = self.machine, self.threads, answer["worker"], answer["rate"]
        return answer if self.farm.accepts(*seen) else None

    def _recall(self, pending: dict[str, tuple[Future, int, bool]]) -> list[int]:
        """The calls that wait for workers which were set aside; they are taken from them."""
        busy = self.farm.client.processing(self.farm.aside)
        stuck = [key for keys in busy.values() for key in keys if key in pending]
        recalled = [pending.pop(key) for key in stuck]
        for future, *_ in recalled:
            future.cancel()
        return [at for _, at, _ in recalled]
