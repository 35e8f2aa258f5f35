"""An explanation as aligned text."""

from __future__ import annotations

from collections.abc import Iterator

from polysci.explain.freedom import Dependence
from polysci.explain.levels import Inside
from polysci.explain.model import Explanation
from polysci.explain.terms import FACTORS, HIDDEN, MEANING, OTHER
from polysci.text.tables import bytes_text, columns, time_text

Rows = list[tuple[str, ...]]
_WHOLE = "the whole nest"


def render(explanation: Explanation) -> str:
    """Sections with a heading each."""
    return "\n".join(_lines(explanation)) + "\n"


def _lines(it: Explanation) -> Iterator[str]:
    yield it.title
    yield from _section("Loop nest", _nest(it))
    yield from _section("Dependences", _dependences(it))
    yield from _section("GEMM roles", _roles(it))
    yield from _section("Reuse that the nest offers", _reuse(it))
    yield from _section("Schedule", _schedule(it))
    yield from _section("Inside one iteration", _insides(it))
    yield from _section("Traffic, and the least that any schedule moves", _traffic(it))
    yield from _section("Prediction", _prediction(it))
    yield from _section("Roofline", _roofline(it))
    yield from _section("Nearest rivals", _rivals(it))
    yield from _section("What the rankers say of it", _views(it))


def _section(title: str, body: str) -> Iterator[str]:
    yield ""
    yield title
    yield body


def _nest(it: Explanation) -> str:
    rows = [("domain", str(it.scop.domain()))]
    rows += [("reads", str(one.map)) for s in it.scop.statements for one in s.accesses[:-1]]
    rows += [("writes", str(s.write.map)) for s in it.scop.statements]
    rows.append(("work", f"{it.flops / 1e9:.4g} GFLOP, padding counted"))
    return columns(rows, (0, 1))


def _dependences(it: Explanation) -> str:
    rows: Rows = [("kind", "distance along the loops", "binds the order")]
    found = it.dependences
    rows += [(one.kind, _distance(one), _binds(one)) for one in found]
    own = all(one.reduction or not one.distances for one in found if one.kind != "input")
    told = "none but the reduction's own: loops may be tiled and exchanged at will"
    free = told if own and not any(one.fault for one in found) else "isl checks every schedule"
    return columns(rows, (0, 1, 2)) + f"\n  what an order must keep: {free}"


def _distance(one: Dependence) -> str:
    if one.fault:
        return f"unknown: {one.fault}"
    words = [
        f"{name} {least}" if least == most else f"{name} {least}..{most}"
        for name, least, most in one.distances
    ]
    return ", ".join(words) or "none"


def _binds(one: Dependence) -> str:
    if one.kind == "input":
        return "no: reuse"
    if one.reduction:
        return "no: the reduction's own, which may be reordered"
    return "yes" if one.distances or one.fault else ""


def _roles(it: Explanation) -> str:
    rows: Rows = [("dimension", "role", "extent", "indexes")]
    for dim in it.contraction.dims:
        operands = (("A", it.contraction.a), ("B", it.contraction.b), ("C", it.contraction.out))
        uses = " ".join(
            f"{letter}({operand.array})" for letter, operand in operands if operand.uses(dim.name)
        )
        rows.append((dim.name, dim.role, str(dim.extent), uses))
    padded = "\n  A is read beyond its edges: padding" if it.contraction.padded else ""
    return columns(rows, (0, 1, 3)) + padded


def _reuse(it: Explanation) -> str:
    head = (
        "operand", "access", "type", "bytes", "uses of each", "reused along", "overlap",
        "contiguous",
    )  # fmt: skip
    rows: Rows = [head]
    for one in it.reuse:
        words = (" ".join(names) or "-" for names in (one.whole, one.window, one.contiguous))
        sizes = bytes_text(one.bytes), f"{one.times:.4g}"
        rows.append((one.operand, one.array, one.dtype, *sizes, *words))
    return columns(rows, (0, 1, 2, 5, 6, 7))


def _schedule(it: Explanation) -> str:
    rows = [("schedule", str(it.schedule)), ("from", it.origin), ("machine", it.machine)]
    if it.threads > 1:
        rows.append(("threads", str(it.threads)))
    rows.append(("predicted", _speed(it, it.terms.seconds)))
    if it.measured is not None:
        ratio = it.terms.seconds / it.measured
        rows.append(("measured", f"{_speed(it, it.measured)}; predicted {ratio:.2f} of it"))
    return columns(rows, (0, 1))


def _speed(it: Explanation, seconds: float) -> str:
    rate = it.rate(seconds)
    return f"{time_text(seconds)}, {rate:.1f} GFLOP/s, {100 * rate / it.peak:.0f} % of the peak"


