"""What a compiled network spends where: a row a stage, the whole, its memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from polysci.network.compile.compiled import Network
from polysci.network.ir.stages import LayerStage, RowFusion
from polysci.network.tools.profile import StageTime, latency, profile
from polysci.text.tables import bytes_text, columns, time_text
from polysci.tune import Result
from polysci.tune.calibrate import load_rates

_WIDEST = 60  # characters of a group


@dataclass(frozen=True, slots=True)
class StageRow:
    """A stage: the nodes fused into it, the median time, its share of all stages.

    ``schedule`` is empty for a loop nest, which has none, nor GFLOP/s. ``alone_seconds`` is what
    the same layers took by themselves, None where nothing was measured.
    """

    group: str
    schedule: str
    seconds: float
    share: float
    gflops: float | None
    peak_fraction: float | None
    alone_seconds: float | None


@dataclass(frozen=True, slots=True)
class NetworkReport:
    """All stages; ``latency`` of a whole run in seconds; memory in bytes.

    ``sum_of_layers``: the seconds of all layers timed alone, None where one was not. ``unshared``
    is what the tensors of ``arena`` would take side by side.
    """

    name: str
    rows: tuple[StageRow, ...]
    latency: float
    sum_of_layers: float | None
    arena: int
    unshared: int
    packed: int
    level: str

    def __str__(self) -> str:
        return "\n".join([_table(self.rows), *self.summary()])

    def summary(self) -> list[str]:
        """The lines below the table."""
        total = sum(row.seconds for row in self.rows)
        flops = sum(row.gflops * row.seconds for row in self.rows if row.gflops)
        return [
            f"whole network: {time_text(self.latency)} a run, {flops / self.latency:.1f} GFLOP/s; "
            f"its stages, with the clock read between them: {time_text(total)}",
            _beside(self),
            f"tensors: {bytes_text(self.arena)} shared, {bytes_text(self.unshared)} unshared; "
            f"packed weights: {bytes_text(self.packed)}",
        ]

    def json_rows(self) -> list[dict[str, Any]]:
        """Members of a JSON object a stage."""
        return [asdict(row) for row in self.rows]


def report_of(network: Network) -> NetworkReport:
    """Time a network and each of its stages."""
    times, code = profile(network), network.code
    total = sum(one.seconds for one in times) or 1.0
    rows = tuple(_row(network, one, total) for one in times)
    return NetworkReport(
        network.name, rows, latency(network), sum_of_layers(network),
        code.arena.size, code.arena.unshared, code.weights_file.packed_size, network.options.level,
    )  # fmt: skip


def sum_of_layers(network: Network) -> float | None:
    """Seconds of all layers timed alone; None where one was not timed."""
    found = [_alone(network, one) for one in network.prepared.program.layers()]
    timed = [one for one in found if one is not None]
    return sum(timed) if found and len(timed) == len(found) else None


def _row(network: Network, one: StageTime, total: float) -> StageRow:
    stage, share = network.prepared.program.stages[one.position], one.seconds / total
    members = stage.members if isinstance(stage, RowFusion) else (stage,)
    layers = [member for member in members if isinstance(member, LayerStage)]
    if not layers:
        return StageRow(one.name, "", one.seconds, share, None, None, None)
    flops = sum(layer.problem.flops * _times(layer) for layer in layers)
    speed = flops / one.seconds * 1e-9 if one.seconds else None
    best = _peak(network, network.results[layers[0].problem.key])
    part = speed / best if speed and best else None
    each = [_alone(network, layer) for layer in layers]
    alone = [seconds for seconds in each if seconds is not None]
    schedules = " | ".join(str(network.schedules[layer.problem.key]) for layer in layers)
    whole = sum(alone) if len(alone) == len(each) else None
    return StageRow(one.name, schedules, one.seconds, share, speed, part, whole)


def _times(stage: LayerStage) -> int:
    """How often a run computes it."""
    return len(stage.stack) or 1


def _alone(network: Network, stage: LayerStage) -> float | None:
    measured = network.results[stage.problem.key].measurement
    return measured.median * _times(stage) if measured else None


def _peak(network: Network, result: Result) -> float | None:
    """GFLOP/s of all threads: measured beside the layer, else known of the machine."""
    if result.measurement and result.measurement.peak_gflops:
        return result.measurement.peak_gflops
    machine = load_rates(network.options.target) if result.problem.dtype == "f32" else None
    return machine.peak * network.threads if machine else None


def _beside(report: NetworkReport) -> str:
    if report.sum_of_layers is None:
        return f"its layers timed alone: not measured at level {report.level}"
    share = report.latency / report.sum_of_layers
    return (
        f"its layers timed alone: {time_text(report.sum_of_layers)} in all; "
        f"the network takes {share:.2f} of that"
    )


def _table(rows: Sequence[StageRow]) -> str:
    head = ("group", "schedule", "time", "share", "GFLOP/s", "% of peak")
    lines: list[tuple[str, ...]] = [head]
    for row in rows:
        lines.append((
            shorten(row.group), row.schedule or "loops", time_text(row.seconds),
            f"{100 * row.share:.1f} %",
            "-" if row.gflops is None else f"{row.gflops:.1f}",
            "-" if row.peak_fraction is None else f"{100 * row.peak_fraction:.0f}",
        ))  # fmt: skip
    return columns(lines, left=(0, 1), indent="")


def shorten(text: str, widest: int = _WIDEST) -> str:
    """One printable line, cut where it is too long."""
    plain = "".join(one if one.isprintable() else "?" for one in text)
    return plain if len(plain) <= widest else f"{plain[: widest - 3]}..."
