"""The machines behind a dask client: which kinds there are, and tasks on them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final

from distributed import Client, Future, KilledWorker, Status
from distributed.diagnostics.plugin import WorkerPlugin

from polysci.errors import FarmError, PolysciError
from polysci.farm import tasks
from polysci.runtime.measurement import host_of
from polysci.target.isas import DEVICE_ISAS, ISAS
from polysci.target.machine import Machine, assume_rates, from_json
from polysci.target.target import HOST, Target

TIMING: Final = "timing"  # the resource of workers that take times
ASIDE: Final = "set-aside"  # the resource of those that a search does not trust, until the next one
DRIFT: Final = 0.15  # of the usual rate of the reference loop, up or down
POLL_S: Final = 0.2  # between looks at the clock, at Ctrl-C, and at workers that were set aside
LOOK_S: Final = 2.0  # between looks at whether a kind has workers left
START_S: Final = 60.0  # for the first worker to appear
_GONE: Final = (
    "the scheduler is gone; what was measured is recorded, and the same command goes on from there"
)
_AMPLE: Final = 1 << 20  # of a resource that only says where a task may run
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FarmMachine:
    """Machines whose times may be compared: ``name`` is their fingerprint.

    ``workers`` are the addresses of those that take times; a target's cores are those of one.
    """

    name: str
    target: Target
    compiler: str
    workers: tuple[str, ...]

    @property
    def is_device(self) -> bool:
        """Tell whether the times are those of a device, which is no CPU that runs C."""
        return self.target.backend != HOST

    def __str__(self) -> str:
        count = len(self.workers)
        return f"{self.target} ({count} worker{'s' * (count > 1)}, {self.name})"


@dataclass(frozen=True, slots=True)
class FarmTasks:
    """The functions that workers run; a rehearsal without real timings replaces some."""

    describe: Callable[..., Any] = tasks.describe
    measure_rates: Callable[..., Any] = tasks.measure_rates
    rank_schedules: Callable[..., Any] = tasks.rank_schedules
    compile_schedules: Callable[..., Any] = tasks.compile_schedules
    try_schedules: Callable[..., Any] = tasks.try_schedules
    compare_schedules: Callable[..., Any] = tasks.compare_schedules
    measure_peak: Callable[..., Any] = tasks.measure_peak
    search_schedules: Callable[..., Any] = tasks.search_schedules


class MachineResources(WorkerPlugin):  # type: ignore[misc]
    """Names what a worker is as its dask resources; those that join later have them as well."""

    name = "polysci-machine"

    def __init__(self, version: str) -> None:
        self.version = version

    async def setup(self, worker: Any) -> None:
        """Give the worker the resources of its machine and compiler, if it has our version."""
        described = tasks.describe(worker)
        if described["version"] != self.version:
            _log.warning("not used: polysci %s; expected %s", described["version"], self.version)
            return
        names = described["machine"], tasks.compiler_resource(described["compiler"])
        back = {TIMING: 1, ASIDE: 0} if described["resources"].get(ASIDE) else {}
        await worker.set_resources(**dict.fromkeys(names, _AMPLE), **back)
        if worker.status is Status.running:
            # The scheduler looks for tasks that no worker could run when one begins to, not when
            # its resources change.
            worker.status = Status.paused
            worker.status = Status.running


def result_of(future: Future) -> Any:
    """Return a task's result, once it is there. Raises what polysci raised there, and FarmError."""
    try:
        return future.result()  # a time limit would end what other threads gather, too
    except PolysciError:
        raise
    except (CancelledError, Exception) as error:
        if future.status == "error":
            raise FarmError(f"a worker failed: {error}") from error
        raise FarmError(_GONE) from None


def _result_or_death(future: Future) -> Mapping[str, Any]:
    try:
        answer: Mapping[str, Any] = result_of(future)
    except FarmError as error:
        if isinstance(error.__cause__, KilledWorker):
            return {"fault": f"the workers that ran it died: {error}", "kind": "CheckError"}
        raise
    return answer


async def _withdraw(dask_worker: Any) -> None:
    """Take the resource of timings from a worker; it still compiles."""
    await dask_worker.set_resources(**{TIMING: 0, ASIDE: 1})


