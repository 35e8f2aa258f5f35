"""A report as one self-contained HTML page without scripts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import log
from pathlib import Path
from xml.etree.ElementTree import Element

from polysci.explain import Explanation, MeasuredTime
from polysci.explain.levels import Inside
from polysci.explain.roofline import PEAK_NOTE
from polysci.explain.terms import LEVELS, MEANING, OTHER
from polysci.polyhedral.tile_schedule import Loop
from polysci.report.figures import BAND, Child, document, roofline, scatter, tag
from polysci.report.model import Report, ReportLayer, shape_text
from polysci.space import directives
from polysci.space.directives import Pack
from polysci.space.schedule import Step
from polysci.target.target import size_text
from polysci.text.tables import bytes_text, time_text

_STYLE = Path(__file__).with_name("style.css")
_COLUMNS = (
    "#", "layer", "schedule", "predicted", "measured", "GFLOP/s", "% of peak", "binds",
    "τ", "spent",
)  # fmt: skip
_ROOMY = ("schedule", "binds", "spent")
_WORDS = ("layer", "schedule", "binds")  # columns of text
_TERM_COLOURS = 7  # in style.css
_SMALL = (460, 270)


def page(report: Report) -> str:
    """The page as text. All names from users are escaped."""
    return whole_page(
        report.title, report.version, report.date, _header(report),
        summary_of(_cards(report), _notes(report)), _table(report), _figures(report),
        *_sections(report),
    )  # fmt: skip


def whole_page(title: str, version: str, date: str, header: Element, *parts: Element | None) -> str:
    """A page without scripts that needs no other file."""
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", f"{title}: polysci report"),
        tag("style", _STYLE.read_text(encoding="utf-8")),
    )
    body = tag(
        "body", header, tag("main", *parts), tag("footer", f"polysci {version}, {date}"),
    )  # fmt: skip
    return document(tag("html", head, body, lang="en"))


def _header(report: Report) -> Element:
    machine, target = report.machine, report.target
    caches = ", ".join(f"{cache.name} {size_text(cache.size)}" for cache in target.caches)
    rates = ", ".join(f"{name} {rate:.0f}" for name, rate in report.bandwidths.items())
    facts = [
        ("machine", f"{target.model_name}, {target.isa}, {target.cores} cores"),
        ("caches", caches),
        (report.peak_name, f"{report.peak:.1f} GFLOP/s on {thread_count(report.threads)}"),
        ("bandwidth", f"{rates} GB/s" + ("" if machine.measured else " (assumed)")),
        ("threads", str(report.threads)),
        ("level", report.level),
        ("date", report.date),
        ("polysci", report.version),
    ]
    return header_of("polysci report", report.title, facts)


def header_of(kicker: str, title: str, facts: Iterable[tuple[str, str]]) -> Element:
    """The head of a page, with its facts by name."""
    rows = [tag("div", tag("dt", name), tag("dd", value)) for name, value in facts]
    return tag("header", tag("p", kicker, class_="kicker"), tag("h1", title),
               tag("dl", rows, class_="facts"))  # fmt: skip


def thread_count(count: int) -> str:
    """A number of threads in words."""
    return "1 thread" if count == 1 else f"{count} threads"


def summary_of(cards: Iterable[tuple[str, str]], notes: Iterable[str] = ()) -> Element:
    """Numbers with what they mean, and notes below them."""
    divs = [tag("div", tag("b", value), tag("span", name)) for value, name in cards]
    return tag("section", tag("h2", "Summary"), tag("div", divs, class_="cards"),
               *(tag("p", note, class_="note") for note in notes))  # fmt: skip


def _cards(report: Report) -> Iterator[tuple[str, str]]:
    failed = len(report.layers) - len(report.good)
    yield str(len(report.layers)), "layers" + (f", {failed} failed" if failed else "")
    if report.network_seconds and report.network_gflops and report.peak_share:
        yield time_text(report.network_seconds), "measured, all layers as often as they occur"
        yield f"{report.network_gflops:.1f}", "GFLOP/s"
        yield f"{100 * report.peak_share:.0f} %", f"of the {report.peak_name}"
    if report.good:
        yield time_text(report.predicted_seconds), "predicted, all layers as often as they occur"
    if report.bias:
        yield f"{report.bias:.2f}", "predicted over measured, geometric mean"
    if report.median_tau is not None:
        yield f"{report.median_tau:.2f}", "Kendall's τ, predicted and measured, median"
    yield f"{report.spent:.1f} s", "spent searching"


def _notes(report: Report) -> Iterator[str]:
    missing = report.planned - len(report.layers)
    if missing:
        yield f"Interrupted: {missing} of {report.planned} layers are missing."
    if report.good and not report.timed:
        yield "Nothing was run: all times are the model's predictions."
    times = [layer.measured for layer in report.layers if layer.measured]
    if recorded := sum(time.recorded for time in times):
        yield f"{recorded} of {len(report.layers)} layers from records of earlier searches."
    if disturbed := sum(time.disturbed for time in times):
        yield (f"{disturbed} of {len(times)} measured times are disturbed: other work took most of "
               "their samples. The next search measures these layers again.")  # fmt: skip
    if report.timed:
        yield PEAK_NOTE


def _share(report: Report, layer: ReportLayer) -> float:
    seconds = layer.seconds
    peak = layer.account.peak if layer.account else report.peak
    return layer.problem.multiplied_flops / seconds * 1e-9 / peak if seconds else 0.0


def _table(report: Report) -> Element:
    head = tag("tr", *(tag("th", name, class_=_kind(name), scope="col") for name in _COLUMNS))
    rows = [_row(report, at, layer) for at, layer in enumerate(report.layers, 1)]
    return tag(
        "section", tag("h2", "Layers"),
        tag("div", tag("table", tag("thead", head), tag("tbody", rows)), class_="wide"),
    )  # fmt: skip


def _kind(column: str) -> str:
    """Classes of a cell; ``roomy`` columns are hidden on narrow screens, sections repeat them."""
    kind = "word" if column in _WORDS else "number"
    return f"{kind} roomy" if column in _ROOMY else kind


def _row(report: Report, at: int, layer: ReportLayer) -> Element:
    problem = layer.problem
    link = tag("a", layer.title, href=f"#layer-{at}")
    times = "" if problem.multiplicity == 1 else f" ×{problem.multiplicity}"
    name = tag("td", link, times, tag("small", shape_text(problem)), class_="word name")
    first = [tag("td", str(at), class_="number"), name]
    result = layer.result
    if result is None:
        failure = tag("td", f"failed: {layer.fault.splitlines()[0] if layer.fault else ''}",
                   class_="word fault", colspan=str(len(_COLUMNS) - 2))  # fmt: skip
        return tag("tr", *first, failure)
    seconds, share = layer.seconds, _share(report, layer)
    style = f"--share:{min(1.0, share) * 100:.1f}%"
    bar = tag("span", f"{100 * share:.0f}", class_="share", style=style)
    cells: dict[str, Child | list[Child]] = {
        "schedule": tag("code", str(result.schedule)),
        "predicted": time_text(result.predicted),
        "measured": _show_time(layer.measured),
        "GFLOP/s": f"{problem.flops / seconds * 1e-9:.1f}" if seconds else "",
        "% of peak": bar if seconds else "",
        "binds": layer.account.binding.name if layer.account else "",
        "τ": "" if layer.tau is None else f"{layer.tau:.2f}",
        "spent": "record"
        if layer.measured and layer.measured.recorded
        else f"{result.spent:.1f} s",
    }
    return tag("tr", *first, *(tag("td", c, class_=_kind(name)) for name, c in cells.items()))


def _show_time(measured: MeasuredTime | None) -> Child | list[Child]:
    if measured is None:
        return "not run"
    mark = tag("small", "disturbed", class_="fault", title=measured.disturbance)
    return [time_text(measured.seconds), mark if measured.disturbed else None]


def _figures(report: Report) -> Element | None:
    figures = [
        tag("figure", tag("h2", name), picture, tag("figcaption", caption))
        for name, picture, caption in (
            ("Roofline", roofline(report), _caption(report)),
            (
                "Rank scatter",
                scatter(report.layers),
                f"Every schedule tried, of all layers: those on the line are predicted exactly, "
                f"between the dashed lines within a factor of {BAND:g}. ",
            ),
        )
        if picture is not None
    ]
    if len(figures) == 2:
        figures[1][-1].extend([_key("chosen", "chosen"), _key("tried", "tried and dropped")])
    if figures:
        keys = [_key("predicted", "predicted"), _key("bound", "to the bound on loads")]
        figures[0][-1].extend([*([_key("chosen", "measured")] if report.timed else []), *keys])
    return tag("section", tag("div", figures, class_="figures")) if figures else None


def _caption(report: Report) -> str:
    return (
        "Numbers are rows of the table. Rates over flop per byte that the schedule moves into the "
        "last cache; the whisker reaches to what the lower bound on loads allows. Bandwidths are "
        f"those of {thread_count(report.threads)}. Timed with warm caches, so data may come from "
        "nearer than memory. "
    )


def _key(kind: str, name: str) -> Element:
    return tag("span", tag("i", class_=f"key {kind}"), name, class_="entry")


def _sections(report: Report) -> Iterator[Element]:
    if report.layers:
        yield tag("h2", "Layer by layer")
    for at, layer in enumerate(report.layers, 1):
        yield section(at, layer)


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
    note = f"A cache counts as holding what takes at most {100 * own.usable:.0f} % of its size."
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
