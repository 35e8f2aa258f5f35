"""How good are the model's first choices on every CPU whose samples are kept?

For each CPU with a machine file in machines/sampled/ and records in results.tar.xz, by threads and
warm or cold caches: the least time of a layer's sample over that of the model's first choice, as
geometric mean over the layers and of the worst one. 1 is perfect, 0.9 means 10 % of the speed given
away. The columns differ in the coefficients of the model:

  kept    those of the machine file; where it has none, the priors
  own     fitted to the samples of this CPU, one thread, warm
  others  fitted to those of all other CPUs: what a CPU gets that was never measured

Rates (peak, bandwidths, kernels) are those of the machine file in all columns. Nothing is run, and
the same records give the same table on every machine. Writes model_quality.csv, a row a layer.
With --against FILE, such a table of another version, it tells of what became worse and fails.
"""

from __future__ import annotations

import csv
import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

import numpy as np
import records
import script

from polysci.cost import Context, metrics
from polysci.cost.batch import batch
from polysci.cost.traffic import traffic, work
from polysci.errors import SpecError
from polysci.ops.model import model_of
from polysci.space import schedule
from polysci.target import machine_file
from polysci.target.coefficients import PRIORS
from polysci.target.machine import Machine
from polysci.text.tables import columns
from polysci.tune.fit import fit

MACHINES = Path(__file__).parent / "machines/sampled"
SAMPLES: Mapping[str, str] = MappingProxyType(
    {
        "amd-avx512bf16": records.SAMPLE,
        "amd-avx2": "sample_gemms.jsonl",
        "amd-zen5": "sample_products.jsonl",
    }
)
FITTED = "1 warm"  # the setting that calibrations fit to
COLUMNS = ("kept", "own", "others")
WORSE = 1e-3  # of a geometric mean or worst case: less is a tie that fell otherwise


@dataclass(frozen=True, slots=True)
class SampledCpu:
    """A CPU's machine file and the layers that were measured on it."""

    name: str
    file: machine_file.MachineFile
    layers: tuple[records.Layer, ...]

    def context(self, layer: records.Layer, machine: Machine) -> Context:
        _, roles, strides = model_of(layer.problem)
        cold = layer.setting.endswith("cold")
        return Context(roles, strides, self.file.target, machine, layer.threads, cold)

    def costs(self, layer: records.Layer, machines: Sequence[Machine]) -> list[np.ndarray]:
        """Predicted seconds of a layer's schedules with each of the machines."""
        schedules = [schedule.parse(text) for text in layer.schedules]
        seconds = [np.zeros(len(schedules)) for _ in machines]
        for part in batch(self.context(layer, self.file.machine), schedules):
            for costs, machine in zip(seconds, machines, strict=True):
                context = replace(part.context, machine=machine)
                costs[part.indices] = traffic(context, part.family).seconds
        return seconds

    def rows_to_fit(self) -> Iterator[tuple[float, float, dict[str, float], float]]:
        """The layers of one thread and warm caches, as the fit of a calibration takes them."""
        for layer in self.layers:
            if layer.setting != FITTED:
                continue
            least = float(layer.seconds.min())
            parsed = [schedule.parse(text) for text in layer.schedules]
            for part in batch(self.context(layer, self.file.machine), parsed):
                fixed, counts = work(part.context, part.family)
                for at, index in enumerate(part.indices):
                    own = {name: float(count[at]) for name, count in counts.items()}
                    yield float(layer.seconds[index]), float(fixed[at]), own, least


def main() -> int:
    parser = script.options(__doc__, sample=False)
    parser.add_argument(
        "--against", type=Path, metavar="FILE", help="the model_quality.csv of another version"
    )
    return script.run(judge, parser.parse_args())


def judge(arguments: Namespace) -> bool:
    """Fit, score, write, print; SpecError where something became worse than in ``--against``."""
    before = _read_scores(arguments.against) if arguments.against else []
    cpus = [read_cpu(name, arguments.quick) for name in SAMPLES]
    fits = {cpu.name: list(cpu.rows_to_fit()) for cpu in cpus}
    rows = [row for cpu in cpus for row in score(cpu, machines_of(cpu, fits))]
    path = script.stem(arguments, "model_quality").with_suffix(".csv")
    script.write_csv(path, rows)
    print(table(rows))
    if worse := compare(before, rows):
        raise SpecError(f"worse than in {arguments.against}: {'; '.join(worse)}")
    return True


def read_cpu(name: str, quick: bool) -> SampledCpu:
    """A CPU with its layers; with ``quick`` three of each setting."""
    layers = list(script.sampled(records.SHIPPED, quick, member=SAMPLES[name]))
    return SampledCpu(name, machine_file.read(MACHINES / f"{name}.toml"), tuple(layers))


def machines_of(cpu: SampledCpu, fits: Mapping[str, list]) -> list[Machine]:
    """The machine of a CPU with the coefficients of each column, from the same priors."""
    kept = cpu.file.machine
    unfitted = kept.with_coefficients(PRIORS)
    others = [row for name, its in fits.items() if name != cpu.name for row in its]
    fitted = [fit(rows, unfitted) for rows in (fits[cpu.name], others)]
    return [kept, *(unfitted.with_coefficients(found.values, found.errors) for found in fitted)]


def score(cpu: SampledCpu, machines: Sequence[Machine]) -> Iterator[script.Row]:
    """One row a layer: what the model's first choice reaches with each column's coefficients."""
    for layer in cpu.layers:
        costs = cpu.costs(layer, machines)
        reached = [metrics.best_of_top(cost, layer.seconds) for cost in costs]
        yield {
            "cpu": cpu.name, "setting": layer.setting, "network": layer.network,
            "problem": layer.problem.key, "schedules": len(layer.seconds),
            **dict(zip(COLUMNS, reached, strict=True)),
        }  # fmt: skip


def summarise(rows: Sequence[Mapping[str, object]]) -> dict[tuple[str, str], list[float]]:
    """Geometric mean and worst case of each column, by CPU and setting."""
    groups: dict[tuple[str, str], list[Mapping[str, object]]] = {}
    for row in rows:
        groups.setdefault((str(row["cpu"]), str(row["setting"])), []).append(row)
    summary = {}
    for key, its in groups.items():
        values = [[float(str(row[name])) for row in its] for name in COLUMNS]
        summary[key] = [part for own in values for part in (script.geomean(own), min(own))]
    return summary


def table(rows: Sequence[Mapping[str, object]]) -> str:
    """The summary as text."""
    head = ["CPU", "threads, caches", *(word for name in COLUMNS for word in (name, "worst"))]
    cells = [
        [*key, *(f"{value:.3f}" for value in values)] for key, values in summarise(rows).items()
    ]
    return columns([head, *cells], (0, 1))


def compare(
    before: Sequence[Mapping[str, object]], after: Sequence[Mapping[str, object]]
) -> list[str]:
    """Which figures are worse than before, in words."""
    names = [word for name in COLUMNS for word in (name, f"worst, {name}")]
    now = summarise(after)
    return [
        f"{' '.join(key)}: {name} {old:.3f} to {new:.3f}"
        for key, values in summarise(before).items()
        if key in now
        for name, old, new in zip(names, values, now[key], strict=True)
        if new < old - WORSE
    ]


def _read_scores(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


if __name__ == "__main__":
    sys.exit(main())
