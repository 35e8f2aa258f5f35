"""How far do the coefficients of single CPUs lie from the priors of the cost model?

For each CPU whose samples are kept (those of model_quality.py, one thread, warm): the coefficients
fitted to its samples; of those that no calibration fits, the value among RATIOS times the prior
with which the fit leaves the least error; and what its calibration probed, where it is kept. The
standard error of a prior is the root mean square of what the CPUs' own values differ from it, and
of their standard errors: what a CPU may expect that was never measured. They stand in
polysci/target/coefficients.py. Nothing is run. Writes priors.csv, a row a coefficient; an empty
cell means that nothing that is kept of the CPU tells its value.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import model_quality
import numpy as np
import script

from polysci.target.coefficients import DEVICES, FITTED, PRIORS, TABLE
from polysci.text.tables import columns
from polysci.tune.fit import SLOW, Row, fit, fit_latency

RATIOS: Final = (0.5, 0.7, 1.0, 1.4, 2.0)  # of the prior
DISTINCT: Final = 0.002  # of the fit's error: less tells no values apart
MOST: Final = 12  # schedules of each layer: enough, and the script ends within minutes
PROBED: Final = tuple(
    name for name, row in TABLE.items() if row.source == "probed" and name not in DEVICES
)
# Coefficients that no calibration finds, and on which the kept samples may depend.
OTHERS: Final = (
    "scattered_store", "sparse_store", "usable_cache", "usable_ways", "usable_ways_rows",
    "stray_seek", "translations", "skipped_line", "copy_kept", "short_run_ns", "l1_conflict",
    "first_reads_memory", "late_prefetches",
)  # fmt: skip


def main() -> int:
    return script.run(compare, script.options(__doc__, sample=False).parse_args())


def compare(arguments: Namespace) -> bool:
    """Fit every CPU, write and print the values and their distance from the priors."""
    cpus = [model_quality.read_cpu(name, arguments.quick) for name in model_quality.SAMPLES]
    found = {cpu.name: own_values(cpu) for cpu in cpus}
    rows = [row_of(name, found) for name in (*FITTED, *PROBED, *OTHERS)]
    script.write_csv(script.stem(arguments, "priors").with_suffix(".csv"), rows)
    head = [*rows[0]]
    print(columns([head, *([str(row[key]) for key in head] for row in rows)], (0,)))
    return True


def own_values(cpu: model_quality.SampledCpu) -> dict[str, tuple[float, float]]:
    """The coefficients of a CPU, and the standard error of each.

    Those that its samples tell, else those that its calibration found.
    """
    own, prior = cpu.file.machine, cpu.file.machine.with_coefficients(PRIORS)
    fitted = fit([*cpu.rows_to_fit()], prior)
    calibrated = fit_latency(own) if own.measured else prior
    values = {
        name: (calibrated.coefficient(name), calibrated.errors.get(name, 0.0))
        for name in (*FITTED, *PROBED)
        if calibrated.coefficient(name) != TABLE[name].prior
    }
    values |= {name: (value, fitted.errors[name]) for name, value in fitted.values.items()}
    few = _thin(cpu)
    for name in OTHERS:
        most = 1.0 if TABLE[name].unit == "share" else np.inf
        tried = [min(most, ratio * TABLE[name].prior) for ratio in RATIOS]
        errors = [error_of(few, name, value) for value in tried]
        if max(errors) > (1 + DISTINCT) * min(errors):
            values[name] = tried[int(np.argmin(errors))], 0.0
    return values


def error_of(cpu: model_quality.SampledCpu, name: str, value: float) -> float:
    """What the best fit leaves with this value of a coefficient, as the fit weighs it."""
    machine = cpu.file.machine.with_coefficients(PRIORS | {name: value})
    rows = [*replace(cpu, file=replace(cpu.file, machine=machine)).rows_to_fit()]
    return _left(rows, fit(rows, machine).values)


def _left(rows: Sequence[Row], values: Mapping[str, float]) -> float:
    errors = [
        (least / seconds) ** SLOW
        * ((fixed + sum(values.get(name, 0.0) * n for name, n in counts.items())) / seconds - 1)
        for seconds, fixed, counts, least in rows
    ]
    return float(np.sqrt(np.mean(np.square(errors))))


def _thin(cpu: model_quality.SampledCpu) -> model_quality.SampledCpu:
    """The CPU with at most MOST schedules a layer, evenly from the fastest to the slowest."""
    layers = []
    for layer in cpu.layers:
        order = np.argsort(layer.seconds, kind="stable")
        kept = order[np.unique(np.linspace(0, len(order) - 1, MOST).astype(int))]
        schedules = tuple(layer.schedules[at] for at in kept)
        layers.append(replace(layer, schedules=schedules, seconds=layer.seconds[kept]))
    return replace(cpu, layers=tuple(layers))


def row_of(name: str, found: Mapping[str, Mapping[str, tuple[float, float]]]) -> script.Row:
    """A coefficient: its prior, the value of each CPU, and the standard error of the prior."""
    row, prior = TABLE[name], TABLE[name].prior
    own = [values[name] for values in found.values() if name in values]
    squares = [(value - prior) ** 2 + error**2 for value, error in own]
    return {
        "coefficient": name, "unit": row.unit, "prior": prior,
        **{
            cpu: f"{values[name][0]:.3g}" if name in values else ""
            for cpu, values in found.items()
        },
        "error": f"{np.sqrt(np.mean(squares)):.2g}" if len(own) > 1 else "",
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