def _insides(it: Explanation) -> str:
    head = ("loop", "trips", "extents", "A", "B", "C", "working set", "fits", "kept for the next")
    rows: Rows = [head]
    before: dict[str, int] = {}
    for one in it.inside:
        extents = dict(one.extents)
        shown = " ".join(f"{d}={n}" for d, n in extents.items() if before.get(d) != n) or "the same"
        before = extents
        sizes = [bytes_text(size) for size in (one.a, one.b, one.c, one.working_set)]
        rows.append((one.step or "(all)", str(one.trips), shown, *sizes, one.fits, _kept(one)))
    return columns(rows, (0, 2, 7, 8))


def _kept(one: Inside) -> str:
    """Operands that an iteration finds where the last one left them."""
    shares = [(name, share) for name, share in zip("ABC", one.kept, strict=True) if share > 0.005]
    return ", ".join(n if share > 0.995 else f"{100 * share:.0f} % of {n}" for n, share in shares)


def _traffic(it: Explanation) -> str:
    head = (
        "into", "size", "A", "B", "C", "total", "kept inside", "least", "times the least", "holds",
    )  # fmt: skip
    rows: Rows = [head]
    for flow in it.flows:
        sizes = (flow.size, flow.a, flow.b, flow.c, flow.total, flow.kept, flow.bound)
        times = f"{flow.total / flow.bound:.2f}"
        inside = "no sub-nest" if flow.holds is None else f"inside {flow.holds}"
        holds = _WHOLE if flow.holds == "" else inside
        rows.append((flow.level, *map(bytes_text, sizes), times, holds))
    return columns(rows, (0, 9))


def _prediction(it: Explanation) -> str:
    terms, several = it.terms, it.threads > 1
    rows: Rows = [("term", "work", "of the time", "", "")] if several else []
    for (name, work), (_, share) in zip(terms.work, terms.shares, strict=True):
        times = [time_text(work), time_text(share)] if several else [time_text(work)]
        rows.append((name, *times, _percent(it, share), MEANING.get(name, "")))
    blank = [""] if several else []
    rest = HIDDEN if terms.other < 0 else OTHER
    rows.append((rest, *blank, time_text(terms.other), _percent(it, terms.other), MEANING[rest]))
    if several:
        for name in FACTORS:
            rows.append((name, f"{terms.imbalance:.2f}", "", "", MEANING[name]))
    count = "1 thread" if it.threads == 1 else f"{it.threads} threads"
    rows.append(("sum", *blank, time_text(terms.seconds), "", f"on {count}"))
    return columns(rows, (0, 5 if several else 4, 3 + several))


def _percent(it: Explanation, seconds: float) -> str:
    return f"{100 * seconds / it.terms.seconds:.1f} %"


def _roofline(it: Explanation) -> str:
    rows: Rows = [("bound", "GFLOP/s", "times the peak", "flop a byte", "at most", "GB/s", "")]
    least = it.binding
    for roof in it.roofs:
        numbers = (roof.intensity, roof.most, roof.bandwidth)
        cells = ["" if number is None else f"{number:.3g}" for number in numbers]
        share = f"{roof.rate / it.peak:.2f}"
        mark = "<- binds" if roof == least else ""
        rows.append((roof.name, f"{roof.rate:.1f}", share, *cells, mark))
    return columns(rows, (0, 6)) + f"\n  {_reached(it)}"


def _reached(it: Explanation) -> str:
    times = [("predicted", it.terms.seconds), ("measured", it.measured)]
    told = [
        f"{name} {it.rate(seconds):.1f} GFLOP/s, {100 * it.rate(seconds) / it.binding.rate:.0f} %"
        for name, seconds in times
        if seconds
    ]
    return f"of the bound that binds ({it.binding.name}): {'; '.join(told)}"


def _rivals(it: Explanation) -> str:
    if not it.rivals:
        return "  none in the space"
    rows: Rows = [("another", "schedule", "predicted", "", "because")]
    for rival in it.rivals:
        more = f"{100 * (rival.terms.seconds / it.terms.seconds - 1):+.1f} %"
        rows.append(
            (rival.trait, str(rival.schedule), time_text(rival.terms.seconds), more, rival.why)
        )
    return columns(rows, (0, 1, 4))


def _views(it: Explanation) -> str:
    if not it.views:
        return "  no ranker can tell"
    rows: Rows = [("ranker", "place", "of", "cost to its best", "its own first")]
    for view in it.views:
        ratio = f"{view.cost / view.least:.3f}" if view.least > 0 else "-"
        tied = f" (with {view.ties} more)" if view.ties else ""
        first = "this one" if view.first == it.schedule else str(view.first)
        rows.append((view.ranker, f"{view.rank}{tied}", str(view.count), ratio, first))
    return columns(rows, (0, 4)) + "\n  among its rivals and the first choices of the search"
