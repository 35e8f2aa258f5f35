"""ONNX's backend node tests: which agree, which are refused and why, which are wrong.

The verdicts are printed as tables, in a terminal or as a page.
"""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from multiprocessing import get_context
from types import MappingProxyType
from typing import Any

import numpy as np

from polysci.errors import PolysciError
from polysci.frontends.onnx import importer
from polysci.frontends.onnx.model_file import DOMAINS, onnx_module, opset_of
from polysci.graph.graph import Graph, Node, Tensor
from polysci.graph.operators.builder import STORED
from polysci.graph.operators.lower import SUPPORTED, lower
from polysci.graph.passes.table import simplify
from polysci.graph.refusals import RefusedNodesError
from polysci.network.compiled import Network, compile_network
from polysci.numerics.arrays import Array
from polysci.text.tables import fit

TOGETHER = 60  # cases of one library
OPSETS = range(7, 24)
# Inputs that stay inputs: what is tested is computed when the network runs.
RANDOM = ("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform",
          "RandomUniformLike")  # fmt: skip
PASSED, REFUSED, WRONG, OUTSIDE = "passed", "refused", "wrong", "out of scope"
DECIDED = "other by decision"
# Results that are not those of the tests on purpose; docs/reference/onnx.md has the reasons.
DECISIONS: Mapping[str, str] = MappingProxyType(
    {
        "test_resize_downsample_scales_(linear|cubic)_align_corners": "corners of whole pixels",
        "test_dft_inverse(_opset19)?": "zeros within the rounding of f32",
        "test_maxunpool_export_with_output_shape": "indices counted in output_shape, as in ONNX "
        "Runtime",
        "test_attention_4d_causal_fp16_expanded": "float16 computed in f32, rounded at the end",
    }
)

Watch = Callable[[int, int], None]  # cases judged, cases in all
MOST_CASES = 6  # that a line names
_KINDS: Mapping[str, str] = MappingProxyType(
    {PASSED: "pass", REFUSED: "refused", DECIDED: "decided", WRONG: "wrong"}
)

