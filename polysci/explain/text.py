"""An explanation as aligned text, and as JSON members."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from types import MappingProxyType
from typing import Any

from polysci.explain.dependences import Dependence
from polysci.explain.levels import Inside
from polysci.explain.measured_time import quality_members
from polysci.explain.model import Explanation
from polysci.explain.terms import FACTORS, HIDDEN, MEANING, OTHER
from polysci.polyhedral.contraction import columns_of
from polysci.text.tables import bytes_text, fit, pairs, paragraph, time_text

Rows = list[tuple[str, ...]]
_WHOLE = "the whole nest"


def render(explanation: Explanation, width: int | None = None) -> str:
    """Sections with a heading each, in ``width`` columns; None: whole tables."""
    lines = [paragraph(explanation.title, width, "")]
    for title, body in _SECTIONS.items():
        lines += ["", title, body(explanation, width)]
    return "\n".join(lines) + "\n"


def _nest(explanation: Explanation, width: int | None) -> str:
    rows = [("domain", str(explanation.scop.domain()))]
    rows += [
        ("reads", str(access.map))
        for s in explanation.scop.statements
        for access in s.accesses[:-1]
    ]
    rows += [("writes", str(s.write.map)) for s in explanation.scop.statements]
    work = f"{explanation.flops / 1e9:.4g} GFLOP"
    if explanation.multiplied != explanation.flops:
        work += f", of which {explanation.multiplied / 1e9:.4g} are not with padding"
    rows.append(("work", work))
    return pairs(rows, width)


def _dependences(explanation: Explanation, width: int | None) -> str:
    rows: Rows = [("kind", "distance along the loops", "binds the order")]
    kinds = explanation.dependences
    rows += [(kind.kind, _distance(kind), _binds(kind)) for kind in kinds]
    own = all(kind.reduction or not kind.distances for kind in kinds if kind.kind != "input")
    order = "isl checks every schedule"
    if own and not any(kind.fault for kind in kinds):
        order = "none but the reduction's own: loops may be tiled and exchanged at will"
    table = fit(rows, width, wrap=rows[0][1:], left=rows[0], indent="  ")
    return f"{table}\n{paragraph(f'what an order must keep: {order}', width)}"


def _distance(dependence: Dependence) -> str:
    if dependence.fault:
        return f"unknown: {dependence.fault}"
    ranges = [
        f"{name} {low}" if low == high else f"{name} {low}..{high}"
        for name, low, high in dependence.distances
    ]
    return ", ".join(ranges) or "none"


def _binds(dependence: Dependence) -> str:
    if dependence.kind == "input":
        return "no: reuse"
    if dependence.reduction:
        return "no: the reduction's own, which may be reordered"
    return "yes" if dependence.distances or dependence.fault else ""


def _roles(explanation: Explanation, width: int | None) -> str:
    rows: Rows = [("dimension", "role", "extent", "indexes")]
    roles = explanation.contraction
    for dim in roles.dims:
        operands = (("A", roles.x), ("B", roles.w), ("C", roles.out))
        uses = " ".join(
            f"{letter}({operand.array})" for letter, operand in operands if operand.uses(dim.name)
        )
        rows.append((dim.name, dim.role, str(dim.extent), uses))
    remark = "\n  A is read beyond its edges: padding" if roles.padded else ""
    if roles.image and roles.image.gaps:
        remark = (
            f"\n  of every {roles.image.pitch} positions along {columns_of(roles).name}, "
            f"C has {roles.image.columns}"
        )
    left = ("dimension", "role", "indexes")
    return fit(rows, width, wrap=("indexes",), left=left, indent="  ") + remark


def _reuse(explanation: Explanation, width: int | None) -> str:
    head = (
        "operand", "access", "type", "bytes", "uses of each", "reused along", "overlap",
        "contiguous",
    )  # fmt: skip
    rows: Rows = [head]
    for reuse in explanation.reuse:
        dims = (" ".join(names) or "-" for names in (reuse.whole, reuse.window, reuse.contiguous))
        sizes = bytes_text(reuse.bytes), f"{reuse.times:.4g}"
        rows.append((reuse.operand, reuse.array, reuse.dtype, *sizes, *dims))
    left = ("operand", "access", "type", *head[-3:])
    return fit(rows, width, drop=("type", "access"), wrap=head[-3:], left=left, indent="  ")


def _schedule(explanation: Explanation, width: int | None) -> str:
    rows = [
        ("schedule", str(explanation.schedule)),
        ("from", explanation.origin),
        ("machine", explanation.machine),
    ]
    if explanation.threads > 1:
        rows.append(("threads", str(explanation.threads)))
    rows.append(("predicted", _speed(explanation, explanation.terms.seconds)))
    if measured := explanation.measured:
        ratio = explanation.terms.seconds / measured.seconds
        speed = _speed(explanation, measured.seconds)
        rows.append(("measured", f"{speed}; predicted {ratio:.2f} of it"))
        rows += [("", remark) for remark in measured.remarks]
    return pairs(rows, width)


def _speed(explanation: Explanation, seconds: float) -> str:
    rate = explanation.rate(seconds)
    percent = 100 * explanation.needed_rate(seconds) / explanation.peak
    return f"{time_text(seconds)}, {rate:.1f} GFLOP/s, {percent:.0f} % of the peak"


def _insides(explanation: Explanation, width: int | None) -> str:
    head = ("loop", "trips", "extents", "A", "B", "C", "working set", "fits", "kept for the next")
    rows: Rows = [head]
    before: dict[str, int] = {}
    for inside in explanation.inside:
        extents = dict(inside.extents)
        shown = " ".join(f"{d}={n}" for d, n in extents.items() if before.get(d) != n) or "the same"
        before = extents
        sizes = [bytes_text(size) for size in (inside.a, inside.b, inside.c, inside.working_set)]
        rows.append(
            (inside.step or "(all)", str(inside.trips), shown, *sizes, inside.fits, _kept(inside))
        )
    left = ("loop", "extents", "fits", "kept for the next")
    drop = ("kept for the next", "extents")
    return fit(rows, width, drop=drop, wrap=("loop",), left=left, indent="  ")


def _kept(inside: Inside) -> str:
    """Operands, or shares of them, that an iteration reuses from the previous one."""
    shares = [
        (name, share) for name, share in zip("ABC", inside.kept, strict=True) if share > 0.005
    ]
    return ", ".join(n if share > 0.995 else f"{100 * share:.0f} % of {n}" for n, share in shares)


def _traffic(explanation: Explanation, width: int | None) -> str:
    head = (
        "into", "size", "A", "B", "C", "total", "kept inside", "least", "times the least", "holds",
    )  # fmt: skip
    rows: Rows = [head]
    for flow in explanation.flows:
        sizes = (flow.size, flow.a, flow.b, flow.c, flow.total, flow.kept, flow.bound)
        times = f"{flow.total / flow.bound:.2f}"
        inside = "no sub-nest" if flow.holds is None else f"inside {flow.holds}"
        holds = _WHOLE if flow.holds == "" else inside
        rows.append((flow.level, *map(bytes_text, sizes), times, holds))
    drop = ("kept inside", "holds", "size")
    return fit(rows, width, drop=drop, left=("into", "holds"), indent="  ")


def _prediction(explanation: Explanation, width: int | None) -> str:
    terms, several = explanation.terms, explanation.threads > 1
    head = ("term", "work", *["of the time"] * several, "share", "what it is")
    rows: Rows = [head]
    for (name, work), (_, share) in zip(terms.work, terms.shares, strict=True):
        times = [time_text(work), time_text(share)] if several else [time_text(work)]
        rows.append((name, *times, _percent(explanation, share), MEANING.get(name, "")))
    blank = [""] if several else []
    rest = HIDDEN if terms.other < 0 else OTHER
    rows.append(
        (rest, *blank, time_text(terms.other), _percent(explanation, terms.other), MEANING[rest])
    )
    if several:
        for name in FACTORS:
            rows.append((name, f"{terms.imbalance:.2f}", "", "", MEANING[name]))
    count = "1 thread" if explanation.threads == 1 else f"{explanation.threads} threads"
    rows.append(("sum", *blank, time_text(terms.seconds), "", f"on {count}"))
    return fit(rows, width, wrap=head[-1:], left=(head[0], head[-1]), indent="  ")


def _percent(explanation: Explanation, seconds: float) -> str:
    return f"{100 * seconds / explanation.terms.seconds:.1f} %"


def _roofline(explanation: Explanation, width: int | None) -> str:
    rows: Rows = [("bound", "GFLOP/s", "times the peak", "flop a byte", "at most", "GB/s", "")]
    binding = explanation.binding
    for roof in explanation.roofs:
        numbers = (roof.intensity, roof.most, roof.bandwidth)
        cells = ["" if number is None else f"{number:.3g}" for number in numbers]
        share = f"{roof.rate / explanation.peak:.2f}"
        mark = "<- binds" if roof == binding else ""
        rows.append((roof.name, f"{roof.rate:.1f}", share, *cells, mark))
    table = fit(
        rows, width, drop=("at most", "GB/s"), wrap=("bound",), left=("bound", ""), indent="  "
    )
    return f"{table}\n{_rates(explanation, width)}"


def _rates(explanation: Explanation, width: int | None) -> str:
    times = [("predicted", explanation.terms.seconds)]
    times += [("measured", explanation.measured.seconds)] if explanation.measured else []
    rates = [(name, explanation.needed_rate(seconds)) for name, seconds in times]
    bound = explanation.binding.rate
    texts = [f"{name} {rate:.1f} GFLOP/s, {100 * rate / bound:.0f} %" for name, rate in rates]
    text = f"of the bound that binds ({explanation.binding.name}): {'; '.join(texts)}"
    return paragraph(text, width)


def _rivals(explanation: Explanation, width: int | None) -> str:
    if not explanation.rivals:
        return "  none in the space"
    rows: Rows = [("another", "schedule", "predicted", "slower", "because")]
    for rival in explanation.rivals:
        more = f"{100 * (rival.terms.seconds / explanation.terms.seconds - 1):+.1f} %"
        rows.append(
            (rival.trait, str(rival.schedule), time_text(rival.terms.seconds), more, rival.why)
        )
    columns = ("another", "schedule", "because")
    return fit(rows, width, wrap=columns, left=columns, indent="  ")


def _views(explanation: Explanation, width: int | None) -> str:
    if not explanation.views:
        return "  no ranker can tell"
    rows: Rows = [("ranker", "place", "of", "cost to its best", "its own first")]
    for view in explanation.views:
        ratio = f"{view.cost / view.least:.3f}" if view.least > 0 else "-"
        tied = f" (with {view.ties} more)" if view.ties else ""
        first = "this one" if view.first == explanation.schedule else str(view.first)
        rows.append((view.ranker, f"{view.rank}{tied}", str(view.count), ratio, first))
    columns = ("ranker", "place", "its own first")
    table = fit(rows, width, wrap=columns[::-1], left=(columns[0], columns[2]), indent="  ")
    return f"{table}\n  among its rivals and the first choices of the search"


_SECTIONS: Mapping[str, Callable[[Explanation, int | None], str]] = MappingProxyType(
    {
        "Loop nest": _nest,
        "Dependences": _dependences,
        "GEMM roles": _roles,
        "Reuse that the nest offers": _reuse,
        "Schedule": _schedule,
        "Inside one iteration": _insides,
        "Traffic, and the least that any schedule moves": _traffic,
        "Prediction": _prediction,
        "Roofline": _roofline,
        "Nearest rivals": _rivals,
        "What the rankers say of it": _views,
    }
)


def members(explanation: Explanation) -> dict[str, Any]:
    """Everything that ``render`` prints, as numbers: seconds, bytes, GFLOP/s."""
    measured = explanation.measured
    return {
        "title": explanation.title,
        "domain": str(explanation.scop.domain()),
        "reads": str(explanation.scop.reads()),
        "writes": str(explanation.scop.writes()),
        "dependences": [_dependence(dependence) for dependence in explanation.dependences],
        "dimensions": {d.name: {"extent": d.extent, "role": d.role} for d in explanation.dims},
        "roles": str(explanation.contraction),
        "reuse": [asdict(reuse) for reuse in explanation.reuse],
        "machine": explanation.machine,
        "threads": explanation.threads,
        "flops": explanation.flops,
        "multiplied_flops": explanation.multiplied,
        "schedule": str(explanation.schedule),
        "origin": explanation.origin,
        "predicted_seconds": explanation.terms.seconds,
        "measured_seconds": measured.seconds if measured else None,
        **quality_members(measured),
        "peak_gflops": explanation.peak,
        "terms": explanation.terms.to_json(),
        "inside": [
            asdict(row)
            | {
                "extents": dict(row.extents),
                "kept": dict(zip("abc", row.kept, strict=True)),
                "working_set": row.working_set,
            }
            for row in explanation.inside
        ],
        "traffic": [asdict(flow) | {"total": flow.total} for flow in explanation.flows],
        "roofline": {
            "roofs": [asdict(roof) for roof in explanation.roofs],
            "binding": explanation.binding.name,
            "predicted_gflops": explanation.needed_rate(explanation.terms.seconds),
            "measured_gflops": explanation.needed_rate(measured.seconds) if measured else None,
        },
        "rivals": [
            {
                "differs_in": rival.trait,
                "schedule": str(rival.schedule),
                "predicted_seconds": rival.terms.seconds,
                "why": rival.why,
                "terms": rival.terms.to_json(),
            }
            for rival in explanation.rivals
        ],
        "rankers": [view.to_json() for view in explanation.views],
    }


def _dependence(dependence: Dependence) -> dict[str, Any]:
    content = asdict(dependence)
    return content | {"distances": {name: [low, high] for name, low, high in dependence.distances}}