@dataclass(slots=True)
class Farm:
    """The machines of a client, and what is known of their workers while it is used.

    One search works at a time in this process, inside ``turn``; others wait for their tasks.
    """

    client: Client
    machines: tuple[FarmMachine, ...]
    tasks: FarmTasks = field(default_factory=FarmTasks)
    turn: threading.Lock = field(default_factory=threading.Lock)
    stop: threading.Event = field(default_factory=threading.Event)
    searches: int = 0  # that have begun and not ended
    aside: list[str] = field(default_factory=list)  # addresses of workers, as they drifted
    _rates: dict[tuple[str, str], Future] = field(default_factory=dict)
    _loops: dict[tuple[str, int], dict[str, float]] = field(default_factory=dict)
    _drifts: dict[str, int] = field(default_factory=dict)  # of each worker, in a row
    _looks: dict[str, float] = field(
        default_factory=dict
    )  # when the workers of a kind were counted
    _lost: dict[str, bool] = field(default_factory=dict)  # kinds that had no worker then

    @contextmanager
    def wait(self) -> Iterator[None]:
        """Let other searches work until the end of the block."""
        self.turn.release()
        try:
            yield
        finally:
            self.turn.acquire()

    def time(
        self, machine: FarmMachine, function: Callable[..., Any], *calls: Sequence[Any]
    ) -> list[Future]:
        """Tasks that take times, a call each, alone on a machine of that kind."""
        return self._submit({TIMING: 1, machine.name: 1}, function, calls)

    def compute(
        self, machine: FarmMachine, function: Callable[..., Any], *calls: Sequence[Any]
    ) -> list[Future]:
        """Tasks for any worker that has the machine's compiler, a call each."""
        return self._submit({tasks.compiler_resource(machine.compiler): 1}, function, calls)

    def _submit(
        self, where: dict[str, int], function: Callable[..., Any], calls: Sequence[Sequence[Any]]
    ) -> list[Future]:
        """Submit calls as one message: a scheduler takes some ms for each. Raises FarmError."""
        if self.client.status != "running":  # dask would keep them until it is back, for a while
            raise FarmError(_GONE)
        columns = zip(*calls, strict=True)
        mapped: list[Future] = (
            self.client.map(function, *columns, resources=where, pure=False) if calls else []
        )
        return mapped

    def results(self, futures: Sequence[Future]) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Keys and answers of tasks that have ended, a fault where workers died.

        Raises FarmError for one that failed, after the answers of the others.
        """
        with self.wait():
            try:
                answers = self.client.gather({its.key: its for its in futures}, errors="skip")
            except (CancelledError, Exception):  # ``result_of`` tells what it is
                answers = {}
        for future in sorted(futures, key=lambda its: answers.get(its.key) is None):
            yield future.key, answers.get(future.key) or _result_or_death(future)

    def recall(self, keys: Container[str]) -> list[str]:
        """Return which of ``keys`` wait for workers set aside; none without a scheduler."""
        with suppress(OSError, CancelledError):
            busy = self.client.processing(self.aside)
            return [key for waiting in busy.values() for key in waiting if key in keys]
        return []

    def cancel(self, futures: Sequence[Future]) -> None:
        """End tasks that nobody needs, if there is a scheduler."""
        if futures and self.client.status == "running":
            with suppress(OSError, CancelledError):
                self.client.cancel(futures)

    def rates(self, machine: FarmMachine, x: str) -> Machine:
        """The rates of a kind of machine, measured by one of its workers unless it knows them.

        Those of devices are assumed.
        Raises FarmError, and KeyboardInterrupt once ``stop`` is set.
        """
        if machine.is_device:
            return assume_rates(machine.target)
        if (machine.name, x) not in self._rates:
            (self._rates[machine.name, x],) = self.time(machine, self.tasks.measure_rates, [x])
        return from_json(self.answer(machine, self._rates[machine.name, x]))

    def answer(self, machine: FarmMachine, future: Future) -> Any:
        """Return a task's result when it is there. Raises KeyboardInterrupt if ``stop`` is set."""
        done = threading.Event()
        future.add_done_callback(lambda _: done.set())
        while not done.is_set():
            if self.stop.is_set():
                raise KeyboardInterrupt
            with self.wait():
                done.wait(POLL_S)
            self.count_workers(machine)
        with self.wait():
            return result_of(future)

    def accepts(self, machine: FarmMachine, threads: int, worker: str, rate: float) -> bool:
        """Return whether a worker's times count: its loop is as fast as those of its kind are.

        The usual rate is the middle one of what all workers had last. Who is off twice in a row is
        set aside, if another worker is left.
        """
        loops = self._loops.setdefault((machine.name, threads), {})
        loops[worker] = rate
        usual = sorted(loops.values())[len(loops) // 2]
        slower, faster = rate < (1 - DRIFT) * usual, rate > (1 + DRIFT) * usual
        if not (slower or (faster and len(loops) > 2)) and worker not in self.aside:
            self._drifts[worker] = 0
            return True
        self._drifts[worker] = self._drifts.get(worker, 0) + 1
        return self._drifts[worker] > 1 and not self._set_aside(machine, worker)

    def count_workers(self, machine: FarmMachine) -> None:
        """Warn where no worker of a kind is left, as searches then wait for one; tell its end."""
        now = time.monotonic()
        if now < self._looks.setdefault(machine.name, now) + LOOK_S:  # plugins run first
            return
        self._looks[machine.name] = now
        with suppress(OSError, CancelledError):  # no scheduler: its tasks say so
            lost, before = not self._alive(machine), self._lost.get(machine.name, False)
            self._lost[machine.name] = lost
            if lost and not before:
                _log.warning("%s: no worker is left; waiting for one to join", machine)
            if before and not lost:
                _log.warning("%s: a worker has joined", machine)

    def _alive(self, machine: FarmMachine) -> set[str]:
        """The workers that take times on a kind of machine now, those that joined late as well."""
        workers = self.client.scheduler_info(n_workers=-1)["workers"]
        return {
            address for address, worker in workers.items()
            if worker["resources"].get(TIMING) and machine.name in worker["resources"]
        }  # fmt: skip

    def _set_aside(self, machine: FarmMachine, worker: str) -> bool:
        """Take no more times from a worker; False where no other one of its kind is left."""
        if not self._alive(machine) - {*self.aside, worker}:
            return False
        if worker not in self.aside:
            _log.warning(
                "%s: set aside, its reference loop has drifted; its times are repeated", worker
            )
            self.aside.append(worker)
            with suppress(OSError, CancelledError):  # no scheduler: its tasks say so
                self.client.run(_withdraw, workers=[worker])
        return True


def connect(client: Client, functions: FarmTasks | None = None, wait_s: float = START_S) -> Farm:
    """The farm of a client that has a scheduler. Waits for the first worker.

    Raises FarmError where there is none, where a worker lacks this version of polysci or a
    compiler, or where machines cannot be told apart in records.
    """
    chosen = functions or FarmTasks()
    try:
        client.wait_for_workers(1, timeout=wait_s)
        answers = client.run(chosen.describe, on_error="return")
    except TimeoutError:
        raise FarmError(
            f"{_address(client)}: no worker within {wait_s:g} s; start some: "
            f"polysci farm worker {_address(client)}"
        ) from None
    except OSError as error:
        raise FarmError(f"{_address(client)}: the scheduler does not answer: {error}") from error
    _check(answers)
    client.register_plugin(MachineResources(tasks.installed_version()))
    return Farm(client, _kinds(answers), chosen)


def _address(client: Client) -> str:
    return str(client.scheduler.address) if client.scheduler is not None else "scheduler"


def _check(answers: Mapping[str, Any]) -> None:
    """Raise FarmError for workers that cannot be used."""
    ours = tasks.installed_version()
    for address, answer in answers.items():
        if isinstance(answer, Exception) and "No module named 'polysci'" in str(answer):
            raise FarmError(f"{address}: polysci is not installed there; install {ours}")
        if isinstance(answer, Exception):
            raise FarmError(f"{address}: {answer}")
        if answer["version"] != ours:
            raise FarmError(
                f"{address}: polysci {answer['version']}, and this is {ours}: install the same"
            )
    if not any(map(_takes_times, answers.values())):
        raise FarmError(
            f"none of {len(answers)} workers has the resource {TIMING}=1, so none takes times: "
            f"start them by 'polysci farm worker', or with --resources '{TIMING}=1'"
        )


def _takes_times(answer: Mapping[str, Any]) -> bool:
    return bool(answer["resources"].get(TIMING) or answer["resources"].get(ASIDE))


def _kinds(answers: Mapping[str, Any]) -> tuple[FarmMachine, ...]:
    """The kinds of machines that take times: CPUs, the best instruction set first, then devices."""
    kinds: dict[str, FarmMachine] = {}
    for address, answer in sorted(answers.items()):
        if _takes_times(answer):
            name, target = answer["machine"], tasks.target_of(answer["target"])
            workers = (*(kinds[name].workers if name in kinds else ()), address)
            kinds[name] = FarmMachine(name, target, answer["compiler"], workers)
    hosts: dict[str, FarmMachine] = {}
    for kind in kinds.values():
        other = hosts.setdefault(host_of(kind.target), kind)
        if other is not kind:
            raise FarmError(
                f"{kind.workers[0]} and {other.workers[0]} differ in nothing but their compilers "
                f"({kind.compiler}; {other.compiler}), and records do not tell them apart: "
                "install the same"
            )
    order = [*DEVICE_ISAS, *ISAS]
    return tuple(
        sorted(kinds.values(), key=lambda kind: (-order.index(kind.target.isa.name), kind.name))
    )
