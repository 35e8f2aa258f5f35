"""polysci optimize: find schedules."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from polysci.cli import layers as shared
from polysci.cli.schedulers import describe, farm_of, scheduler_option, tune_on_farm
from polysci.cli.tuners import tuner_of, tuner_options
from polysci.errors import SpecError

if TYPE_CHECKING:
    from polysci.farm import FarmResult
    from polysci.ops.problem import Problem
    from polysci.tune import TunerOptions

_DROP = ("spent", "predicted", "measured")  # the first first, where a table is too wide
_MARK, _RECORD = " (!)", "record"
HELP = "find the best schedule of every layer: rank, generate, build, check and time"


def add(command: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    shared.layer_options(command)
    shared.device_option(command)
    shared.search_options(command)
    tuner_options(command)
    shared.table_options(command)
    shared.show_option(command)
    command.add_argument(
        "--again",
        action="store_true",
        help="measure even where there is a record, and replace it; a tuner starts anew",
    )
    scheduler_option(command)
    command.add_argument("-o", "--output", metavar="FILE", help="write the table or JSON to FILE")


def run(arguments: argparse.Namespace) -> int:
    """Optimise, show progress, print the table; 1 if a layer failed."""
    from polysci.cli.display import Display

    layers = list[shared.TunedLayer]()
    width = shared.table_width(arguments)
    shared.check_writable(arguments.output)
    _check_show(arguments)
    todo, tuner = shared.problems(arguments), tuner_of(arguments)
    if arguments.scheduler is not None:
        return _run_on_farm(todo, arguments, width, tuner)
    with Display(len(todo)) as display, display.hold():
        for layer in shared.tune_layers(todo, arguments, display.watch, tuner=tuner):
            layers.append(layer)
            display.done(describe(layer))
    if layers:
        shared.write(_text(layers, arguments, width), arguments.output)
    display.end()
    return int(any(layer.result is None for layer in layers))


def _check_show(arguments: argparse.Namespace) -> None:
    """Raise SpecError for options that ``--show`` excludes."""
    for option in ("json", "scheduler"):
        if arguments.show and getattr(arguments, option):
            raise SpecError(f"--show {arguments.show}: prints code alone; leave out --{option}")


def _text(layers: list[shared.TunedLayer], arguments: argparse.Namespace, width: int | None) -> str:
    """Return the table, JSON or code of layers."""
    if arguments.show:
        return shared.show_layers(layers, arguments.show)
    return _json(layers) if arguments.json else _table(layers, width)


def _run_on_farm(
    todo: list[Problem], arguments: argparse.Namespace, width: int | None,
    tuner: TunerOptions | None,
) -> int:  # fmt: skip
    """Optimise on the workers of a scheduler, with a table for each kind of machine."""
    from polysci.cli.display import Display

    tuned: dict[tuple[str, str], FarmResult] = {}
    with farm_of(arguments) as farm, Display(0) as display, display.hold():
        display.layers = len({problem.key for problem in todo}) * len(farm.machines)
        for result in tune_on_farm(farm, todo, arguments, display, tuner):
            tuned[result.machine.name, result.problem.key] = result
    texts = []
    for machine in farm.machines:
        results = [(problem, tuned.get((machine.name, problem.key))) for problem in todo]
        layers = [
            shared.rename(shared.TunedLayer(problem, its.result, its.fault), problem)
            for problem, its in results
            if its
        ]
        if layers and arguments.json:
            texts.append(_json(layers, {"machine": machine.name, "target": str(machine.target)}))
        elif layers:
            texts.append(f"{machine}\n{_table(layers, width)}")
    if texts:
        shared.write(("\n" if arguments.json else "\n\n").join(texts), arguments.output)
    display.end()
    return int(any(its.result is None for its in tuned.values()))


def row(layer: shared.TunedLayer) -> dict[str, Any]:
    """One layer's outcome as JSON members; times in seconds."""
    members: dict[str, Any] = {
        "layer": shared.title(layer.problem),
        "problem": str(layer.problem),
        "layout": layer.problem.layout,
        "multiplicity": layer.problem.multiplicity,
    }
    result = layer.result
    if result is None:
        return members | {"error": layer.fault}
    measured = result.measurement
    return members | {
        "schedule": str(result.schedule),
        "level": result.level,
        "threads": result.threads,
        "predicted_seconds": result.predicted,
        "seconds": measured.median if measured else None,
        "gflops": measured.gflops if measured else None,
        "peak_gflops": measured.peak_gflops if measured else None,
        "peak_fraction": measured.peak_fraction if measured else None,
        "peak_disturbed": measured.peak_disturbed if measured else None,
        "recorded": measured.recorded if measured else None,
        "disturbed": measured.disturbed if measured else None,
        "dropped": measured.dropped if measured else None,
        "trials": len(result.trials),
        "spent_seconds": result.spent,
        "any_order_cost": result.any_order and result.any_order.cost(result),
    }


