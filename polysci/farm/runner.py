"""The trials of a search on the machines of a farm, as ``tune.runner.LocalRunner`` does them."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any, Final, Self

from distributed import Future

from polysci.cost import Context
from polysci.errors import PolysciError
from polysci.farm import tasks
from polysci.farm.cluster import POLL_S, Farm, FarmMachine
from polysci.measure.samples import Sample, Samples
from polysci.ops.problem import Problem
from polysci.space.schedule import Schedule
from polysci.tune.runner import FaultyScheduleError, usual_rate
from polysci.tune.wisdom import Record

FINAL_S: Final = 60.0  # after the deadline, for the comparison of what was measured
MOST: Final = 4  # schedules of a task
AHEAD: Final = 3  # tasks a worker that are submitted at a time: the next ones are compiled already

# Arguments of a function of ``tasks`` behind the job and the shared objects; their schedules.
Call = tuple[Sequence[Any], Sequence[str]]


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
        """Yield samples as workers answer; schedules that time is up for are left out.

        A worker gets several at a time while many are left.
        """
        left, parts = [*schedules], []
        while left:
            size = len(left) * max(1, self.farm.searches) // (AHEAD * self.width)
            size = max(1, min(MOST, size))
            parts.append(left[:size])
            left = left[size:]
        yield from self._try(parts)

    def _try(
        self, parts: Sequence[Sequence[Schedule]]
    ) -> Iterator[tuple[Schedule, Samples | PolysciError]]:
        texts = [[*map(str, part)] for part in parts]
        calls = [((text,), text) for text in texts]
        for at, answer in self._answers(self.farm.tasks.try_schedules, calls):
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
        function, names = (
            self.farm.tasks.compare_schedules,
            dict(zip(texts, schedules, strict=True)),
        )
        rows = self._answer(function, ((texts, options), texts), names)
        return [its for row in rows if isinstance(its := tasks.samples_of(row), Samples)]

    def peak(self) -> Sample:
        """Return a sample of one machine that does nothing but multiply."""
        (peak,) = self._answer(self.farm.tasks.measure_peak, ((), ()), {})
        return Sample(**peak)

    def search(self, **options: Any) -> list[Record]:
        """The records of a whole search by one worker, as ``tasks.search_records`` has it."""
        rows = self._answer(self.farm.tasks.search_schedules, ((options,), ()), {})
        return [Record(**row) for row in rows]

    def _answer(
        self, function: Callable[..., Any], call: Call, schedules: Mapping[str, Schedule]
    ) -> list[Any]:
        """The rows of one call, however late it is; a fault is raised."""
        for _, answer in self._answers(function, [call], FINAL_S):
            if "guilty" in answer:
                raise FaultyScheduleError(schedules[answer["guilty"]], answer["fault"])
            if "fault" in answer:
                raise tasks.error_of(answer)
            return list(answer["rows"])
        raise KeyboardInterrupt  # nobody answers: what was measured before counts

    def _answers(
        self, function: Callable[..., Any], calls: Sequence[Call], grace_s: float = 0.0
    ) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """The number of a call and its answer, as they come; fewer when the deadline passes."""
        done: SimpleQueue[Future] = SimpleQueue()
        pending: dict[str, tuple[Future, int, bool]] = {}
        todo, aside = deque(range(len(calls))), len(self.farm.aside)
        built = {at: () for at, (_, texts) in enumerate(calls) if not texts}

        def start(numbers: Sequence[int]) -> None:
            """Compile what calls need, anywhere; take the times of those that have it."""
            ready = [at for at in numbers if at in built]
            other = [at for at in numbers if at not in built]
            timings = [(self.job, built[at], *calls[at][0]) for at in ready]
            builds = [(self.job, calls[at][1]) for at in other]
            futures = self.farm.time(self.machine, function, *timings)
            futures += self.farm.compute(self.machine, self.farm.tasks.compile_schedules, *builds)
            for future, at in zip(futures, [*ready, *other], strict=True):
                pending[future.key] = future, at, at in built
                future.add_done_callback(done.put)

        try:
            while pending or todo:
                room = AHEAD * self.width - len(pending)
                start([todo.popleft() for _ in range(min(room, len(todo)))])
                ended = self._next(done)
                if len(self.farm.aside) > aside:
                    aside = len(self.farm.aside)
                    todo += self._recall(pending)
                own = {key: pending.pop(key) for key in ended if key in pending}
                for key, answer in self.farm.results([future for future, *_ in own.values()]):
                    _, at, timed = own[key]
                    if not timed:
                        built[at] = answer.get("built", ())
                        todo.appendleft(at)
                    elif self._counts(answer):
                        yield at, answer
                    else:
                        todo.append(at)
                if self._late(grace_s):
                    return
        finally:
            self.farm.cancel([future for future, *_ in pending.values()])

    def _next(self, done: SimpleQueue[Future]) -> list[str]:
        """The tasks that have ended, after a while at most. Raises KeyboardInterrupt."""
        ended: list[str] = []
        with self.farm.wait(), suppress(Empty):
            ended.append(done.get(timeout=POLL_S).key)
            while True:
                ended.append(done.get_nowait().key)
        if self.farm.stop.is_set():
            raise KeyboardInterrupt
        self.farm.count_workers(self.machine)
        return ended

    def _late(self, grace_s: float) -> bool:
        return self.deadline is not None and time.monotonic() > self.deadline + grace_s

    def _counts(self, answer: Mapping[str, Any]) -> bool:
        """Return whether it is a fault or its worker's times count; else another one repeats."""
        if "rate" not in answer:
            return True
        return self.farm.accepts(self.machine, self.threads, answer["worker"], answer["rate"])

    def _recall(self, pending: dict[str, tuple[Future, int, bool]]) -> list[int]:
        """The calls that wait for workers which were set aside; they are taken from them."""
        recalled = [pending.pop(key) for key in self.farm.recall(pending)]
        self.farm.cancel([future for future, *_ in recalled])
        return [at for _, at, _ in recalled]
