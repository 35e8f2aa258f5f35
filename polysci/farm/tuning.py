"""Many searches on the machines of a farm at the same time; their records go to one file.

``FarmRunner`` does the trials of a search there, as ``tune.runner.LocalRunner`` does them here.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Final, Self

from distributed import Client, Future

from polysci.cost import Context
from polysci.errors import FarmError, PolysciError, SpecError
from polysci.farm import tasks
from polysci.farm.cluster import POLL_S, Farm, FarmMachine, connect
from polysci.lower import choice
from polysci.lower.algorithm import Candidate
from polysci.lower.registry import DEFAULT
from polysci.measure.samples import Sample, Samples
from polysci.ops.model import model_of
from polysci.ops.problem import Problem
from polysci.space import schedule
from polysci.space.schedule import Schedule
from polysci.space.summation import SummationOrder
from polysci.tune import LEVELS, Progress, Result, context_of, optimize
from polysci.tune.records import SEEDS, SearchRecords
from polysci.tune.runner import FaultyScheduleError, usual_rate
from polysci.tune.wisdom import Record, Wisdom

SEARCHES: Final = 2  # for each worker that takes times: one measures while another one ranks
RANKED_HERE: Final = 4  # searches: while their schedules are timed, this process ranks for one
MANY: Final = 16  # workers: this process cannot keep more of them busy with parts of searches
WHOLE: Final = "measure"  # the level of searches so short that a worker may take all of one
HERE: Final = ("again", "reproducible", "tuner")  # options with records or a state of this process

FINAL_S: Final = 60.0  # after the deadline, for the comparison of what was measured
MOST: Final = 4  # schedules of a task
AHEAD: Final = 3  # tasks a worker that are submitted at a time: the next ones are compiled already

# Arguments of a function of ``tasks`` behind the job and the shared objects; their schedules.
Call = tuple[Sequence[Any], Sequence[str]]


@dataclass(frozen=True, slots=True)
class FarmResult:
    """A problem's result on one kind of machine, or the error in ``fault``."""

    problem: Problem
    machine: FarmMachine
    result: Result | None
    fault: str = ""


Watch = Callable[[Problem, FarmMachine, Progress], None]


def optimize_all(
    problems: Sequence[Problem],
    client: Client | Farm,
    level: str = "measure",
    threads: int = 1,
    **options: Any,
) -> Iterator[FarmResult]:
    """The result of every problem on every kind of machine behind ``client``, as they come.

    ``client`` is a ``distributed.Client`` of any cluster, or what ``connect`` makes of one. Equal
    problems are searched once. ``options`` are those of ``run_searches``. Raises SpecError for bad
    ones and FarmError where the cluster cannot be used. On devices all compute units share the
    work, whatever ``threads`` says.
    """
    farm = client if isinstance(client, Farm) else connect(client)
    unique = {problem.key: problem for problem in reversed(problems)}
    keys = dict.fromkeys(problem.key for problem in problems)
    jobs = [
        (unique[key], machine, machine.target.cores if machine.is_device else threads)
        for key in keys for machine in farm.machines
    ]  # fmt: skip
    return run_searches(farm, jobs, level, **options)


def run_searches(
    farm: Farm,
    jobs: Sequence[tuple[Problem, FarmMachine, int]],
    level: str = "measure",
    *,
    wisdom: Wisdom | None = None,
    time_limit: float | None = None,
    watch: Watch | None = None,
    **options: Any,
) -> Iterator[FarmResult]:
    """The result of every search: a problem, a kind of machine, a number of threads.

    ``options`` are those of ``polysci.optimize``: ranker, algorithm, again, reproducible. Every
    time is recorded in ``wisdom`` when it comes: a search that was cut off goes on from there.
    Where there are more searches than workers, and many workers, each takes whole searches.
    ``time_limit`` seconds end all of it, and so does Ctrl-C, which is raised again.
    """
    if level not in LEVELS or LEVELS[level].measured == 0:
        names = ", ".join(name for name, its in LEVELS.items() if its.measured != 0)
        raise SpecError(f"level {level!r}: a farm measures; expected one of {names}")
    deadline = None if time_limit is None else time.monotonic() + time_limit
    workers = sum(len(machine.workers) for machine in farm.machines)
    whole = len(jobs) > workers >= MANY and level == WHOLE and not any(map(options.get, HERE))
    search = partial(_search, farm, level, wisdom, deadline, watch, whole, options)
    with ThreadPoolExecutor(min(len(jobs), SEARCHES * workers) or 1) as pool:
        started = [pool.submit(search, *job) for job in jobs]
        try:
            for future in as_completed(started):
                yield future.result()
        except BaseException:
            farm.stop.set()
            for future in started:
                future.cancel()
            raise


