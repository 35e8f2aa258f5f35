"""Text and JSON about a network's stages: fusions, and errors tensor by tensor."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from polysci.text.tables import bytes_text, fit, paragraph, shorten

if TYPE_CHECKING:
    from polysci.network.compiled import Network
    from polysci.network.debug import CheckedTensor
    from polysci.network.prepare import PassStep, PreparedNetwork
    from polysci.network.report import NetworkReport
    from polysci.peers.networks.contest import NetworkComparison


def explain_stages(prepared: PreparedNetwork, width: int | None) -> str:
    """Every group of nodes, what each fusion saves, and why others were rejected."""
    from polysci.program.control import BranchStage
    from polysci.program.stages import (
        JointLoops,
        LayerStage,
        LoopStage,
        RepeatStage,
        RoutineStage,
        RowFusion,
        UpdateStage,
    )

    kinds = {
        LayerStage: "layer", LoopStage: "loops", JointLoops: "loops", UpdateStage: "updates",
        RoutineStage: "routine", RowFusion: "bands of rows", RepeatStage: "steps",
    }  # fmt: skip
    rows = [("group", "computed by", "result")]
    for stage in prepared.program.stages:
        if isinstance(stage, BranchStage):
            rows.append((shorten(stage.name), stage.part, ""))
            continue
        value = prepared.program.values[stage.outputs[0]]
        rows.append((shorten(stage.name), kinds[type(stage)], f"{value.dtype} {list(value.shape)}"))
    done = [fusion for fusion in prepared.fusions if fusion.done]
    refused = [fusion for fusion in prepared.fusions if not fusion.done]
    lines = [f"{len(rows) - 1} group{'s' * (len(rows) != 2)}", _fit(rows, width, ())]
    saved = bytes_text(sum(fusion.saved for fusion in done))
    lines += ["", f"{len(done)} fusions, which save {saved} of memory traffic a run"]
    if done:
        table = [("computed inside", "was", "tensor", "saves")]
        table += [
            (
                shorten(fusion.second, 30), shorten(fusion.first, 40), shorten(fusion.tensor, 30),
                bytes_text(fusion.saved),
            )
            for fusion in done
        ]  # fmt: skip
        lines.append(_fit(table, width, ("tensor",)))
    lines += ["", f"{len(refused)} considered and rejected"]
    if refused:
        why = [("into", "not fused", "tensor", "would save", "reason")]
        why += [
            (
                shorten(fusion.second, 30), shorten(fusion.first, 40), shorten(fusion.tensor, 30),
                bytes_text(fusion.saved), fusion.refusal,
            )
            for fusion in refused
        ]  # fmt: skip
        lines.append(_fit(why, width, ("tensor", "would save")))
    return "\n".join(lines)


def describe_passes(steps: Sequence[PassStep], width: int | None) -> str:
    """Return a table of passes: whether each changed anything, and how many stages remain."""
    rows = [("pass", "changed", "left", "function")]
    rows += [
        (step.name, "yes" if step.changed else "", str(step.count), step.text) for step in steps
    ]
    return fit(rows, width, clip=("function",), left=("pass", "changed", "function"))


def describe_pass(steps: Sequence[PassStep]) -> str:
    """Return the lines that one pass removed and added, each time it ran."""
    lines = list[str]()
    for step in steps:
        lines += [f"{step.name}: {step.text}", *(step.difference() or ["nothing changed"])]
    return "\n".join(lines)


def _fit(rows: Sequence[tuple[str, ...]], width: int | None, drop: Sequence[str]) -> str:
    """A table of texts: all begin their columns, but for bytes; the last is cut last."""
    left = [name for name in rows[0] if name not in ("saves", "would save")]
    return fit(rows, width, drop=drop, clip=[*left[-2::-1], left[-1]], left=left, indent="  ")


def explain_stages_json(prepared: PreparedNetwork) -> str:
    """A JSON object a fusion, then one of all groups."""
    lines = [json.dumps(asdict(fusion) | {"fused": fusion.done}) for fusion in prepared.fusions]
    groups = [stage.name for stage in prepared.program.stages]
    saved = sum(fusion.saved for fusion in prepared.fusions if fusion.done)
    return "\n".join([*lines, json.dumps({"groups": groups, "saved_bytes": saved})])


def describe_errors(rows: Sequence[CheckedTensor], *, width: int | None) -> str:
    """The error of every tensor against the reference."""
    from polysci.network.debug import first_wrong

    table = [("stage", "tensor", "error", "bound", "largest", "verdict")]
    table += [
        (
            shorten(row.stage), shorten(row.tensor, 30), f"{row.error:.2e}", f"{row.bound:.2e}",
            f"{row.largest:.3g}", "WRONG" if row.wrong else "",
        )
        for row in rows
    ]  # fmt: skip
    first = first_wrong(rows)
    verdict = f"all {len(rows)} tensors are right"
    if strange := sum(row.non_finite > 0 for row in rows):
        verdict += f"; {strange} hold NaN or infinite numbers, as the reference does"
    if first:
        verdict = f"first wrong stage: {shorten(first.stage, 400)} (tensor {first.tensor!r:.200})"
    return "\n".join([
        fit(table, width, drop=("largest",), clip=("tensor", "stage"), left=("stage", "tensor")),
        "error: largest difference from a float64 reference, over its largest number or 1",
        verdict,
    ])  # fmt: skip


def describe_errors_json(rows: Sequence[CheckedTensor]) -> str:
    """A JSON object a tensor, then the verdict."""
    from polysci.network.debug import first_wrong

    first = first_wrong(rows)
    last = {"first_wrong": first.stage if first else None}
    lines = [json.dumps(asdict(row) | {"wrong": row.wrong}) for row in rows]
    return "\n".join([*lines, json.dumps(last)])


def comparison_lines(
    comparison: NetworkComparison | None, loss: float | None, width: int | None
) -> list[str]:
    """The times of other libraries beside ours; nothing where there are none."""
    if comparison is None:
        return []
    rows = [("library", "ms a run", "its time over ours", "error", "peak memory", "how")]
    rows.append((
        "polysci", f"{comparison.latency_ms:.3f}", "", "", bytes_text(comparison.ours.peak_bytes),
        comparison.ours.choice,
    ))  # fmt: skip
    rows += [
        (
            f"{name} {rival.version}", f"{rival.latency_ms:.3f}",
            f"{rival.latency_ms / comparison.latency_ms:.3f}", str(rival.difference),
            bytes_text(rival.peak_bytes), rival.choice,
        )
        for name, rival in comparison.rivals.items()
    ]  # fmt: skip
    rows += [(name, "failed", "", "", "", "") for name in comparison.failures]
    table = fit(rows, width, drop=("how", "peak memory"), clip=("library",),
                left=("library", "how"))  # fmt: skip
    lines = ["", table]
    for name, reason in comparison.failures.items():
        lines.append(paragraph(f"{name} failed: {shorten(reason, 400)}", width, ""))
    if comparison.ratio is not None:
        ratio = (
            f"ratio to {comparison.fastest}, the fastest: {comparison.ratio:.3f} (above 1 ours is "
            f"faster; medians of {len(comparison.ours.seconds)} turns)"
        )
        lines.append(paragraph(ratio, width, ""))
    if loss is not None:
        lines.append(f"largest difference from our own f32, relative to the largest: {loss:.2g}")
    return lines


def summary_of(
    network: Network,
    report: NetworkReport,
    comparison: NetworkComparison | None,
    loss: float | None,
) -> dict[str, Any]:
    """The numbers of the network as JSON members."""
    alone = report.sum_of_layers
    members: dict[str, Any] = {
        "network": network.name,
        "latency_ms": report.latency * 1e3,
        "rest_ms": report.rest * 1e3,
        "call_ms": report.call * 1e3,
        "threads": network.threads,
        "dtype": network.dtype,
        "algorithm": network.options.algorithm,
        "level": network.options.level,
        "isa": str(network.options.target.isa),
        "arena_bytes": report.arena,
        "unshared_bytes": report.unshared,
        "packed_bytes": report.packed,
        "sum_of_layers_ms": None if alone is None else alone * 1e3,
        "any_order_cost": report.any_order_cost,
        "compile_seconds": network.seconds,
    }
    if comparison is None:
        return members
    every = {"polysci": comparison.ours, **comparison.rivals}
    members |= {
        "latency_ms": comparison.latency_ms,
        "peers": comparison.peers,
        "ratio": comparison.ratio,
        "fastest_peer": comparison.fastest,
        "max_error": comparison.max_error,
        "errors": {name: rival.difference.number for name, rival in comparison.rivals.items()},
        "non_finite": {
            name: {"alike": rival.difference.alike, "apart": rival.difference.apart}
            for name, rival in comparison.rivals.items()
        },
        "failures": dict(comparison.failures),
        "peak_bytes": {name: result.peak_bytes for name, result in every.items()},
        "choices": {name: result.choice for name, result in every.items()},
        "versions": {name: rival.version for name, rival in comparison.rivals.items()},
        "rounds": len(comparison.ours.seconds),
    }
    return members | ({} if loss is None else {"f32_loss": loss})
