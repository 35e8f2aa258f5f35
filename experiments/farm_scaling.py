"""How well does a farm keep 64 workers busy? With a stand-in for timings that sleeps.

All workers, their scheduler and the search run in threads of this process, so one core does the
work of 66 processes: what a farm of machines loses is less. Nothing is compiled.

    python experiments/farm_scaling.py [--workers 64] [--rounds 20] [--seconds 1]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import dask
from distributed import Client, LocalCluster, get_worker

from polysci import parse_problem
from polysci.algorithms import choice
from polysci.farm import Farm, FarmTasks, connect, tasks
from polysci.farm.runner import FarmRunner
from polysci.target.machine import assume_rates
from polysci.tune import context_of


def compile_nothing(job: Mapping[str, Any], texts: Sequence[str]) -> tasks.Answer:
    """In place of a compilation."""
    return {"built": []}


def sleep(job: Mapping[str, Any], texts: Sequence[str], *built: Any) -> tasks.Answer:
    """In place of a timing; the problem's layout says how many seconds it takes."""
    time.sleep(float(job["layout"]))
    rows = [{"samples": [{"seconds": 1e-3}] * 5} for _ in texts]
    return {"worker": get_worker().address, "rate": 1.0, "rows": rows}


def run(farm: Farm, rounds: int, seconds: float) -> tuple[int, float]:
    """How many schedules were tried, and in how many seconds."""
    (machine,) = farm.machines
    problem = parse_problem("mm:256x256x256")
    context = context_of(problem, target=machine.target, machine=assume_rates(machine.target))
    wanted = rounds * len(machine.workers)
    ranked = choice.candidates(problem, context, wanted, tiles=40, blocks=3)
    runner = FarmRunner(farm, machine, None, problem, context)
    runner.job["layout"] = str(seconds)
    with farm.turn:
        start = time.monotonic()
        answers = list(runner.try_all([candidate.schedule for candidate in ranked]))
        return len(answers), time.monotonic() - start


def main() -> None:
    """Print the efficiency for 16 and for all workers, and what a schedule costs the farm."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=20, help="schedules for each worker")
    parser.add_argument("--seconds", type=float, default=1.0, help="of a timing")
    arguments = parser.parse_args()
    functions = replace(FarmTasks(), compile_schedules=compile_nothing, try_schedules=sleep)
    print("workers  schedules  seconds  efficiency  overhead a schedule")
    dask.config.set({"distributed.worker.profile.enabled": False})  # it samples 64 times here
    for count in dict.fromkeys((16, arguments.workers)):
        with (
            LocalCluster(
                n_workers=count, threads_per_worker=1, processes=False, resources={"timing": 1},
                dashboard_address=":0",
            ) as cluster,
            Client(cluster) as client,
        ):  # fmt: skip
            number, spent = run(connect(client, functions), arguments.rounds, arguments.seconds)
        ideal = number * arguments.seconds / count
        cost = 1e3 * (spent - ideal) / number
        print(
            f"{count:7} {number:10} {spent:8.2f} {ideal / spent:11.3f} {cost:16.2f} ms", flush=True
        )


if __name__ == "__main__":
    main()
