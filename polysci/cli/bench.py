"""polysci bench: ours beside a peer, in turns."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from polysci.cli import layers as shared
from polysci.errors import CheckError, PolysciError, SpecError

if TYPE_CHECKING:
    from polysci.peers.contest import Comparison, LayerRival

_HELP = "time every layer beside another library, in turns and in one run"


def add(commands: Any) -> None:
    """Register the command."""
    command = commands.add_parser(
        "bench", help=_HELP, allow_abbrev=False,
        description=f"{_HELP}. The ratio is the peer's time over ours: above 1 we are faster.",
    )  # fmt: skip
    shared.layer_options(command, described=False)
    shared.search_options(command)
    command.add_argument(
        "--against", required=True, metavar="PEER", help="torch: oneDNN, at its best"
    )
    command.add_argument(
        "--rounds", type=shared.positive, default=None, metavar="N", help="turns a layer (15)"
    )
    command.add_argument("--json", action="store_true", help="JSON lines and a summary")
    command.add_argument("-o", "--output", metavar="FILE", help="write the table or JSON there")
    command.set_defaults(run=run)


def run(asked: argparse.Namespace) -> int:
    """Optimise where there is no record, compare, print; 1 if a layer failed."""
    from polysci.cli.display import Display
    from polysci.peers.contest import LayerRival
    from polysci.peers.process import peer_named

    threads = shared.threads_of(asked)
    peer = peer_named(asked.against)
    todo = shared.problems(asked)
    found: list[tuple[Comparison, str]] = []
    faults: list[tuple[str, str]] = []
    interrupted = False
    with Display(len(todo)) as display, LayerRival(peer, threads) as rival:
        try:
            for one in shared.tune_layers(todo, asked, display.watch):
                name = shared.title(one.problem)
                try:
                    comparison = _compared(one, rival, asked)
                except SpecError:
                    raise
                except PolysciError as error:
                    faults.append((name, str(error)))
                    display.done(f"{name}: FAILED: {error}")
                    continue
                found.append((comparison, str(one.result.schedule if one.result else "")))
                display.done(
                    f"{name}: {comparison.gflops:.1f} GFLOP/s, ratio {comparison.ratio:.3f}"
                )
        except KeyboardInterrupt:
            interrupted = True
    if found or faults:
        shared.write((_json if asked.json else _table)(found, faults), asked.output)
    if interrupted:
        raise shared.Interrupted
    return int(bool(faults))


def _compared(one: shared.TunedLayer, rival: LayerRival, asked: argparse.Namespace) -> Comparison:
    from polysci.numerics.dtypes import precision_named
    from polysci.peers.contest import PEAK_UNITS, ROUNDS, compare
    from polysci.runtime.backend import CPU
    from polysci.tune import SYMBOL
    from polysci.tune.calibrate import peak_text, peak_unit

    if one.result is None:
        raise CheckError(one.fault)
    path = CPU.build(one.result.source.file)
    best = peak_unit(shared.target_of(asked).isa.name, precision_named(one.problem.dtype).x.name)
    peak, rounds = CPU.build(peak_text(best)), asked.rounds or ROUNDS
    return compare(
        one.problem, (path, SYMBOL), (peak, "peak"), rival,
        unit=PEAK_UNITS[best.compute], rounds=rounds, schedule=one.result.schedule,
    )  # fmt: skip


def _summary(found: list[tuple[Comparison, str]], faults: list[tuple[str, str]]) -> dict[str, Any]:
    from polysci.peers.contest import geomean

    ratios = [one.ratio for one, _ in found]
    shares = [one.peak_fraction for one, _ in found]
    return {
        "geomean_ratio": geomean(ratios) if ratios else None,
        "min_ratio": min(ratios, default=None),
        "geomean_peak_fraction": geomean(shares) if shares else None,
        "layers": len(found),
        "failed": len(faults),
        "peer": f"torch {found[0][0].version}" if found else None,
        "dtype": found[0][0].problem.dtype if found else None,
        "peak_unit": found[0][0].unit if found else None,
    }


def _json(found: list[tuple[Comparison, str]], faults: list[tuple[str, str]]) -> str:
    lines = [json.dumps(one.row() | {"schedule": schedule}) for one, schedule in found]
    lines += [json.dumps({"layer": name, "error": fault}) for name, fault in faults]
    return "\n".join([*lines, json.dumps({"summary": _summary(found, faults)})])


def _table(found: list[tuple[Comparison, str]], faults: list[tuple[str, str]]) -> str:
    from statistics import median

    from polysci.text.tables import columns, time_text

    rows = [("layer", "GFLOP/s", "% of peak", "ours", "peer", "ratio", "peer's path")]
    for one, _ in found:
        rows.append((
            shared.title(one.problem), f"{one.gflops:.1f}", f"{100 * one.peak_fraction:.0f}",
            time_text(median(one.seconds)), time_text(median(one.peer_seconds)),
            f"{one.ratio:.3f}", one.path,
        ))  # fmt: skip
    lines = [columns(rows, left=(0, 6), indent="")]
    lines += [f"{name}: FAILED: {fault}" for name, fault in faults]
    total = _summary(found, faults)
    if found:
        lines.append(
            f"{total['dtype']}, ratio to {total['peer']}: geomean {total['geomean_ratio']:.3f}, "
            f"least {total['min_ratio']:.3f}; {100 * total['geomean_peak_fraction']:.1f} % of the "
            f"{total['peak_unit']} peak measured in this run (geomean; taps in the padding count "
            "as work)"
        )
    return "\n".join(lines)
