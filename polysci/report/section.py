"""One layer's section: loops with working sets, traffic, and the terms of the predicted time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import log
from xml.etree.ElementTree import Element

from polysci.explain import Explanation
from polysci.explain.levels import HELD, Inside
from polysci.explain.terms import LEVELS, MEANING, OTHER
from polysci.polyhedral.tile_schedule import Loop
from polysci.report.figures import scatter
from polysci.report.markup import Child, tag
from polysci.report.model import ReportLayer, shape_text
from polysci.space import directives
from polysci.space.directives import Pack
from polysci.space.schedule import Step
from polysci.text.tables import bytes_text, time_text

_TERM_COLOURS = 7  # in style.css
_SMALL = (460, 270)


def section(at: int, layer: ReportLayer) -> Element:
    """The section of layer number ``at``."""
    head = tag("h3", tag("span", str(at), class_="at"), " ", layer.title)
    problem = layer.problem
    kind = f"{problem.layout} {problem.dtype}".strip()
    facts = f"{shape_text(problem)}, {kind}, {_flops(problem.flops)}"
    if problem.multiplicity > 1:
        facts += f", {problem.multiplicity} times in the network"
    parts: list[Element | None] = [head, tag("p", facts, class_="shape")]
    if layer.result:
        parts.append(tag("p", tag("code", str(layer.result.schedule)), class_="schedule"))
    if layer.fault:
        parts.append(tag("pre", layer.fault, class_="fault"))
    if layer.account:
        left = tag("div", *_loops(layer.account), *_trial_scatter(layer))
        right = tag("div", *_time(layer, layer.account), *_traffic(layer.account))
        parts.append(tag("div", left, right, class_="halves"))
    return tag("section", *parts, class_="layer", id=f"layer-{at}")


def _flops(flops: int) -> str:
    return f"{flops / 1e9:.3g} GFLOP" if flops >= 1e8 else f"{flops / 1e6:.3g} MFLOP"


def _loops(own: Explanation) -> Iterator[Element]:
    """The loops, indented, with the bytes that one iteration of each touches."""
    low, high = _span(own)
    names = ("loop", "trips", "working set inside", "")
    head = tag("tr", *(tag("th", name) for name in names), tag("th", "held by", class_="roomy"))
    scale = tag("tr", tag("td"), tag("td"), tag("td", _scale(own, low, high)), tag("td"),
                tag("td"), class_="scale")  # fmt: skip
    rows, depth = [], 0
    steps = (None, *own.schedule.nest)
    for inside, step in zip(own.inside, steps, strict=True):
        rows.append(tag("tr", *_cells(own, inside, step, depth, low, high)))
        depth += isinstance(step, Loop)
    rows.append(_call(own, depth))
    yield tag("h4", "Schedule and working sets")
    yield tag("div", tag("table", tag("thead", head), tag("tbody", scale, rows), class_="loops"),
              class_="wide")  # fmt: skip
    yield tag("p", _packing(own), class_="note")


def _span(own: Explanation) -> tuple[float, float]:
    sizes = [inside.working_set for inside in own.inside]
    return min(*sizes, own.caches[0]) / 4, 1.5 * max(*sizes, *own.caches)


def _place(size: float, low: float, high: float) -> str:
    return f"{100 * log(max(size, low) / low) / log(high / low):.1f}%"


def _scale(own: Explanation, low: float, high: float) -> Element:
    ticks = [
        tag("b", name, style=f"left:{_place(size, low, high)}")
        for name, size in zip(LEVELS, own.caches, strict=False)
    ]
    return tag("div", ticks, class_="marks")


def _cells(
    own: Explanation,
    inside: Inside,
    step: Step | None,
    depth: int,
    low: float,
    high: float,
) -> Iterator[Element]:
    indent = f"padding-left:{0.4 + 0.9 * depth:.1f}em"
    yield tag("td", tag("code", _words(step)), style=indent, class_="word")
    yield tag("td", str(inside.trips) if isinstance(step, Loop) else "", class_="number")
    sizes = ", ".join(
        f"{letter} {bytes_text(size)}"
        for letter, size in zip("ABC", (inside.a, inside.b, inside.c), strict=True)
    )
    bar = tag("i", style=f"width:{_place(inside.working_set, low, high)}", class_=inside.fits)
    lines = [tag("u", style=f"left:{_place(size, low, high)}") for size in own.caches]
    yield tag("td", tag("div", bar, lines, class_="track", title=sizes))
    yield tag("td", bytes_text(inside.working_set), class_="number")
    yield tag("td", inside.fits, class_="word roomy")


def _words(step: Step | None) -> str:
    if step is None:
        return "the whole nest"
    if isinstance(step, Pack):
        return "copy A" + (f", {step.pad} apart" if step.pad else "")
    if not isinstance(step, Loop):
        return str(step)
    every = f" by {step.step}" if step.step > 1 else ""
    return f"for {step.dim}{every}{', parallel' if step.parallel else ''}"


def _call(own: Explanation, depth: int) -> Element:
    tile = {d.name: d.extent for d in own.dims}
    tile = own.schedule.tile(tile)
    inner = " ".join(f"{name}={size}" for name, size in tile.items() if size > 1)
    call: list[Child] = [tag("code", own.schedule.kernel), f" one call: {inner}"]
    indent = f"padding-left:{0.4 + 0.9 * depth:.1f}em"
    return tag("tr", tag("td", call, colspan="5", style=indent, class_="word call"))


def _packing(own: Explanation) -> str:
    pack = own.schedule.pack
    copied = "A is read where it lies." if pack is None else (
        f"A is copied inside {own.schedule.pack_depth} loops."
        if own.schedule.pack_depth else "A is copied once, before all loops."
    )  # fmt: skip
    sentences = (row.sentence for row in reversed(directives.DIRECTIVES) if own.schedule.has(row))
    marks = "".join(f" {sentence}" for sentence in sentences if sentence)
    note = f"A cache counts as holding what takes at most {100 * HELD:.0f} % of its size."
    return f"{copied} B is packed in panels.{marks} {note}"


def _time(layer: ReportLayer, own: Explanation) -> Iterator[Element]:
    """The predicted time by terms, and the measured time, on one scale."""
    measured, terms = layer.seconds, own.terms
    longest = max(measured or 0.0, terms.seconds)
    names = [name for name, _ in terms.shares]
    pieces = [
        tag("i", class_=_colour(name, names), style=f"width:{100 * value / longest:.2f}%",
            title=f"{name}: {time_text(value)}")
        for name, value in terms.stack()
    ]  # fmt: skip
    yield tag("h4", "Where predicted time goes")
    yield _time_bar("predicted", pieces, terms.seconds, own)
    if measured:
        bar = tag("i", class_="measured", style=f"width:{100 * measured / longest:.2f}%")
        yield _time_bar("measured", [bar], measured, own)
    else:
        yield tag("p", "Not measured.", class_="note")
    yield tag(
        "p",
        *(
            _entry(name, value, terms.seconds, _colour(name, names))
            for name, value in terms.stack()
            if value > 5e-4 * terms.seconds
        ),
        class_="keys",
    )
    yield tag("p", _bound_text(layer, own), class_="note")
    if layer.measured and layer.measured.remarks:
        kind = "note fault" if layer.measured.disturbed else "note"
        yield tag(
            "p", f"The measured time is {', and '.join(layer.measured.remarks)}.", class_=kind
        )


def _trial_scatter(layer: ReportLayer) -> Iterator[Element]:
    """The layer's own rank scatter."""
    picture = scatter([layer], *_SMALL) if layer.tau is not None else None
    if picture is not None:
        yield tag("h4", f"{len(layer.trials)} schedules tried")
        yield tag("div", picture, class_="small")


