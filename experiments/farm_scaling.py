"""How well does a farm keep 64 workers busy? With a stand-in for timings that sleeps.

A scheduler, processes with many workers each and the searching process share this machine's cores,
so what a farm of machines loses is less. Nothing is compiled; a timing sleeps for --seconds a
schedule (of ResNet-50's layers a real one takes 0.1 to 0.3 s).

    python experiments/farm_scaling.py [--workers 64] [--rounds 100] [--seconds 0.2]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import cycle, islice
from multiprocessing import get_context
from typing import Any

import dask
from distributed import Client, LocalCluster, Worker, get_worker

from polysci import parse_problem
from polysci.farm import Farm, FarmTasks, connect, tasks
from polysci.farm.tuning import FarmRunner
from polysci.lower import choice
from polysci.target.machine import assume_rates
from polysci.tune import context_of

PROCESSES = 4
DIFFERENT = 500  # schedules, taken several times over
ALONE = {  # what a worker does every 20 ms and every 500 ms is nothing on a machine of its own
    "distributed.worker.profile.enabled": False,
    "distributed.admin.tick.interval": "10s",
    "distributed.admin.system-monitor.interval": "10s",
    "logging.distributed": "warning",
}
PAUSE = "POLYSCI_EXPERIMENT_PAUSE"  # seconds that a schedule's timing takes


def compile_nothing(job: Mapping[str, Any], texts: Sequence[str]) -> tasks.Answer:
    """In place of a compilation."""
    return {"built": []}


def sleep(job: Mapping[str, Any], built: Any, texts: Sequence[str]) -> tasks.Answer:
    """In place of a timing."""
    time.sleep(float(os.environ[PAUSE]) * len(texts))
    rows = [{"samples": [{"seconds": 1e-3}] * 5} for _ in texts]
    return {"worker": get_worker().address, "rate": 1.0, "rows": rows}


def serve(address: str, count: int) -> None:
    """Be ``count`` workers, until the scheduler ends."""

    async def work() -> None:
        options = {"nthreads": 1, "resources": {"timing": 1}, "dashboard": False}
        workers = [Worker(address, **options) for _ in range(count)]
        await asyncio.gather(*workers)
        await asyncio.gather(*(worker.finished() for worker in workers))

    dask.config.set(ALONE)
    asyncio.run(work())


@contextmanager
def cluster(count: int) -> Iterator[Client]:
    """A client of ``count`` workers; the scheduler has a process of its own as well."""
    spawn = get_context("spawn")
    address, end = spawn.Pipe()
    processes = [spawn.Process(target=schedule, args=(end,), daemon=True)]
    processes[0].start()
    where = address.recv()
    for number in range(PROCESSES):
        share = count // PROCESSES + (number < count % PROCESSES)
        processes.append(spawn.Process(target=serve, args=(where, share), daemon=True))
        processes[-1].start()
    try:
        with Client(where) as client:
            client.wait_for_workers(count)
            yield client
    finally:
        for process in processes:
            process.terminate()


def schedule(end: Any) -> None:
    """Be the scheduler."""
    with LocalCluster(n_workers=0, dashboard_address=":0") as running:
        end.send(running.scheduler_address)
        time.sleep(1e6)


def run(farm: Farm, rounds: int) -> tuple[int, float]:
    """How many schedules were tried, and in how many seconds."""
    (machine,) = farm.machines
    problem = parse_problem("mm:256x256x256")
    context = context_of(problem, target=machine.target, machine=assume_rates(machine.target))
    ranked = [its.schedule for its in choice.candidates(problem, context, DIFFERENT)]
    schedules = list(islice(cycle(ranked), rounds * len(machine.workers)))
    runner = FarmRunner(farm, machine, None, problem, context)
    with farm.turn:
        start = time.monotonic()
        answers = list(runner.try_all(schedules))
        return len(answers), time.monotonic() - start


def main() -> None:
    """Print the efficiency for 16 and for all workers, and what a schedule costs the farm."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=100, help="schedules for each worker")
    parser.add_argument("--seconds", type=float, default=0.2, help="of a schedule's timing")
    arguments = parser.parse_args()
    os.environ[PAUSE] = str(arguments.seconds)
    functions = replace(FarmTasks(), compile_schedules=compile_nothing, try_schedules=sleep)
    print("workers  schedules  seconds  efficiency  overhead a schedule")
    for count in dict.fromkeys((16, arguments.workers)):
        with cluster(count) as client:
            number, spent = run(connect(client, functions), arguments.rounds)
        ideal = number * arguments.seconds / count
        cost = 1e3 * (spent - ideal) / number
        print(
            f"{count:7} {number:10} {spent:8.2f} {ideal / spent:11.3f} {cost:16.2f} ms", flush=True
        )


if __name__ == "__main__":
    main()
