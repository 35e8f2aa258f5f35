"""What is told of a network's stages: fusions, and errors tensor by tensor."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from polysci.text.tables import bytes_text, columns

if TYPE_CHECKING:
    from polysci.network.compile.prepare import PreparedNetwork
    from polysci.network.tools.debug import CheckedTensor


def explain_stages(prepared: PreparedNetwork) -> str:
    """Every group of nodes, what each fusion saves, and why others were rejected."""
    from polysci.network.compile.report import shorten
    from polysci.network.ir.stages import LayerStage, LoopStage, RowFusion

    rows = [("group", "computed by", "result")]
    for stage in prepared.program.stages:
        value = prepared.program.values[stage.output]
        kind = {LayerStage: "layer", LoopStage: "loops", RowFusion: "bands of rows"}[type(stage)]
        rows.append((shorten(stage.name), kind, f"{value.dtype} {list(value.shape)}"))
    done = [one for one in prepared.fusions if one.done]
    refused = [one for one in prepared.fusions if not one.done]
    lines = [f"{len(rows) - 1} group{'s' * (len(rows) != 2)}", columns(rows, left=(0, 1, 2))]
    saved = bytes_text(sum(one.saved for one in done))
    lines += ["", f"{len(done)} fusions, which save {saved} of memory traffic a run"]
    if done:
        table = [("computed inside", "was", "tensor", "saves")]
        table += [
            (
                shorten(one.second, 30), shorten(one.first, 40), shorten(one.tensor, 30),
                bytes_text(one.saved),
            )
            for one in done
        ]  # fmt: skip
        lines.append(columns(table, left=(0, 1, 2)))
    lines += ["", f"{len(refused)} considered and rejected"]
    if refused:
        why = [("into", "not fused", "tensor", "would save", "reason")]
        why += [
            (
                shorten(one.second, 30), shorten(one.first, 40), shorten(one.tensor, 30),
                bytes_text(one.saved), one.refusal,
            )
            for one in refused
        ]  # fmt: skip
        lines.append(columns(why, left=(0, 1, 2, 4)))
    return "\n".join(lines)


def explain_stages_json(prepared: PreparedNetwork) -> str:
    """A JSON object a fusion, then one of all groups."""
    lines = [json.dumps(asdict(one) | {"fused": one.done}) for one in prepared.fusions]
    groups = [stage.name for stage in prepared.program.stages]
    saved = sum(one.saved for one in prepared.fusions if one.done)
    return "\n".join([*lines, json.dumps({"groups": groups, "saved_bytes": saved})])


def describe_errors(rows: Sequence[CheckedTensor], bound: float) -> str:
    """Every tensor beside the reference."""
    from polysci.network.compile.report import shorten
    from polysci.network.tools.debug import first_wrong

    table = [("stage", "tensor", "error", "largest", "")]
    table += [
        (
            shorten(one.stage), shorten(one.tensor, 30), f"{one.error:.2e}",
            f"{one.largest:.3g}", "" if one.error <= bound else "WRONG",
        )
        for one in rows
    ]  # fmt: skip
    first = first_wrong(rows, bound)
    verdict = f"all {len(rows)} tensors are right"
    if first:
        verdict = f"first wrong stage: {shorten(first.stage, 400)} (tensor {first.tensor!r:.200})"
    return "\n".join([
        columns(table, left=(0, 1, 4), indent=""),
        "error: largest difference from a float64 reference, over its largest number or 1; "
        f"bound: {bound:g}",
        verdict,
    ])  # fmt: skip


def describe_errors_json(rows: Sequence[CheckedTensor], bound: float) -> str:
    """A JSON object a tensor, then the verdict."""
    from polysci.network.tools.debug import first_wrong

    first = first_wrong(rows, bound)
    last = {"bound": bound, "first_wrong": first.stage if first else None}
    lines = [json.dumps(asdict(one) | {"wrong": not one.error <= bound}) for one in rows]
    return "\n".join([*lines, json.dumps(last)])
