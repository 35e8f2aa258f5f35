"""An explanation as aligned text."""

from __future__ import annotations

from collections.abc import Iterator

from polysci.explain.model import Explanation
from polysci.legality import ordered_dependences
from polysci.tabular import bytes_text, columns, time_text


def render(explanation: Explanation) -> str:
    """Sections with a heading each."""
    return "\n".join(_lines(explanation)) + "\n"


def _lines(it: Explanation) -> Iterator[str]:
    yield it.title
    yield from _section("Loop nest", _nest(it))
    yield from _section("GEMM roles", _roles(it))
    yield from _section("Schedule", _schedule(it))
    yield from _section("Inside one iteration", _insides(it))
    yield from _section("Traffic, and the least that any schedule moves", _traffic(it))
    yield from _section("Prediction", _prediction(it))
    yield from _section("Nearest rivals", _rivals(it))


def _section(title: str, body: str) -> Iterator[str]:
    yield ""
    yield title
    yield body


def _nest(it: Explanation) -> str:
    rows = [("domain", str(it.scop.domain()))]
    rows += [("reads", str(one.map)) for s in it.scop.statements for one in s.accesses[:-1]]
    rows += [("writes", str(s.write.map)) for s in it.scop.statements]
    free = ordered_dependences(it.scop).is_empty()
    own = "only the reduction's own, which may be reordered"
    rows.append(("dependences", own if free else "more than the reduction's own"))
    return columns(rows, (0, 1))


def _roles(it: Explanation) -> str:
    rows = [("dimension", "role", "extent", "indexes")]
    for dim in it.contraction.dims:
        operands = (("A", it.contraction.a), ("B", it.contraction.b), ("C", it.contraction.out))
        uses = " ".join(
            f"{letter}({operand.array})" for letter, operand in operands if operand.uses(dim.name)
        )
        rows.append((dim.name, dim.role, str(dim.extent), uses))
    padded = "\n  A is read beyond its edges: padding" if it.contraction.padded else ""
    return columns(rows, (0, 1, 3)) + padded


def _schedule(it: Explanation) -> str:
    rows = [("schedule", str(it.schedule)), ("from", it.origin), ("machine", it.machine)]
    if it.threads > 1:
        rows.append(("threads", str(it.threads)))
    rows.append(("predicted", _speed(it, it.terms.seconds)))
    if it.measured is not None:
        rows.append(("measured", _speed(it, it.measured)))
    return columns(rows, (0, 1))


def _speed(it: Explanation, seconds: float) -> str:
    rate = it.flops / seconds * 1e-9
    return f"{time_text(seconds)}, {rate:.1f} GFLOP/s, {100 * rate / it.peak:.0f} % of the peak"


def _insides(it: Explanation) -> str:
    rows: list[tuple[str, ...]] = [("loop", "trips", "extents", "A", "B", "C", "working set")]
    before: dict[str, int] = {}
    for one in it.inside:
        extents = dict(one.extents)
        shown = " ".join(f"{d}={n}" for d, n in extents.items() if before.get(d) != n) or "the same"
        before = extents
        sizes = [bytes_text(size) for size in (one.a, one.b, one.c, one.working_set)]
        rows.append((one.step or "(all)", str(one.trips), shown, *sizes))
    return columns(rows, (0, 2))


def _traffic(it: Explanation) -> str:
    head = ("into", "size", "A", "B", "C", "total", "kept inside", "least", "times the least")
    rows: list[tuple[str, ...]] = [head]
    for flow in it.flows:
        sizes = (flow.size, flow.a, flow.b, flow.c, flow.total, flow.kept, flow.bound)
        times = f"{flow.total / flow.bound:.2f}"
        rows.append((flow.level, *map(bytes_text, sizes), times))
    return columns(rows)


def _prediction(it: Explanation) -> str:
    terms = it.terms
    rows = [
        ("compute", time_text(terms.compute), "microkernel at its measured rate, tails included"),
        ("calls", time_text(terms.calls), "entering register tiles, moving C"),
        ("transfer", time_text(terms.transfer), "traffic that compute does not hide"),
        ("packing", time_text(terms.packing), "copying A"),
        ("other", time_text(terms.other), "crowded L1 sets, starting threads"),
    ]
    if it.threads > 1:
        rows.append(("imbalance", f"{terms.imbalance:.2f}", "the busiest thread over the mean"))
    rows.append(("sum", time_text(terms.seconds), f"on {it.threads} thread(s)"))
    return columns(rows, (0, 2))


def _rivals(it: Explanation) -> str:
    if not it.rivals:
        return "  none in the space"
    rows = [("another", "schedule", "predicted", "", "because")]
    for rival in it.rivals:
        more = f"{100 * (rival.terms.seconds / it.terms.seconds - 1):+.1f} %"
        rows.append(
            (rival.trait, str(rival.schedule), time_text(rival.terms.seconds), more, rival.why)
        )
    return columns(rows, (0, 1, 4))
