"""The verdicts on ONNX's node tests as tables: in a terminal, and as a page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from polysci.peers.networks.conformance import DECIDED, OUTSIDE, PASSED, REFUSED, WRONG, CaseResult
from polysci.text.tables import fit

MOST_CASES = 6  # that a line names
_KINDS: Mapping[str, str] = MappingProxyType(
    {PASSED: "pass", REFUSED: "refused", DECIDED: "decided", WRONG: "wrong"}
)

Rows = list[tuple[str, ...]]


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
