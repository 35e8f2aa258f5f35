"""A network whose C is decided, for this machine or for another: nothing has to run."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

from polysci.errors import PolysciError
from polysci.loop_ir.nodes import LoopModule
from polysci.network.build import ports
from polysci.network.code import Code
from polysci.network.network_records import NetworkRecords
from polysci.network.network_tuner import NetworkTuner
from polysci.network.options import PlanOptions, Watch
from polysci.network.prepare import PreparedNetwork, generate_code, search_schedules
from polysci.network.retune import retune
from polysci.network.runner import TensorPort
from polysci.space.schedule import Schedule
from polysci.tune import Progress, Result, TunerOptions
from polysci.tune.result import highest_cost
from polysci.tune.wisdom import Wisdom

_log = logging.getLogger(__name__)


_NARROW: Final = ("bf16", "float16", "int8", "uint8")


@dataclass(frozen=True, slots=True)
class NetworkSummary:
    """Of a network: its stages, the seconds predicted of its layers, what its errors depend on.

    ``narrow``: tensors have 16 bits or fewer; those of 8 bits may round the other way. ``direct``:
    all layers are computed as they are defined, none by a transform. ``any_order_cost``: as
    ``highest_cost`` has it, of reproducible sums.
    """

    stages: int
    predicted: float | None
    narrow: bool
    direct: bool
    any_order_cost: float | None = None


@dataclass(slots=True)
class PlannedNetwork:
    """The C of a network and what it consists of.

    ``prepared``, ``code``, and by the key of a problem ``schedules`` say what that is, ``results``
    what the searches of its layers found alone, ``options`` what it was asked for, ``seconds`` how
    long all of it took.
    """

    prepared: PreparedNetwork
    results: Mapping[str, Result]
    schedules: Mapping[str, Schedule]
    code: Code
    options: PlanOptions
    seconds: float
    known: NetworkSummary | None = field(default=None, kw_only=True)  # what ``summary`` would find

    @property
    def summary(self) -> NetworkSummary:
        """What can be told without the network's stages once it was."""
        if self.known:
            return self.known
        program = self.prepared.program
        seconds = [result.predicted for result in self.results.values()]
        return NetworkSummary(
            len(program.stages),
            sum(seconds) if seconds else None,
            any(value.dtype in _NARROW for value in program.values.values()),
            all(schedule.transform is None for schedule in self.schedules.values()),
            highest_cost(self.results.values()),
        )

    @property
    def name(self) -> str:
        """What files and symbols begin with."""
        return self.code.name

    @property
    def threads(self) -> int:
        return self.options.threads

    @property
    def dtype(self) -> str:
        return self.options.dtype

    @property
    def ir(self) -> LoopModule:
        """The loop IR of all stages and layers; ``str`` of it is readable text."""
        return self.code.module

    @property
    def source(self) -> str:
        """The C files one after the other, a comment with the file's name above each."""
        return with_names(self.code.files)

    @property
    def inputs(self) -> tuple[TensorPort, ...]:
        return ports(self.code)[0]

    @property
    def outputs(self) -> tuple[TensorPort, ...]:
        return ports(self.code)[1]


def with_names(texts: Mapping[str, str]) -> str:
    """Return texts of files one after the other, a comment with the file's name above each."""
    return "\n".join(f"/* {name} */\n{text}" for name, text in texts.items())


Planned = TypeVar("Planned", bound=PlannedNetwork)


def use_pool(network: Planned, pool: str) -> Planned:
    """The same network with code for threads that ``pool`` starts; here OpenMP's run it still."""
    if pool == network.code.pool:
        return network
    code = generate_code(
        network.prepared.placed, network.schedules, network.name, network.options, pool=pool
    )
    return replace(network, code=code)


def plan_network(
    prepared: PreparedNetwork,
    options: PlanOptions,
    name: str,
    *,
    wisdom: Wisdom | None = None,
    time_limit: float | None = None,
    watch: Watch | None = None,
    tuner: TunerOptions | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> PlannedNetwork:
    """Schedules and C of a prepared network.

    A ``tuner`` begins with what that is without one, has half of the time, and tells ``progress``.
    """
    start = time.monotonic()
    known = wisdom if wisdom is not None else Wisdom()
    if tuner is None and not options.machine:
        recorded = _recorded(prepared, options, name, known)
        if recorded is not None:
            return replace(recorded, seconds=time.monotonic() - start)
    until = None if time_limit is None else start + time_limit
    results = search_schedules(
        prepared, options, wisdom=wisdom, watch=watch,
        time_limit=time_limit / 2 if time_limit and tuner else time_limit,
    )  # fmt: skip
    whole, chosen = retune(prepared, results, options, name, wisdom)
    if tuner is None:
        code = generate_code(whole.placed, chosen, name, options)
    else:
        search = NetworkTuner(
            prepared, results, chosen, options, name, known, progress, until
        )  # fmt: skip
        tuned = search.run(tuner)
        whole, chosen, code = tuned.prepared, dict(tuned.schedules), tuned.code
    return PlannedNetwork(whole, results, chosen, code, options, time.monotonic() - start)


def _recorded(
    prepared: PreparedNetwork, options: PlanOptions, name: str, wisdom: Wisdom
) -> PlannedNetwork | None:
    """What an earlier tuner chose, if that still works."""
    try:
        texts = NetworkRecords(prepared.graph, options, wisdom).best()
        if texts is None:
            return None
        results = search_schedules(prepared, replace(options, level="estimate"), wisdom=wisdom)
        chosen = {key: result.schedule for key, result in results.items()}
        tuned = NetworkTuner(prepared, results, chosen, options, name, wisdom).network_of(texts)
    except PolysciError as error:
        _log.warning("ignoring the record of %s: %s", name, error)
        return None
    schedules = dict(tuned.schedules)
    return PlannedNetwork(tuned.prepared, results, schedules, tuned.code, options, 0.0)