def _time_bar(name: str, pieces: Sequence[Element], seconds: float, own: Explanation) -> Element:
    speed = f"{time_text(seconds)}, {own.rate(seconds):.1f} GFLOP/s"
    return tag("div", tag("span", name), tag("div", pieces, class_="stack"), tag("span", speed),
               class_="timed")  # fmt: skip


def _colour(name: str, names: Sequence[str]) -> str:
    return OTHER if name == OTHER else f"t{names.index(name) % _TERM_COLOURS}"


def _entry(name: str, seconds: float, total: float, colour: str) -> Element:
    label = f"{name} {100 * seconds / total:.1f} %"
    return tag("span", tag("i", class_=f"key {colour}"), label, class_="entry",
               title=MEANING.get(name))  # fmt: skip


def _bound_text(layer: ReportLayer, own: Explanation) -> str:
    roof = own.binding
    text = f"{roof.name} binds at {roof.rate:.1f} GFLOP/s"
    if layer.seconds:
        text += f"; {100 * own.needed_rate(layer.seconds) / roof.rate:.0f} % of that was measured"
    if layer.tau is not None:
        text += f". {len(layer.trials)} schedules tried, Kendall's τ {layer.tau:.2f}"
    return text + "."


def _traffic(own: Explanation) -> Iterator[Element]:
    """Bytes into every cache by operand, beside the lower bound."""
    names = ("into", "A", "B", "C", "total", "least", "×", "flop/byte")
    head = tag("tr", *(tag("th", name) for name in names))
    rows = [
        tag(
            "tr", tag("th", flow.level, scope="row"),
            *(tag("td", bytes_text(size), class_="number")
              for size in (flow.a, flow.b, flow.c, flow.total, flow.bound)),
            tag("td", f"{flow.total / flow.bound:.2f}", class_="number"),
            tag("td", f"{own.multiplied / flow.total:.3g}", class_="number"),
        )
        for flow in own.flows
    ]  # fmt: skip
    yield tag("h4", "Traffic, and the least that any schedule moves")
    yield tag("div", tag("table", tag("thead", head), tag("tbody", rows), class_="flows"),
              class_="wide")  # fmt: skip
