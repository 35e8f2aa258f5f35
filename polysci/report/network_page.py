"""A network as one self-contained HTML page without scripts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from xml.etree.ElementTree import Element

from polysci.explain.roofline import SOURCES
from polysci.network.account import StageAccount
from polysci.report.markup import Child, tag
from polysci.report.network_figures import NAMED, memory_map, stage_roofline
from polysci.report.network_model import NetworkPage
from polysci.report.page import whole_page
from polysci.target.target import size_text
from polysci.text.tables import bytes_text, shorten, time_text

FIRST = 4  # stages and fusions that are told at the top
WORTH = 0.003  # of a run: less is not told at the top
BESIDE = 0.1  # of a run: more is told
MOST = 40  # rows of a table of fusions
_NAME = 110  # characters
_WORDS = ("stage", "kind", "bound by", "into", "from", "tensor", "why", "result", "changes")
Row = Sequence["Child | list[Child]"]


def network_page(page: NetworkPage) -> str:
    """The page as text. All names from users are escaped."""
    return whole_page(
        page.title, page.version, page.date, _header(page), _summary(page), _first(page),
        _timeline(page), _figures(page), _stages(page), _apart(page), _fused(page),
        _layouts(page),
    )  # fmt: skip


def _header(page: NetworkPage) -> Element:
    network, options = page.account.network, page.account.network.options
    target = options.target
    caches = ", ".join(f"{cache.name} {size_text(cache.size)}" for cache in target.caches)
    rates = ", ".join(f"{name} {rate:.0f}"
                      for name, rate in zip(SOURCES, page.bandwidths, strict=True))  # fmt: skip
    known = "" if page.machine.measured else " (assumed)"
    facts = [
        ("machine", f"{target.model_name}, {target.isa}, {target.cores} cores"),
        ("caches", caches),
        *(
            (name, f"{peak:.1f} GFLOP/s on {_threads(network.threads)}{known}")
            for name, peak in page.peaks.items()
        ),
        ("bandwidth", f"{rates} GB/s{known}"),
        ("threads", str(network.threads)),
        ("type between layers", network.dtype),
        ("level, algorithm", f"{options.level}, {options.algorithm}"),
        ("compiled in", f"{network.seconds:.1f} s"),
    ]
    rows = [tag("div", tag("dt", name), tag("dd", value)) for name, value in facts]
    return tag("header", tag("p", "polysci report of a network", class_="kicker"),
               tag("h1", page.title), tag("dl", rows, class_="facts"))  # fmt: skip


def _threads(count: int) -> str:
    return "1 thread" if count == 1 else f"{count} threads"


def _summary(page: NetworkPage) -> Element:
    report, rate = page.account.report, page.flops / page.account.report.latency * 1e-9
    cards = [
        (time_text(report.latency), "a run, median"),
        (f"{rate:.1f}", "GFLOP/s"),
        (f"{100 * page.at_peak / report.latency:.0f} %", "of " + " and ".join(page.peaks)),
        (str(len(page.account.stages)), "stages"),
        (bytes_text(report.arena), f"arena; {bytes_text(report.unshared)} if tensors shared none"),
        (bytes_text(report.packed), "packed weights"),
        (time_text(report.call), "a call from Python"),
        (time_text(max(0.0, report.rest)), "of a run beside its stages"),
    ]
    divs = [tag("div", tag("b", value), tag("span", name)) for value, name in cards]
    return tag("section", tag("h2", "Summary"), tag("div", divs, class_="cards"))


def _first(page: NetworkPage) -> Element:
    """Write what to look at first: where time goes beyond what the machine allows."""
    lines = [_whole(page), *_losses(page), *_unfused(page)]
    return tag(
        "section", tag("h2", "Look at first"),
        tag("ol", [tag("li", line) for line in lines], class_="first"),
    )  # fmt: skip


def _whole(page: NetworkPage) -> str:
    report = page.account.report
    least = sum(map(page.least, page.account.stages))
    text = (
        f"The stages could take {time_text(least)} at the peak and the bandwidth of memory: a run "
        f"takes {report.latency / max(least, 1e-12):.2f} times that."
    )
    if report.rest > BESIDE * report.latency:
        text += (
            f" {time_text(report.rest)} of it pass beside the stages: other programs disturbed the "
            "measurement, or threads wait."
        )
    return text


def _losses(page: NetworkPage) -> Iterator[list[Child]]:
    total = page.account.report.latency
    for stage in sorted(page.account.stages, key=lambda stage: -page.loss(stage))[:FIRST]:
        loss = page.loss(stage)
        if loss < WORTH * total:
            return
        part = 100 * page.least(stage) / stage.seconds
        yield [
            _link(page, stage),
            f" takes {time_text(stage.seconds)}, {100 * page.share(stage):.1f} % of a run. "
            f"{page.binds(stage).capitalize()} would allow {time_text(page.least(stage))}: it "
            f"reaches {part:.0f} % of that, and {time_text(loss)} could be won at most.",
        ]


def _unfused(page: NetworkPage) -> Iterator[list[Child]]:
    stages = page.account.stages
    for pair in sorted(page.account.apart, key=lambda pair: -pair.bytes)[:2]:
        spent = pair.bytes / (page.bandwidths[-1] * 1e9)
        if spent < WORTH * page.account.report.latency:
            return
        yield [
            _link(page, stages[pair.second]),
            " reads what ",
            _link(page, stages[pair.first]),
            f" wrote: {bytes_text(pair.bytes)} of traffic. Not fused: {'; '.join(pair.reasons)}.",
        ]


def _link(page: NetworkPage, stage: StageAccount) -> Element:
    number = 1 + page.by_time.index(stage)
    return tag("a", f"{number} {shorten(stage.name, 60)}", href=f"#stage-{number}")


def _timeline(page: NetworkPage) -> Element:
    whole = sum(stage.seconds for stage in page.account.stages) or 1.0
    pieces = [
        tag("i", class_=f"t{stage.position % 7}", style=f"width:{100 * stage.seconds / whole:.3f}%",
            title=f"{shorten(stage.name, _NAME)}: {time_text(stage.seconds)}")
        for stage in page.account.stages
    ]  # fmt: skip
    return tag(
        "section", tag("h2", "A run from the left to the right"),
        tag("div", pieces, class_="stack run"),
        tag("p", "Stages in program order, as wide as their time; colours only tell neighbours "
            "apart. Names show under the pointer.", class_="note"),
    )  # fmt: skip


def _stages(page: NetworkPage) -> Element:
    names = ("#", "stage", "kind", "time", "% of a run", "GFLOP/s", "moved", "GB/s", "bound by",
             "% of bound", "threads")  # fmt: skip
    rows = [_stage_row(page, at, stage) for at, stage in enumerate(page.by_time, 1)]
    note = (
        "The slowest first. Moved: tensors and weights that it reads and writes, each once. Loops "
        "count every function of an element as an operation. Bound: the peak, where taps in the "
        "padding do not count, or the bandwidth of memory; more than 100 % comes out of caches."
    )
    return tag("section", tag("h2", "Stages"), _table(names, rows, "stages"),
               tag("p", note, class_="note"))  # fmt: skip


def _stage_row(page: NetworkPage, at: int, stage: StageAccount) -> Element:
    rate, moved = page.rate(stage), page.bandwidth(stage)
    share = page.share(stage)
    part = 100 * stage.seconds / max(page.by_time[0].seconds, 1e-12)
    bar = tag("span", f"{100 * share:.1f}", class_="share", style=f"--share:{part:.1f}%")
    told = shorten(stage.schedule, 160) or stage.result
    cells: list[tuple[str, Child | list[Child]]] = [
        ("number", str(at)),
        ("word name", [shorten(stage.name, _NAME), tag("small", told)]),
        ("word roomy", stage.kind),
        ("number", time_text(stage.seconds)),
        ("number", bar),
        ("number roomy", f"{rate:.1f}" if rate else ""),
        ("number roomy", bytes_text(stage.bytes)),
        ("number roomy", f"{moved:.1f}" if moved else ""),
        ("word roomy", page.binds(stage)),
        ("number", f"{100 * page.least(stage) / stage.seconds:.0f}" if stage.seconds > 0 else ""),
        ("number roomy", str(stage.threads)),
    ]
    return tag("tr", *(tag("td", cell, class_=kind) for kind, cell in cells), id=f"stage-{at}")


_ROOMY = ("kind", "GFLOP/s", "moved", "GB/s", "bound by", "threads", "tensor", "from")


def _table(names: Sequence[str], rows: Iterable[Element], kind: str = "") -> Element:
    head = tag("tr", *(tag("th", name, scope="col", class_=_kind(name)) for name in names))
    return tag("div", tag("table", tag("thead", head), tag("tbody", rows), class_=kind),
               class_="wide")  # fmt: skip


def _kind(name: str) -> str:
    return f"{'word' if name in _WORDS else 'number'}{' roomy' if name in _ROOMY else ''}"


def _rows(names: Sequence[str], rows: Iterable[Row]) -> Iterator[Element]:
    """Rows of plain cells: text that may wrap, or numbers."""
    for row in rows:
        yield tag("tr", *(
            tag("td", cell, class_=_kind(name) + (" wrap" if name in _WORDS else ""))
            for name, cell in zip(names, row, strict=True)
        ))  # fmt: skip


def _figures(page: NetworkPage) -> Element | None:
    """Roofline and memory, side by side where there is room."""
    figures = [*_roofline(page), *_memory(page)]
    return tag("section", tag("div", figures, class_="figures")) if figures else None


def _roofline(page: NetworkPage) -> Iterator[Element]:
    picture = stage_roofline(page)
    if picture is None:
        return
    caption = (
        f"Numbers are rows of the table, of the {NAMED} slowest stages; areas grow with time. "
        "Above the line of memory: data came out of caches. Taps in the padding do not count. "
    )
    keys = [tag("span", tag("i", class_=f"key {kind}"), name, class_="entry")
            for kind, name in (("layer-key", "layers"), ("loop-key", "loops"))]  # fmt: skip
    yield tag("figure", tag("h2", "Roofline of all stages"), picture,
              tag("figcaption", caption, keys))  # fmt: skip


def _memory(page: NetworkPage) -> Iterator[Element]:
    picture = memory_map(page.account)
    if picture is None:
        return
    report, account = page.account.report, page.account
    peak = max(account.stages, key=lambda stage: account.live(stage.position))
    caption: list[Child] = [
        f"{len(account.buffers)} buffers share {bytes_text(report.arena)}, which were "
        f"{bytes_text(report.unshared)} side by side. The line is what is in use: at most "
        f"{bytes_text(account.live(peak.position))}, in stage {peak.position} (",
        _link(page, peak),
        f"). Beside that: {bytes_text(report.packed)} of packed weights, inputs and outputs.",
    ]
    yield tag("figure", tag("h2", "Memory over time"), picture, tag("figcaption", caption))


def _fused(page: NetworkPage) -> Element:
    done = sorted((f for f in page.account.fusions if f.done), key=lambda f: -f.saved)
    saved = bytes_text(sum(fusion.saved for fusion in done))
    names = ("into", "from", "tensor", "saves")
    rows = _rows(names, (
        (shorten(f.second, _NAME), shorten(f.first, _NAME), shorten(f.tensor, 60),
         bytes_text(f.saved)) for f in done[:MOST]
    ))  # fmt: skip
    text = f"{_count(len(done), 'fusion')}; saved: {saved} of memory traffic a run."
    return tag("section", tag("h2", "Fused"), tag("p", text, _more(done)),
               _table(names, rows) if done else None)  # fmt: skip


def _apart(page: NetworkPage) -> Element:
    pairs, stages = sorted(page.account.apart, key=lambda p: -p.bytes), page.account.stages
    names = ("into", "from", "moves", "why")
    rows = _rows(names, (
        ([_link(page, stages[p.second])], [_link(page, stages[p.first])], bytes_text(p.bytes),
         "; ".join(p.reasons)) for p in pairs[:MOST]
    ))  # fmt: skip
    text = (
        f"{_count(len(pairs), 'pair')} of stages, of which one reads what the other wrote. Why "
        "they are not one, as the passes said it; the most traffic first."
    )
    return tag("section", tag("h2", "Not fused, and why"), tag("p", text, _more(pairs)),
               _table(names, rows) if pairs else None)  # fmt: skip


def _count(number: int, name: str) -> str:
    return f"{number} {name}{'s' * (number != 1)}"


def _more(rows: Sequence[object]) -> str:
    return f" The first {MOST} are shown." if len(rows) > MOST else ""


def _layouts(page: NetworkPage) -> Element:
    """Stages that only move elements, and in which order of axes results lie."""
    copies = [stage for stage in page.by_time if stage.converts]
    spent = sum(stage.seconds for stage in copies)
    names = ("stage", "changes", "time")
    rows = _rows(names, (
        ([_link(page, stage)], stage.converts, time_text(stage.seconds)) for stage in copies[:MOST]
    ))  # fmt: skip
    turned = sum("axes" in stage.result for stage in page.account.stages)
    text = (
        f"{turned} of {len(page.account.stages)} stages write their result with another order of "
        f"axes than the model's. Copies and conversions: {_count(len(copies), 'stage')}, "
        f"{time_text(spent)}."
    )
    alone = sum(stage.threads == 1 for stage in page.account.stages)
    threads = (
        f"{page.account.network.threads} threads share a run; one alone computes {alone} of "
        f"{len(page.account.stages)} stages."
        if page.account.network.threads > 1 else "One thread computes all stages."
    )  # fmt: skip
    return tag("section", tag("h2", "Layouts, conversions and threads"), tag("p", text),
               _table(names, rows) if copies else None, tag("p", threads))  # fmt: skip
