"""``--scheduler``: searches on the workers of a dask scheduler instead of this machine."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from polysci.cli import layers as shared
from polysci.errors import SpecError, UnsupportedError

if TYPE_CHECKING:
    from distributed import Client

    from polysci.cli.display import Display
    from polysci.export.candidates import SearchTarget
    from polysci.farm import Farm, FarmMachine, FarmResult
    from polysci.ops.problem import Problem
    from polysci.tune import Result, TunerOptions

_HERE = ("machine", "isa", "isas")  # options that say what the workers say


def scheduler_option(command: argparse.ArgumentParser) -> None:
    """Add ``--scheduler``."""
    command.add_argument(
        "--scheduler", metavar="ADDRESS",
        help="compile and time on the workers of this dask scheduler (tcp://HOST:8786), for every "
        "kind of machine among them; 'polysci farm worker ADDRESS' starts one",
    )  # fmt: skip


def check_dask() -> None:
    """Raise UnsupportedError that tells how to install dask, where it cannot be imported."""
    try:
        import distributed  # noqa: F401
    except ImportError:
        raise UnsupportedError("farms need dask.distributed: pip install 'polysci[farm]'") from None


@contextmanager
def connect_client(address: str) -> Iterator[Client]:
    """A dask client. Raises UnsupportedError without dask, FarmError without a scheduler."""
    check_dask()
    from distributed import Client

    from polysci.farm.addresses import ANSWER_S, check_certificates, greet, wait_for_port

    check_certificates(address, "client")
    wait_for_port(address)
    greet(address)
    # Of a scheduler that dies dask logs tracebacks; a FarmError says it in a line.
    logging.getLogger("distributed.client").setLevel(logging.CRITICAL)
    with Client(address, timeout=ANSWER_S, set_as_default=False) as client:
        yield client


@contextmanager
def farm_of(arguments: argparse.Namespace) -> Iterator[Farm]:
    """The farm of ``--scheduler``. Raises SpecError for options that its workers decide."""
    for option in _HERE:
        if getattr(arguments, option, None):
            raise SpecError(
                f"--{option}: the workers of --scheduler say what they are; POLYSCI_ISA caps one "
                "where it is started"
            )
    with connect_client(arguments.scheduler) as client:
        from polysci.farm import connect
        from polysci.farm.addresses import find_dashboard

        farm = connect(client)
        for machine in farm.machines:
            shared.say(f"{machine}")
        if dashboard := find_dashboard(client):
            shared.say(f"dashboard: {dashboard}")
        yield farm


def tune_on_farm(
    farm: Farm, todo: Sequence[Problem], arguments: argparse.Namespace, display: Display,
    tuner: TunerOptions | None = None,
) -> Iterator[FarmResult]:  # fmt: skip
    """The result of every layer on every kind of machine, as they come."""
    from polysci.farm import optimize_all

    options: dict[str, Any] = {
        name: getattr(arguments, name) for name in ("ranker", "algorithm", "reproducible")
    }
    options |= {"again": getattr(arguments, "again", False), "tuner": tuner}
    for layer in optimize_all(
        todo, farm, arguments.level, shared.threads_of(arguments),
        time_limit=arguments.time_limit, watch=display.watch_machine, **options,
    ):  # fmt: skip
        display.done(f"{layer.machine.target.isa} {describe(layer)}")
        yield layer


def describe(layer: shared.TunedLayer | FarmResult) -> str:
    """A line that says what the search of a layer found."""
    if layer.result is None:
        return f"{shared.title(layer.problem)}: FAILED: {layer.fault}"
    return describe_result(layer.result)


def describe_result(result: Result) -> str:
    """A line that says what a search found."""
    speed = f"{result.measurement.gflops:.1f} GFLOP/s" if result.measurement else "not run"
    mark = shared.mark_disturbed(result)
    return f"{shared.title(result.problem)}: {speed}{mark}, {result.schedule}, {result.spent:.1f} s"


def farm_targets(farm: Farm, x: str) -> list[SearchTarget]:
    """Return the search targets of what the farm measured for inputs of type ``x``.

    Of several kinds with the same instruction set that with the most workers counts; devices have
    no code in C. Raises SpecError where there are only such.
    """
    from polysci.export.candidates import SearchTarget

    machines = [machine for machine in farm.machines if not machine.is_device]
    if not machines:
        raise SpecError(
            "--scheduler: its workers take times on devices alone; --device writes code for one"
        )
    chosen: dict[str, FarmMachine] = {}
    for machine in sorted(machines, key=lambda kind: len(kind.workers)):
        chosen[machine.target.isa.name] = machine
    targets = []
    for machine in machines:
        if machine not in chosen.values():
            shared.say(f"{machine}: another kind with {machine.target.isa} has more workers")
            continue
        with farm.turn:
            rates = farm.rates(machine, x)
        targets.append(SearchTarget(machine.target, rates, "wisdom-only"))
    return targets
