"""polysci bench: time layers beside a peer, in turns."""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from polysci.cli import layers as shared
from polysci.errors import CheckError, NoCompilerError, PolysciError, SpecError

if TYPE_CHECKING:
    from polysci.peers.contest import Comparison, LayerRival
    from polysci.tune import Result

_HELP = "time every layer in turns with another library"


def add(commands: Any) -> None:
    """Register the command."""
    command = commands.add_parser(
        "bench", help=_HELP, allow_abbrev=False,
        description=f"{_HELP}. The ratio is the peer's time over ours: above 1, polysci is faster.",
    )  # fmt: skip
    shared.layer_options(command, described=False)
    shared.search_options(command)
    command.add_argument(
        "--against",
        required=True,
        metavar="PEER",
        help="the library: torch (oneDNN by its fastest path)",
    )
    command.add_argument(
        "--rounds",
        type=shared.positive,
        default=None,
        metavar="N",
        help="timed turns for each layer (15)",
    )
    shared.table_options(command)
    command.add_argument("-o", "--output", metavar="FILE", help="write the table or JSON to FILE")
    command.set_defaults(run=run)


@dataclass(frozen=True, slots=True)
class ComparedLayer:
    """A layer's times beside the peer's, and the search that chose our schedule."""

    times: Comparison
    result: Result

    @property
    def recorded(self) -> bool:
        """Whether the schedule comes from the record of an earlier search."""
        return bool(self.result.measurement and self.result.measurement.recorded)

    @property
    def disturbed(self) -> bool:
        """Whether other work disturbed the search's measurement."""
        return bool(self.result.measurement and self.result.measurement.disturbed)

    def row(self) -> dict[str, Any]:
        """The numbers as JSON members."""
        return self.times.row() | {
            "schedule": str(self.result.schedule),
            "schedule_recorded": self.recorded,
            "schedule_disturbed": self.disturbed,
        }


def run(arguments: argparse.Namespace) -> int:
    """Optimise where there is no record, compare, print; 1 if a layer failed."""
    from polysci.cli.display import Display
    from polysci.peers.contest import LayerRival
    from polysci.peers.process import peer_named

    threads = shared.threads_of(arguments)
    todo = shared.problems(arguments)
    peer = peer_named(arguments.against)
    comparisons: list[ComparedLayer] = []
    faults: list[tuple[str, str]] = []
    interrupted = False
    with Display(len(todo)) as display, LayerRival(peer, threads) as rival:
        try:
            for layer in shared.tune_layers(todo, arguments, display.watch):
                name = shared.title(layer.problem)
                try:
                    compared = _compare(layer, rival, arguments)
                except (SpecError, NoCompilerError):
                    raise
                except PolysciError as error:
                    faults.append((name, str(error)))
                    display.done(f"{name}: FAILED: {error}")
                    continue
                comparisons.append(compared)
                times = compared.times
                display.done(f"{name}: {times.gflops:.1f} GFLOP/s, ratio {_number(times.ratio)}")
        except KeyboardInterrupt:
            interrupted = True
    outcome = (comparisons, faults)
    if comparisons or faults:
        width = shared.table_width(arguments)
        text = _json(*outcome) if arguments.json else _table(*outcome, width)
        shared.write(text, arguments.output)
    if interrupted:
        raise shared.Interrupted
    return int(bool(faults))


def _compare(
    layer: shared.TunedLayer, rival: LayerRival, arguments: argparse.Namespace
) -> ComparedLayer:
    from polysci.numerics.dtypes import precision_named
    from polysci.peers.contest import PEAK_UNITS, ROUNDS, compare
    from polysci.runtime.backend import backend_of
    from polysci.tune import SYMBOL
    from polysci.tune.probes import peak_text, peak_unit

    if layer.result is None:
        raise CheckError(layer.fault)
    isa = shared.target_of(arguments).isa
    backend = backend_of(isa)
    source, rounds = layer.result.source, arguments.rounds or ROUNDS
    path = backend.build(source.file, symbols=source.symbols)
    best = peak_unit(isa.name, precision_named(layer.problem.dtype).x.name)
    peak = backend.build(peak_text(best), symbols=("peak",))
    times = compare(
        layer.problem, (path, SYMBOL), (peak, "peak"), rival,
        unit=PEAK_UNITS[best.compute], rounds=rounds, schedule=layer.result.schedule,
    )  # fmt: skip
    return ComparedLayer(times, layer.result)


def _number(ratio: float | None) -> str:
    """A ratio as text; a dash where there is none."""
    return "-" if ratio is None else f"{ratio:.3f}"


def _summary(comparisons: list[ComparedLayer], faults: list[tuple[str, str]]) -> dict[str, Any]:
    from polysci.peers.contest import geomean

    all_times = [compared.times for compared in comparisons]
    ratios = [times.ratio for times in all_times if times.ratio is not None]
    version = next((times.version for times in all_times if times.version), None)
    shares = [times.peak_fraction for times in all_times]
    return {
        "geomean_ratio": geomean(ratios) if ratios else None,
        "min_ratio": min(ratios, default=None),
        "geomean_peak_fraction": geomean(shares) if shares else None,
        "layers": len(comparisons),
        "failed": len(faults),
        "peer": version and f"torch {version}",
        "dtype": all_times[0].problem.dtype if comparisons else None,
        "peak_unit": all_times[0].unit if comparisons else None,
    }


def _json(comparisons: list[ComparedLayer], faults: list[tuple[str, str]]) -> str:
    lines = [json.dumps(compared.row()) for compared in comparisons]
    lines += [json.dumps({"layer": name, "error": fault}) for name, fault in faults]
    return "\n".join([*lines, json.dumps({"summary": _summary(comparisons, faults)})])


def _table(
    comparisons: list[ComparedLayer], faults: list[tuple[str, str]], width: int | None
) -> str:
    from statistics import median

    from polysci.text.tables import fit, time_text

    rows = [("layer", "GFLOP/s", "% of peak", "ours", "peer", "ratio", "peer's path")]
    for times in (compared.times for compared in comparisons):
        rows.append((
            shared.title(times.problem), f"{times.gflops:.1f}",
            f"{100 * times.peak_fraction:.0f}",
            time_text(median(times.seconds)),
            "-" if times.peer_median is None else time_text(times.peer_median),
            _number(times.ratio), times.path,
        ))  # fmt: skip
    lines = [
        fit(
            rows,
            width,
            drop=("peer's path", "% of peak"),
            clip=("layer",),
            left=("layer", "peer's path"),
        )
    ]
    lines += [
        f"{shared.title(compared.times.problem)}: {compared.times.path}"
        for compared in comparisons
        if compared.times.peer_median is None
    ]
    lines += [f"{name}: FAILED: {fault}" for name, fault in faults]
    if recorded := sum(compared.recorded for compared in comparisons):
        lines.append(f"{recorded} of {len(comparisons)} schedules from records of earlier searches")
    if disturbed := sum(compared.disturbed for compared in comparisons):
        lines.append(
            f"{disturbed} of {len(comparisons)} schedules chosen by disturbed measurements"
        )
    total = _summary(comparisons, faults)
    if comparisons:
        ratios = (
            f", ratio to {total['peer']}: geomean {total['geomean_ratio']:.3f}, "
            f"least {total['min_ratio']:.3f}"
            if total["peer"]
            else ""
        )
        lines.append(
            f"{total['dtype']}{ratios}\n{100 * total['geomean_peak_fraction']:.1f} % of the "
            f"{total['peak_unit']} peak measured in this run\n"
            "(geomean; taps in the padding count as work)"
        )
    return "\n".join(lines)
