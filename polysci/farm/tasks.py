"""Functions that the workers of a farm run; texts and numbers go in and come out."""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from types import MappingProxyType
from typing import Any, Final

from polysci import errors
from polysci.cost import Context
from polysci.cost.weights import from_json as weights_of
from polysci.errors import PolysciError
from polysci.lower import choice
from polysci.measure.samples import Sample, Samples
from polysci.ops import parse_problem
from polysci.ops.model import model_of
from polysci.ops.problem import Problem
from polysci.runtime.backends import backend_named, backend_of, device_named
from polysci.runtime.build import cache as build_cache
from polysci.runtime.measurement import host_digest
from polysci.runtime.source import emit
from polysci.space import schedule
from polysci.target.extensions import resource
from polysci.target.host import detect
from polysci.target.isas import isa_of
from polysci.target.machine import assume_rates, from_json
from polysci.target.target import HOST, ComputeUnit, Memory, Target
from polysci.tune import optimize
from polysci.tune.calibrate import machine_of
from polysci.tune.runner import FaultyScheduleError, LocalRunner
from polysci.tune.wisdom import Record, Wisdom
from polysci.version import __version__


@contextmanager
def share_machine() -> Iterator[None]:
    """Work beside other work, but not beside a timing. Waits for the one that runs."""
    with _machine_lock("turn", fcntl.LOCK_EX):
        lock = _open("machine", fcntl.LOCK_SH)
    try:
        yield
    finally:
        os.close(lock)


@contextmanager
def own_machine() -> Iterator[None]:
    """The machine alone, as far as workers of farms use it. Waits for what they do.

    Who waits for it holds back those that come later, as they would keep the machine from it.
    """
    with _machine_lock("turn", fcntl.LOCK_EX), _machine_lock("machine", fcntl.LOCK_EX):
        yield


@contextmanager
def _machine_lock(name: str, kind: int) -> Iterator[None]:
    lock = _open(name, kind)
    try:
        yield
    finally:
        os.close(lock)


def _open(name: str, kind: int) -> int:
    """A locked file of this user and host, of any cache directory; closing it unlocks it."""
    folder = Path(tempfile.gettempdir())
    path = folder / f"polysci-{os.getuid()}-{platform.node()}-{name}.lock"
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise PolysciError(
            f"{path}: {error.strerror}; remove it, or give this worker another TMPDIR"
        ) from error
    fcntl.flock(file, kind)
    return file


Answer = dict[str, Any]
_ROOT: Final = Path(__file__).resolve().parents[1]
_KEPT: Final = 2  # runners: as many searches as a worker has at a time
_runners: dict[str, LocalRunner] = {}  # the last ones that were used, the last one at the end
_lock = Lock()


@dataclass(frozen=True, slots=True)
class TrialJob:
    """A problem that is searched: its words, threads, and the least that the reference loop does.

    ``machine`` is the fingerprint of the machines on which it is timed.
    """

    problem: str
    layout: str
    dtype: str
    threads: int
    machine: str
    usual: float = 0.0

    @classmethod
    def of(cls, problem: Problem, threads: int, machine: str, usual: float) -> TrialJob:
        return cls(str(problem), problem.layout, problem.dtype, threads, machine, usual)

    def parse(self) -> Problem:
        return parse_problem(self.problem, self.layout, self.dtype)


@cache
def installed_version() -> str:
    """The version of polysci, and a digest of its modules and kernels: development changes them."""
    digest = hashlib.sha256()
    for folder, pattern in ((_ROOT, "**/*.py"), (resource("microkernels"), "*")):
        for path in sorted(folder.glob(pattern)):
            if path.is_file() and "_data" not in path.relative_to(folder).parts:
                digest.update(path.name.encode() + path.read_bytes())
    return f"{__version__}+{digest.hexdigest()[:8]}"


DEVICE: Final = "device-"  # of the resource that names the device of a worker, if it has one