def _search(
    farm: Farm,
    level: str,
    wisdom: Wisdom | None,
    deadline: float | None,
    watch: Watch | None,
    whole: bool,
    options: dict[str, Any],
    problem: Problem,
    machine: FarmMachine,
    threads: int,
) -> FarmResult:
    """Search in a thread of its own. Raises SpecError and FarmError; the result has others."""
    with farm.turn:
        left = None if deadline is None else deadline - time.monotonic()
        if farm.stop.is_set() or (left is not None and left <= 0):
            return FarmResult(problem, machine, None, "not begun: the time is up")
        farm.searches += 1
        try:
            rates = farm.rates(machine, model_of(problem)[1].a.dtype)
            make_runner = partial(FarmRunner, farm, machine, deadline)
            if whole and not machine.is_device:
                context = context_of(problem, threads, machine.target, machine=rates)
                runner = make_runner(problem, context)
                _search_by_worker(runner, problem, context, wisdom or Wisdom(), options, left)
            result = optimize(
                problem, level, threads, target=machine.target, machine=rates, wisdom=wisdom,
                time_limit=left, make_runner=make_runner,
                find_candidates=partial(_rank, farm, machine),
                progress=partial(watch, problem, machine) if watch else None, **options,
            )  # fmt: skip
        except (SpecError, FarmError):
            raise
        except PolysciError as error:
            return FarmResult(problem, machine, None, str(error))
        finally:
            farm.searches -= 1
    return FarmResult(problem, machine, result)


def _search_by_worker(
    runner: FarmRunner, problem: Problem, context: Context, wisdom: Wisdom,
    options: Mapping[str, Any], time_limit: float | None,
) -> None:  # fmt: skip
    """Have a worker do all of a search that is not on record; its records go to ``wisdom``."""
    algorithm = choice.resolve_algorithm(problem, options.get("algorithm", DEFAULT))
    key, target = choice.key_of(problem, algorithm), context.target
    records = SearchRecords(problem, key, algorithm, context.threads, target, wisdom)
    if records.best(WHOLE) is not None:
        return
    seeds = wisdom.seeds(key, context.threads, target.isa.features, host=records.host)[:SEEDS]
    settings = {name: options[name] for name in ("algorithm", "ranker") if name in options}
    wisdom.merge(
        runner.search(
            machine=context.machine.to_json(), seeds=[asdict(its) for its in seeds],
            level=WHOLE, time_limit=time_limit, **settings,
        )
    )  # fmt: skip


def _rank(
    farm: Farm, machine: FarmMachine, problem: Problem, context: Context, count: int | None,
    algorithm: str, *, order: SummationOrder | None = None, **limits: Any,
) -> list[Candidate]:  # fmt: skip
    """Return ``choice.candidates``, by a worker if this process has many searches."""
    if order or farm.searches <= RANKED_HERE:
        return choice.candidates(problem, context, count, algorithm, order=order, **limits)
    weights = context.weights.to_json() if context.weights else None
    call = (
        asdict(tasks.TrialJob.of(problem, context.threads, machine.name, 0.0)),
        tasks.members_of(context.target), context.machine.to_json(), weights,
        {"count": count, "algorithm": algorithm, **limits},
    )  # fmt: skip
    (future,) = farm.compute(machine, farm.tasks.rank_schedules, call)
    answer = farm.answer(machine, future)
    if "fault" in answer:
        raise tasks.error_of(answer)
    return [Candidate(schedule.parse(text), seconds) for text, seconds in answer["ranked"]]


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

    def __exit__(self, *_: object) -> None:
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
        # Of devices only their drivers compile code, where it is timed.
        here = self.machine.is_device
        built = {at: () for at, (_, texts) in enumerate(calls) if here or not texts}

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
                if self.deadline and time.monotonic() > self.deadline + grace_s:
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
