"""The output of ``compile``: the options and files of ``-o``, and text about the stages."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polysci.cli import layers as shared
from polysci.cli.bindings import dims_of, has_ranges
from polysci.errors import SpecError
from polysci.text.tables import bytes_text, fit, paragraph, shorten, time_text

if TYPE_CHECKING:
    from polysci.network.compiled import Network
    from polysci.network.debug import CheckedTensor
    from polysci.network.prepare import PassStep, PreparedNetwork
    from polysci.network.report import NetworkReport
    from polysci.network.size_choices import Plan, Read
    from polysci.peers.networks.compare import NetworkComparison
    from polysci.program.passes.row import Fusion, FusionGroup


def output_options(command: argparse.ArgumentParser) -> None:
    """Options that say what to write."""
    command.add_argument(
        "--python", action="store_true", help="with -o: write a Python package instead of C"
    )
    command.add_argument(
        "--embed", action="store_true", help="with -o: put the weights into the library"
    )
    command.add_argument(
        "--isas", type=name_list, metavar="NAME,NAME",
        help="with -o: write code for each of these instruction sets, of which the library uses "
        "the best that the CPU has",
    )  # fmt: skip
    command.add_argument(
        "--freestanding", action="store_true",
        help="with -o: write C without heap, files or an operating system, weights as constants",
    )  # fmt: skip
    command.add_argument(
        "--packed-weights", action="store_true",
        help="with -o: write weights as runs read them, so that processes can map and share the "
        "file; done anyway where it is hardly larger for that",
    )  # fmt: skip


def name_list(text: str) -> list[str]:
    """Return names separated by commas, each once."""
    return list(dict.fromkeys(name.strip() for name in text.split(",")))


def check_output(arguments: argparse.Namespace) -> None:
    """Raise SpecError for options that exclude each other."""
    for option in ("python", "embed", "packed_weights", "freestanding", "force", "isas", "machine"):
        if getattr(arguments, option) and not arguments.out:
            raise SpecError(f"--{option.replace('_', '-')}: says what to write; it needs -o DIR")
    if arguments.python and (arguments.isas or arguments.machine):
        raise SpecError("--python: a package holds code that runs here, of one instruction set")
    beside = ("python", "embed", "packed_weights", "isas")
    if arguments.freestanding and (other := [name for name in beside if getattr(arguments, name)]):
        raise SpecError(f"--freestanding: leave out --{other[0].replace('_', '-')}")
    if arguments.pool != "openmp" and not arguments.out:
        raise SpecError(f"--threads {arguments.pool}: says what to write; it needs -o DIR")
    if arguments.python and arguments.pool != "openmp":
        raise SpecError(f"--threads {arguments.pool}: a Python package has threads of OpenMP's")
    if arguments.python and arguments.embed:
        raise SpecError("--embed: a Python package has its weights in a file; leave out --python")
    if arguments.python and arguments.packed_weights:
        raise SpecError("--packed-weights: a Python package packs its own; leave out --python")
    if arguments.packed_weights and arguments.isas:
        raise SpecError("--packed-weights: each instruction set has its own way; leave out --isas")


def check_folder(arguments: argparse.Namespace, name: str) -> None:
    """Raise what is wrong with the folder of -o."""
    from polysci.export.freestanding import check_freestanding
    from polysci.export.network_project import check_package, check_project
    from polysci.export.web_project import check_web, is_web

    out = Path(arguments.out)
    isas = shared.written_isas(arguments)
    if any(map(is_web, isas)):
        check_web(
            out, name, isas, shared.threads_of(arguments), arguments.pool, embed=arguments.embed,
            packed=arguments.packed_weights, force=arguments.force,
        )  # fmt: skip
        return
    if arguments.freestanding:
        threads, pool = shared.threads_of(arguments), arguments.pool
        check_freestanding(out, name, threads, pool, force=arguments.force)
        return
    check = check_package if arguments.python else check_project
    check(out, name, force=arguments.force)


def write_sizes(arguments: argparse.Namespace, read: Read, plan: Plan) -> int:
    """Write one C library that has an entry for each choice of the sizes of ``--dim``.

    Or for parts of a range.
    """
    from polysci.export.network_project import write_project
    from polysci.network.size_choices import plan_choices, size_choices
    from polysci.network.sizes import join_sizes

    if not arguments.out:
        dims_of(arguments)
    alone = ("python", "freestanding", "isas", "machine", "compare", "json")
    if wrong := [option for option in (*alone, "scheduler") if getattr(arguments, option)]:
        raise SpecError(f"--{wrong[0].replace('_', '-')}: of one size; --dim has several")
    if shared.machine_of(arguments):
        raise SpecError(f"--isa {arguments.isa}: nothing of it runs here; --dim has several sizes")
    if arguments.device and has_ranges(arguments):
        raise SpecError(f"--device {arguments.device}: its code is of one size; list sizes, N,N")
    choices = size_choices({
        name: sizes if len(sizes) > 1 else sizes[0] for name, sizes in arguments.dim
    })  # fmt: skip
    networks = plan_choices(choices, read, plan)
    whole = join_sizes(networks, networks[0][1].name, arguments.pool)
    for path in write_project(
        whole, Path(arguments.out), embed=arguments.embed, packed=arguments.packed_weights,
        force=arguments.force,
    ):  # fmt: skip
        print(path)
    return 0


def write_output(arguments: argparse.Namespace, network: Network) -> None:
    from polysci.export.freestanding import BoardMemory, write_freestanding
    from polysci.export.network_project import write_package, write_project
    from polysci.network.compiled import use_pool

    out, network = Path(arguments.out), use_pool(network, arguments.pool)
    lines = list[str]()
    if arguments.freestanding:
        lines = BoardMemory.of(network).lines()
        paths = write_freestanding(network, out, force=arguments.force)
    elif arguments.python:
        paths = write_package(network, out, force=arguments.force)
    else:
        paths = write_project(
            network, out, embed=arguments.embed, packed=arguments.packed_weights,
            force=arguments.force,
        )  # fmt: skip
    for line in (*paths, *lines):
        (shared.say if arguments.json else print)(str(line))


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
    saved = bytes_text(sum(fusion.saved for fusion in done))
    lines = [f"{len(rows) - 1} group{'s' * (len(rows) != 2)}", _fit(rows, width, ())]
    count = "1 fusion, which saves" if len(done) == 1 else f"{len(done)} fusions, which save"
    lines += ["", f"{count} {saved} of memory traffic a run"]
    if done:
        head: tuple[str, ...] = ("computed inside", "was", "tensor", "saves")
        lines.append(_fit([head, *map(_fusion_row, done)], width, ("tensor",)))
    lines += ["", f"{len(refused)} considered and rejected"]
    if refused:
        head = ("into", "not fused", "tensor", "would save", "reason")
        why = [(*_fusion_row(fusion), fusion.refusal) for fusion in refused]
        lines.append(_fit([head, *why], width, ("tensor", "would save")))
    return "\n".join([*lines, *_explain_row_fusions(prepared.fusion_groups, width)])


def _explain_row_fusions(groups: Sequence[FusionGroup], width: int | None) -> list[str]:
    """Return how many runs of neighbours were considered, and the times of those taken or timed."""
    if not groups:
        return []
    pruned, done = (sum(getattr(its, name) for its in groups) for name in ("pruned", "done"))
    refused = sum(bool(its.refusal) for its in groups) - pruned
    lines = [
        "", f"{len(groups)} runs of neighbouring stages as row fusions: "
        f"{pruned} ({pruned / len(groups):.0%}) pruned by their bound, {refused} refused, "
        f"{done} done",
    ]  # fmt: skip
    rows: list[tuple[str, ...]] = [
        ("run together", "done", "bound", "predicted", "measured", "apart", "measured apart")
    ]
    for group in groups:
        if not (group.done or group.measured):
            continue
        together, apart = map(time_text, group.measured) if group.measured else ("", "")
        rows.append((
            shorten(" > ".join(group.members), 60), "yes" * group.done, time_text(group.bound),
            time_text(group.together), together, time_text(group.apart), apart,
        ))  # fmt: skip
    if not any(group.measured for group in groups):
        rows = [(row[0], *row[2:4], row[5]) for row in rows]
    names = ("run together",)
    table = fit(rows, width, clip=names, left=("run together", "done"), indent="  ")
    return [*lines, table] if len(rows) > 1 else lines


def _fusion_row(fusion: Fusion) -> tuple[str, ...]:
    return (
        shorten(fusion.second, 30), shorten(fusion.first, 40), shorten(fusion.tensor, 30),
        bytes_text(fusion.saved),
    )  # fmt: skip


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
    lines += [json.dumps(asdict(group)) for group in prepared.fusion_groups]
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
