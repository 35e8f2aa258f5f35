"""Many searches on the machines of a farm at the same time; their records go to one file."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Final

from distributed import Client

from polysci.cost import Context
from polysci.errors import FarmError, PolysciError, SpecError
from polysci.farm import tasks
from polysci.farm.cluster import Farm, FarmMachine, connect
from polysci.farm.runner import FarmRunner
from polysci.lower import choice
from polysci.lower.algorithm import Candidate
from polysci.lower.registry import DEFAULT
from polysci.ops.model import model_of
from polysci.ops.problem import Problem
from polysci.space import schedule
from polysci.space.summation import SummationOrder
from polysci.tune import LEVELS, Progress, Result, context_of, optimize
from polysci.tune.records import SEEDS, SearchRecords
from polysci.tune.wisdom import Wisdom

SEARCHES: Final = 2  # for each worker that takes times: one measures while another one ranks
RANKED_HERE: Final = 4  # searches: while their schedules are timed, this process ranks for one
MANY: Final = 16  # workers: this process cannot keep more of them busy with parts of searches
WHOLE: Final = "measure"  # the level of searches so short that a worker may take all of one
HERE: Final = ("again", "reproducible", "tuner")  # options with records or a state of this process


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
    ones and FarmError where the cluster cannot be used.
    """
    farm = client if isinstance(client, Farm) else connect(client)
    unique = {problem.key: problem for problem in reversed(problems)}
    keys = dict.fromkeys(problem.key for problem in problems)
    jobs = [(unique[key], machine, threads) for key in keys for machine in farm.machines]
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
            if whole:
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