def worker_target(resources: Mapping[str, Any]) -> Target:
    """Return the device on which a worker with these resources takes times, by default its CPU.

    Raises UnsupportedError for a device that is not there.
    """
    names = [name.removeprefix(DEVICE) for name in resources if name.startswith(DEVICE)]
    return (device_named(names[0]) if names else None) or detect()


def describe(dask_worker: Any = None) -> Answer:
    """Return a worker's version, machine and compiler.

    Raises NoCompilerError, or UnsupportedError for a device that is not there.
    """
    state = dask_worker.state if dask_worker is not None else None
    resources = dict(state.total_resources) if state else {}
    target = worker_target(resources)
    compiler = backend_of(target).compiler
    return {
        "version": installed_version(),
        "target": members_of(target),
        "compiler": compiler,
        "machine": fingerprint(target, compiler),
        "resources": resources,
        "threads": state.nthreads if state else 1,
    }


def fingerprint(target: Target, compiler: str) -> str:
    """The name of all machines whose times may be compared: features, caches and compiler."""
    device = "" if target.backend == HOST else f" {target.model_name}"
    return "machine-" + host_digest(f"{target} {target.features} {compiler}{device}")


def compiler_resource(compiler: str) -> str:
    """The name of all machines that compile to the same bytes."""
    return "compiler-" + host_digest(compiler)


def members_of(target: Target) -> Answer:
    """Return the description of a target."""
    return asdict(target) | {"isa": target.isa.name}


def target_of(members: Mapping[str, Any]) -> Target:
    """Return the target of a description."""
    lists = {name: tuple(members[name]) for name in ("features", "assumed", "withheld")}
    memories = tuple(Memory(**memory) for memory in members["memories"])
    own = {
        "memories": memories,
        "isa": isa_of(members["isa"]),
        "unit": ComputeUnit(**members["unit"]),
    }
    return Target(**{**members, **lists, **own})


def measure_rates(x: str) -> str:
    """The rates of this machine with kernels for inputs of type ``x``, as JSON; calibrated once."""
    with own_machine():
        return machine_of(detect(), lambda done, total: None, x).to_json()


def rank_schedules(
    job: Mapping[str, Any], target: Mapping[str, Any], machine: str, weights: str | None,
    options: Mapping[str, Any],
) -> Answer:  # fmt: skip
    """Schedules and predicted seconds, as ``choice.candidates`` finds them with ``options``."""
    its = TrialJob(**job)

    def rank() -> Answer:
        problem = its.parse()
        _, roles, strides = model_of(problem)
        context = Context(
            roles, strides, target_of(target), from_json(machine), its.threads,
            weights=weights_of(weights) if weights else None,
        )  # fmt: skip
        ranked = choice.candidates(problem, context, **options)
        return {"ranked": [(str(option.schedule), option.seconds) for option in ranked]}

    with share_machine():
        return _attempt(rank)


def compile_schedules(job: Mapping[str, Any], texts: Sequence[str]) -> Answer:
    """The shared object of each schedule, as ``cache.pack`` packs it, or its fault."""
    with share_machine():
        return {"built": [_attempt(partial(_pack_build, TrialJob(**job), text)) for text in texts]}


def _pack_build(job: TrialJob, text: str) -> Answer:
    parsed, problem = schedule.parse(text), job.parse()
    backend = backend_named(HOST)
    source = emit(problem, parsed, job.threads)
    key, entry, code = build_cache.pack(backend.build(source.file, symbols=source.symbols))
    return {"key": key, "entry": entry, "code": code}


def try_schedules(job: Mapping[str, Any], built: Sequence[Answer], texts: Sequence[str]) -> Answer:
    """A few samples of each schedule, or its fault; and what the reference loop did beside them.

    ``built`` has their shared objects: where this compiler would write another one, it does.
    """
    return _run(
        job, built,
        lambda runner: [
            _members(samples) for _, samples in runner.try_all([*map(schedule.parse, texts)])
        ],
    )  # fmt: skip