def _summary(layers: list[shared.TunedLayer]) -> dict[str, Any]:
    """Totals, every layer weighted by its multiplicity."""
    good = [(layer.problem, layer.result) for layer in layers if layer.result]
    timed = [(p, r.measurement) for p, r in good if r.measurement]
    seconds = sum(p.multiplicity * m.median for p, m in timed)
    flops = sum(p.multiplicity * p.flops for p, _ in timed)
    return {
        "layers": len(layers),
        "failed": len(layers) - len(good),
        "network_seconds": seconds if timed else None,
        "network_gflops": flops / seconds * 1e-9 if seconds else None,
        "predicted_network_seconds": sum(p.multiplicity * r.predicted for p, r in good),
        "spent_seconds": sum(r.spent for _, r in good),
    }


def _json(layers: list[shared.TunedLayer], more: Mapping[str, Any] = MappingProxyType({})) -> str:
    lines = [json.dumps({**row(layer), **more}) for layer in layers]
    return "\n".join([*lines, json.dumps({"summary": _summary(layers), **more})])


def _table(layers: list[shared.TunedLayer], width: int | None) -> str:
    from polysci.runtime.backends import backend_named
    from polysci.runtime.measurement import PEAK_COUNTS
    from polysci.target.target import HOST
    from polysci.text.tables import fit, time_text
    from polysci.tune.occupancy import describe_registers
    from polysci.tune.result import cost_text, highest_cost

    head = ("layer", "schedule", "GFLOP/s", "% of peak", "predicted", "measured", "spent")
    rows: list[tuple[str, ...]] = [head]
    for layer in layers:
        name, result = shared.title(layer.problem), layer.result
        if result is None:
            rows.append((name, "FAILED", "", "", "", "", ""))
            continue
        timed = result.measurement
        share = timed.peak_fraction if timed else None
        rows.append((
            name, str(result.schedule),
            f"{timed.gflops:.1f}{_MARK * timed.disturbed}" if timed else "-",
            f"{100 * share:.0f}{_MARK * timed.peak_disturbed}" if timed and share else "-",
            time_text(result.predicted),
            time_text(timed.median) if timed else "-",
            _RECORD if timed and timed.recorded else f"{result.spent:.1f} s",
        ))  # fmt: skip
    total = _summary(layers)
    lines = [fit(rows, width, drop=_DROP, clip=head[1::-1], left=head[:2])]
    lines += [describe(layer) for layer in layers if layer.result is None]
    if any(row[2].endswith(_MARK) for row in rows):
        lines.append(f"{_MARK}: other work disturbed most samples; the next search measures again")
    if any(row[3].endswith(_MARK) for row in rows):
        lines.append(f"% of peak{_MARK}: other work disturbed the run of the peak")
    if any(row[3] not in ("", "-") for row in rows[1:]):
        lines.append(PEAK_COUNTS)
    if recorded := sum(row[6] == _RECORD for row in rows):
        lines.append(
            f"{recorded} of {len(layers)} from records of earlier searches (--again: anew)"
        )
    if devices := {row.result.backend for row in layers if row.result} - {HOST}:
        name = devices.pop()
        lines.append(_rates_of(name))
        if any(row.result and row.result.schedule.mapped for row in layers):
            lines.append(describe_registers(backend_named(name)))
    if cost := highest_cost(row.result for row in layers if row.result):
        lines.append(cost_text(cost))
    if total["network_seconds"]:
        lines.append(
            f"all layers, as often as the network has them: {time_text(total['network_seconds'])}, "
            f"{total['network_gflops']:.1f} GFLOP/s"
        )
    return os.linesep.join(lines)


def _rates_of(device: str) -> str:
    """Return the line that says which rates the predictions for a device are by."""
    from polysci.runtime.backends import device_named
    from polysci.tune.calibrate import load_rates

    target = device_named(device)
    known = load_rates(target) if target else None
    if known is None:
        return f"predicted: with assumed rates; those of {device} are not measured"
    part = "" if known.measured else ", as far as they are known"
    return f"predicted: with rates measured on {device}{part}"
