"""A report as one self-contained HTML page without scripts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from xml.etree.ElementTree import Element

from polysci.explain import MeasuredTime
from polysci.explain.roofline import PEAK_NOTE, SOURCES
from polysci.report.figures import BAND, roofline, scatter
from polysci.report.markup import Child, document, tag
from polysci.report.model import Report, ReportLayer, shape_text
from polysci.report.section import section
from polysci.target.target import size_text
from polysci.text.tables import time_text

_STYLE = Path(__file__).with_name("style.css")
_COLUMNS = (
    "#", "layer", "schedule", "predicted", "measured", "GFLOP/s", "% of peak", "binds",
    "τ", "spent",
)  # fmt: skip
_ROOMY = ("schedule", "binds", "spent")
_WORDS = ("layer", "schedule", "binds")  # columns of text


def page(report: Report) -> str:
    """The page as text. All names from users are escaped."""
    return whole_page(
        report.title, report.version, report.date, _header(report),
        _summary(report), _table(report), _figures(report), *_sections(report),
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
    rates = ", ".join(
        f"{name} {rate:.0f}" for name, rate in zip(SOURCES, report.bandwidths, strict=True)
    )
    facts = [
        ("machine", f"{target.model_name}, {target.isa}, {target.cores} cores"),
        ("caches", caches),
        (report.peak_name, f"{report.peak:.1f} GFLOP/s on {_threads(report)}"),
        ("bandwidth", f"{rates} GB/s" + ("" if machine.measured else " (assumed)")),
        ("threads", str(report.threads)),
        ("level", report.level),
        ("date", report.date),
        ("polysci", report.version),
    ]
    rows = [tag("div", tag("dt", name), tag("dd", value)) for name, value in facts]
    return tag("header", tag("p", "polysci report", class_="kicker"), tag("h1", report.title),
               tag("dl", rows, class_="facts"))  # fmt: skip


def _threads(report: Report) -> str:
    return "1 thread" if report.threads == 1 else f"{report.threads} threads"


def _summary(report: Report) -> Element:
    cards = [tag("div", tag("b", value), tag("span", name)) for name, value in _cards(report)]
    notes = list(_notes(report))
    return tag("section", tag("h2", "Summary"), tag("div", cards, class_="cards"),
               *(tag("p", note, class_="note") for note in notes))  # fmt: skip


def _cards(report: Report) -> Iterator[tuple[str, str]]:
    failed = len(report.layers) - len(report.good)
    yield "layers" + (f", {failed} failed" if failed else ""), str(len(report.layers))
    if report.network_seconds and report.network_gflops and report.peak_share:
        yield "measured, all layers as often as they occur", time_text(report.network_seconds)
        yield "GFLOP/s", f"{report.network_gflops:.1f}"
        yield f"of the {report.peak_name}", f"{100 * report.peak_share:.0f} %"
    if report.good:
        yield "predicted, all layers as often as they occur", time_text(report.predicted_seconds)
    if report.bias:
        yield "predicted over measured, geometric mean", f"{report.bias:.2f}"
    if report.median_tau is not None:
        yield "Kendall's τ, predicted and measured, median", f"{report.median_tau:.2f}"
    yield "spent searching", f"{report.spent:.1f} s"


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
    cells: dict[str, Child | list[Child]] = {
        "schedule": tag("code", str(result.schedule)),
        "predicted": time_text(result.predicted),
        "measured": _show_time(layer.measured),
        "GFLOP/s": f"{problem.flops / seconds * 1e-9:.1f}" if seconds else "",
        "% of peak": _bar(share) if seconds else "",
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


def _bar(share: float) -> Element:
    style = f"--share:{min(1.0, share) * 100:.1f}%"
    return tag("span", f"{100 * share:.0f}", class_="share", style=style)


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
        f"those of {_threads(report)}. Timed with warm caches, so data may come from nearer than "
        "memory. "
    )


def _key(kind: str, name: str) -> Element:
    return tag("span", tag("i", class_=f"key {kind}"), name, class_="entry")


def _sections(report: Report) -> Iterator[Element]:
    if report.layers:
        yield tag("h2", "Layer by layer")
    for at, layer in enumerate(report.layers, 1):
        yield section(at, layer)