Rows = list[tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class NodeCase:
    """A test of the onnx package: a model, its inputs, and what comes out."""

    name: str
    family: str
    model: bytes
    inputs: tuple[Array, ...]
    outputs: tuple[Array, ...]
    tolerance: tuple[float, float]  # relative, absolute


@dataclass(frozen=True, slots=True)
class CaseResult:
    """The outcome of a case; ``constant``: inputs that had to be bound to their values."""

    case: str
    family: str
    kind: str
    reason: str = ""
    constant: tuple[str, ...] = ()


def load_cases(pattern: str = "") -> tuple[list[NodeCase], list[CaseResult]]:
    """The cases in scope whose names match ``pattern``, and why others are out of scope."""
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of NumPy, in references that overflow on purpose
        tests = load_model_tests(kind="node")
    cases, outside = list[NodeCase](), list[CaseResult]()
    ops = {test.name: _operator(test.model) for test in tests}
    for test in sorted(tests, key=lambda test: str(test.name)):
        if not re.search(pattern, test.name):
            continue
        family = ops.get(re.sub(r"_expanded.*", "", test.name), ops[test.name])
        if reason := _outside(test):
            outside.append(CaseResult(test.name, family, OUTSIDE, reason))
            continue
        ((inputs, outputs),) = test.data_sets
        cases.append(NodeCase(
            test.name, family, test.model.SerializeToString(), tuple(map(_array, inputs)),
            tuple(map(_array, outputs)), (test.rtol, test.atol),
        ))  # fmt: skip
    return cases, outside


def _operator(model: Any) -> str:
    ops = [node.op_type for node in model.graph.node]
    return str(next((op for op in ops if op != "Constant"), ops[0]))


def _array(value: Any) -> Array:
    tensor = isinstance(value, onnx_module().TensorProto)
    return np.asarray(onnx_module().numpy_helper.to_array(value) if tensor else value)


def _outside(test: Any) -> str:
    """Why a case is out of scope; empty where it is in."""
    model, onnx = test.model, onnx_module()
    domains = sorted({node.domain for node in model.graph.node} - set(DOMAINS))
    if domains:
        return f"domain {domains[0]}"
    if opset_of(model, test.name) < OPSETS[0]:
        return f"opset below {OPSETS[0]}"
    if newer := [node.op_type for node in model.graph.node if _is_newer(onnx, node.op_type)]:
        return f"{newer[0]} is newer than opset {OPSETS[-1]}"
    if any(node.op_type == "ImageDecoder" for node in model.graph.node):
        return "images"
    if any(node.op_type in RANDOM for node in model.graph.node):
        return "random numbers"
    if re.search("training_(dropout|mode)", test.name) or "_training_mode" in test.name:
        return "training"
    for value in (*model.graph.input, *model.graph.output):
        if not value.type.HasField("tensor_type"):
            return "sequences, maps and optional values"
        kind = value.type.tensor_type.elem_type
        if np.dtype(onnx.helper.tensor_dtype_to_np_dtype(kind)).name not in STORED:
            return f"elements of {onnx.TensorProto.DataType.Name(kind).lower()}"
    return ""


def _is_newer(onnx: Any, op: str) -> bool:
    """Return whether OPSETS lack an operator; what they have may follow a later opset in a test."""
    try:
        onnx.defs.get_schema(op, OPSETS[-1])
    except onnx.defs.SchemaError:
        return True
    return False


def judge_cases(
    cases: Sequence[NodeCase],
    *,
    isa: str | None = None,
    flags: Sequence[str] | None = None,
    jobs: int = 1,
    watch: Watch = lambda done, total: None,
) -> list[CaseResult]:
    """A verdict on each case; many become one library, and libraries are built side by side.

    A process that dies takes only its own cases with it: they are tried again, in halves.
    """
    verdicts, pending = list[CaseResult](), list(_batches(cases))
    while pending:
        broken: list[list[NodeCase]] = []
        with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
            futures = {pool.submit(judge_batch, part, isa, flags): part for part in pending}
            for future in as_completed(futures):
                try:
                    verdicts += future.result()
                except BrokenProcessPool:
                    broken.append(futures[future])
                watch(len(verdicts), len(cases))
        pending = []
        for part in broken:
            half = len(part) // 2
            pending += [part[:half], part[half:]] if half else []
            verdicts += [] if half else [_verdict(part[0], WRONG, "the process died")]
    return sorted(verdicts, key=lambda verdict: verdict.case)


def _batches(cases: Sequence[NodeCase]) -> Iterator[list[NodeCase]]:
    for first in range(0, len(cases), TOGETHER):
        yield [*cases[first : first + TOGETHER]]


def _verdict(
    case: NodeCase, kind: str, reason: str = "", constant: Iterable[str] = ()
) -> CaseResult:
    return CaseResult(case.name, case.family, kind, reason, tuple(constant))


@dataclass(frozen=True, slots=True)
class ReadCase:
    """A case that is not refused: its graph, and the inputs that are constants in it."""

    case: NodeCase
    graph: Graph
    constant: tuple[str, ...]


def judge_batch(
    cases: Sequence[NodeCase], isa: str | None, flags: Sequence[str] | None
) -> list[CaseResult]:
    """Verdicts on cases that are compiled together."""
    verdicts, parts = list[CaseResult](), list[ReadCase]()
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        for case in cases:
            try:
                parts.append(read_case(case))
            except PolysciError as error:
                verdicts.append(_verdict(case, REFUSED, _reason(error)))
        return verdicts + _judge_parts(parts, isa, flags)


def read_case(case: NodeCase) -> ReadCase:
    """The graph of a case; inputs that a refusal asks to bind become constants."""
    model = onnx_module().ModelProto.FromString(case.model)
    names = [value.name for value in model.graph.input]
    arrays, bound = dict(zip(names, case.inputs, strict=False)), dict[str, Array]()
    while True:
        try:
            graph = importer.graph_of(model, values=bound, supported=SUPPORTED)
            graph = simplify(graph)
            lower(graph)
        except RefusedNodesError as error:
            asked = {name for refusal in error.refusals for name in refusal.inputs} - bound.keys()
            if not asked:
                raise
            bound |= {name: arrays[name] for name in asked}
        else:
            return ReadCase(case, graph, tuple(bound))


def _reason(error: PolysciError) -> str:
    if isinstance(error, RefusedNodesError):
        return "; ".join(dict.fromkeys(
            f"{refusal.op}: {refusal.reason}" for refusal in error.refusals
        ))  # fmt: skip
    return " ".join(str(error).split())[:300]


def _judge_parts(
    parts: Sequence[ReadCase], isa: str | None, flags: Sequence[str] | None
) -> list[CaseResult]:
    """Compile all in one library; in halves where that fails."""
    if not parts:
        return []
    try:
        network = compile_network(merge_graphs([part.graph for part in parts]), "estimate",
                                  isa=isa, flags=flags)  # fmt: skip
    except PolysciError as error:
        if len(parts) == 1:
            return [_verdict(parts[0].case, REFUSED, _reason(error))]
        half = len(parts) // 2
        return _judge_parts(parts[:half], isa, flags) + _judge_parts(parts[half:], isa, flags)
    outputs = iter(_run(network, parts))
    return [
        _compare(part, [next(outputs) for _ in part.graph.model_outputs]) for part in parts
    ]  # fmt: skip


def _run(network: Network, parts: Sequence[ReadCase]) -> list[Array]:
    arrays: list[Array] = []
    for part in parts:
        model = onnx_module().ModelProto.FromString(part.case.model)
        arrays += [
            array for value, array in zip(model.graph.input, part.case.inputs, strict=False)
            if value.name not in part.constant
        ]  # fmt: skip
    ports = network.inputs
    feeds = {port.name: array for port, array in zip(ports, arrays, strict=True)}
    return [*network(feeds).values()]


def _compare(part: ReadCase, results: Sequence[Array]) -> CaseResult:
    """Compare results as ONNX's own runner does."""
    case = part.case
    for result, expected in zip(results, case.outputs, strict=False):
        if result.shape != expected.shape or result.dtype != expected.dtype:
            reason = (
                f"{result.dtype}{[*result.shape]}, not {expected.dtype}{[*expected.shape]}"
            )  # fmt: skip
            return _verdict(case, WRONG, reason, part.constant)
        relative, absolute = case.tolerance
        reasons = [text for name, text in DECISIONS.items() if re.fullmatch(name, case.name)]
        if not np.allclose(result, expected, relative, absolute, equal_nan=True):
            if reasons:
                return _verdict(case, DECIDED, reasons[0], part.constant)
            difference = np.abs(result.astype(float) - expected.astype(float))
            largest = float(np.nan_to_num(difference, nan=np.inf).max())
            return _verdict(case, WRONG, f"differs by up to {largest:.3g}", part.constant)
    return _verdict(case, PASSED, "", part.constant)


def merge_graphs(graphs: Sequence[Graph]) -> Graph:
    """One graph of many; names begin with the graph's number."""
    merged = [_prefix(graph, f"g{number}/") for number, graph in enumerate(graphs)]
    return Graph(
        "merged",
        tuple(tensor for graph in merged for tensor in graph.inputs),
        tuple(tensor for graph in merged for tensor in graph.outputs),
        tuple(node for graph in merged for node in graph.nodes),
        {name: value for graph in merged for name, value in graph.constants.items()},
        {name: tensor for graph in merged for name, tensor in graph.tensors.items()},
        {name: mark for graph in merged for name, mark in graph.dynamic_dims.items()},
    )


def _prefix(graph: Graph, prefix: str) -> Graph:
    def rename(name: str) -> str:
        return name and prefix + name

    def move(tensor: Tensor) -> Tensor:
        return replace(tensor, name=rename(tensor.name))

    def change(node: Node) -> Node:
        return replace(node, inputs=tuple(map(rename, node.inputs)),
                       outputs=tuple(map(rename, node.outputs)))  # fmt: skip

    return replace(
        graph,
        inputs=tuple(map(move, graph.inputs)),
        outputs=tuple(map(move, graph.outputs)),
        nodes=tuple(map(change, graph.nodes)),
        constants={rename(name): value for name, value in graph.constants.items()},
        tensors={rename(name): move(tensor) for name, tensor in graph.tensors.items()},
        dynamic_dims={
            rename(name): replace(mark, count=rename(mark.count))
            for name, mark in graph.dynamic_dims.items()
        },
    )


def summary(verdicts: Sequence[CaseResult]) -> str:
    """One line: how many in scope pass."""
    counts = Counter(verdict.kind for verdict in verdicts)
    scope = len(verdicts) - counts[OUTSIDE]
    share = 100 * counts[PASSED] / scope if scope else 0.0
    return (
        f"{counts[PASSED]} of {scope} cases in scope pass ({share:.1f} %), {counts[REFUSED]} are "
        f"refused, {counts[DECIDED]} differ by decision, {counts[WRONG]} are wrong; "
        f"{counts[OUTSIDE]} are out of scope"
    )


def family_rows(verdicts: Iterable[CaseResult]) -> Rows:
    """A row for each operator that has cases in scope; the first row has the titles."""
    families: dict[str, Counter[str]] = {}
    for verdict in verdicts:
        if verdict.kind != OUTSIDE:
            counts = families.setdefault(verdict.family, Counter())
            counts[verdict.kind] += 1
            counts["bound"] += bool(verdict.constant)
    rows: Rows = [("operator", "cases", *_KINDS.values(), "inputs bound")]
    for family, counts in sorted(families.items()):
        numbers = [counts[kind] for kind in _KINDS]
        cells = [sum(numbers), *numbers, counts["bound"]]
        rows.append((family, *(str(number) if number else "" for number in cells)))
    return rows


def reason_rows(verdicts: Iterable[CaseResult], kind: str) -> Rows:
    """A row for each reason, with its cases."""
    reasons: dict[str, list[str]] = {}
    for verdict in verdicts:
        if verdict.kind == kind:
            reasons.setdefault(verdict.reason, []).append(verdict.case.removeprefix("test_"))
    ordered = sorted(reasons.items(), key=lambda item: (-len(item[1]), item[0]))
    return [
        (
            str(len(cases)),
            reason,
            ", ".join(cases[:MOST_CASES]) + ", ..." * (len(cases) > MOST_CASES),
        )
        for reason, cases in ordered
    ]


def text(verdicts: Sequence[CaseResult], width: int | None) -> str:
    """Tables for people."""
    parts = [fit(family_rows(verdicts), width, left=("operator",))]
    for kind in (WRONG, DECIDED, REFUSED, OUTSIDE):
        if rows := reason_rows(verdicts, kind):
            table = fit([("cases", kind, "which"), *rows], width, clip=("which",),
                        left=(kind, "which"))  # fmt: skip
            parts.append(table)
    return "\n\n".join([*parts, summary(verdicts)])


_PAGE = """\
# ONNX conformance

ONNX's backend node tests, run by `polysci conformance --markdown`, which wrote this page. In scope
are tests of the `ai.onnx` operators that opsets 7 to 23 have, on tensors of f32, f64, integers and
booleans; not random numbers, training, sequences, text, and other element types. Inputs that say a
shape are bound to their values, as `--value` does; "inputs bound" counts such cases. What is
decided otherwise has its reason in [Meaning of ONNX models](onnx.md).

{summary}.
"""


def markdown(verdicts: Sequence[CaseResult]) -> str:
    """The page of the documentation; it has no date, so that it changes with the results alone."""
    parts = [
        _PAGE.format(summary=summary(verdicts)),
        "## Operators\n",
        _table(family_rows(verdicts)),
    ]
    titles = {WRONG: "Wrong", DECIDED: "Other by decision", REFUSED: "Refused",
              OUTSIDE: "Out of scope"}  # fmt: skip
    for kind, title in titles.items():
        if rows := reason_rows(verdicts, kind):
            parts += [f"\n## {title}\n", _table([("cases", "why", "which"), *rows])]
    return "\n".join(parts)


def _table(rows: Rows) -> str:
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    lines.insert(1, "|---" * len(rows[0]) + "|")
    return "\n".join(lines)