def compare_schedules(
    job: Mapping[str, Any], built: Sequence[Answer], texts: Sequence[str],
    options: Mapping[str, Any],
) -> Answer:  # fmt: skip
    """Samples taken in turns; where one fails its text is ``guilty``."""
    schedules = [*map(schedule.parse, texts)]
    return _run(job, built, lambda runner: [*map(_members, runner.compare(schedules, **options))])


def search_schedules(
    job: Mapping[str, Any], built: Sequence[Answer], options: Mapping[str, Any]
) -> Answer:
    """The records of a whole search by this worker; ``options`` as ``search_records`` has them."""
    return _run(
        job, built,
        lambda runner: search_records(TrialJob(**job), lambda *_: nullcontext(runner), **options),
    )  # fmt: skip


def search_records(
    job: TrialJob, make_runner: Callable[..., Any], machine: str,
    seeds: Sequence[Mapping[str, Any]], **options: Any,
) -> list[Answer]:  # fmt: skip
    """Return the records of ``optimize``, given only ``seeds``; ``machine`` are rates as JSON."""
    with TemporaryDirectory() as folder:
        wisdom = Wisdom(Path(folder) / "records.sqlite")
        wisdom.merge(Record(**record) for record in seeds)
        optimize(
            job.parse(), threads=job.threads, machine=from_json(machine), wisdom=wisdom,
            make_runner=make_runner, **options,
        )  # fmt: skip
        return [asdict(record) for record in wisdom.list()]


def measure_peak(job: Mapping[str, Any], built: Sequence[Answer]) -> Answer:
    """A ``Sample`` of one core that does nothing but this problem's multiplications."""
    return _run(job, built, lambda runner: [asdict(runner.peak())])


def _run(
    job: Mapping[str, Any], built: Sequence[Answer], work: Callable[[LocalRunner], list[Any]]
) -> Answer:
    from distributed import get_worker

    worker = get_worker()
    answer: Answer = {"worker": worker.address}
    with _lock, own_machine():
        for packed in built:
            if "fault" not in packed:
                build_cache.unpack(packed["key"], packed["entry"], packed["code"])

        def rows() -> Answer:
            runner = _runner(TrialJob(**job), worker_target(worker.state.total_resources))
            return {"rows": work(runner), "rate": runner.reference_rate()}

        return answer | _attempt(rows)


def _runner(job: TrialJob, target: Target) -> LocalRunner:
    """The runner of a job, whose process may have the problem's inputs since the last one."""
    key = f"{job!r} {target.backend}"
    if key not in _runners:
        if len(_runners) == _KEPT:
            _runners.pop(next(iter(_runners))).__exit__(None, None, None)
        problem = job.parse()
        _, roles, strides = model_of(problem)
        context = Context(roles, strides, target, assume_rates(target), job.threads)
        _runners[key] = LocalRunner(problem, context, job.usual).__enter__()
    _runners[key] = _runners.pop(key)
    return _runners[key]


def _attempt(work: Callable[[], Answer]) -> Answer:
    try:
        return work()
    except PolysciError as error:
        guilty = {"guilty": str(error.schedule)} if isinstance(error, FaultyScheduleError) else {}
        return {"fault": str(error), "kind": type(error).__name__, **guilty}


def _members(samples: Samples | PolysciError) -> Answer:
    if isinstance(samples, PolysciError):
        return {"fault": str(samples), "kind": type(samples).__name__}
    return {"samples": [asdict(sample) for sample in samples.taken]}


def samples_of(members: Mapping[str, Any]) -> Samples | PolysciError:
    """Return the samples or the error of one schedule in an answer of ``try_schedules``."""
    if "fault" in members:
        return error_of(members)
    return Samples([Sample(**sample) for sample in members["samples"]])


def error_of(members: Mapping[str, Any]) -> PolysciError:
    """The error that a worker met."""
    return _KINDS.get(members["kind"], PolysciError)(members["fault"])


_KINDS: Mapping[str, type[PolysciError]] = MappingProxyType(
    {
        kind.__name__: kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, PolysciError)
    }
)
