"""A network as one self-contained HTML page without scripts, and its runs as trace events."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, sqrt
from typing import Any, Final
from xml.etree.ElementTree import Element

from polysci.explain.roofline import peak_name
from polysci.network.account import BufferAccount, NetworkAccount, StageAccount
from polysci.report.figures import (
    BOTTOM,
    HIGH,
    LEFT,
    RIGHT,
    TOP,
    WIDE,
    Child,
    Log,
    PlotArea,
    grid,
    label_at,
    numbers_beside,
    pixels,
    roof_of_peak,
    roofs,
    segment,
    svg,
    tag,
    titles,
)
from polysci.report.page import header_of, summary_of, thread_count, whole_page
from polysci.target.machine import Machine
from polysci.target.target import size_text
from polysci.text.tables import bytes_text, shorten, time_text

NAMED = 10  # stages with a number in the roofline
COLOURS = 7  # in style.css
ROOM = 110  # pixels that the name of a roof takes
_TICKS = 6
_LONGEST = 80  # characters of a title of the page
PROCESS: Final = 1
Position = Callable[[float], float]  # of a stage or a byte, in pixels
RUNS: Final = 0  # the thread of whole runs; those that compute follow
MICROSECONDS: Final = 1e6
_LONGEST_EVENT: Final = 200  # characters of an event's title


@dataclass(frozen=True, slots=True)
class NetworkPage:
    """A network on a machine as its page shows it: every stage beside what the machine allows.

    ``bandwidths`` of L2, L3 and memory, by name, are in GB/s, of all threads.
    """

    account: NetworkAccount
    machine: Machine
    bandwidths: Mapping[str, float]
    date: str
    version: str

    @property
    def title(self) -> str:
        return self.account.network.name

    @property
    def by_time(self) -> list[StageAccount]:
        """The slowest stage first."""
        return sorted(self.account.stages, key=lambda stage: (-stage.seconds, stage.position))

    @property
    def peaks(self) -> dict[str, float]:
        """GFLOP/s of all threads by name, for each way to multiply that layers have."""
        layers = [stage for stage in self.account.stages if stage.schedule]
        return {peak_name(stage.compute): stage.peak for stage in layers or self.account.stages}

    @property
    def at_peak(self) -> float:
        """Seconds of all operations at their peaks, taps in the padding left out."""
        return sum((stage.multiplied or 0) / stage.peak * 1e-9 for stage in self.account.stages)

    @property
    def flops(self) -> int:
        return sum(stage.flops or 0 for stage in self.account.stages)

    def share(self, stage: StageAccount) -> float:
        """Return the share of a run that a stage takes."""
        return stage.seconds / self.account.report.latency

    def rate(self, stage: StageAccount) -> float | None:
        """GFLOP/s."""
        return stage.flops / stage.seconds * 1e-9 if stage.flops and stage.seconds > 0 else None

    def needed_rate(self, stage: StageAccount) -> float:
        """GFLOP/s, taps in the padding left out; 0 where nobody counts them."""
        return (stage.multiplied or 0) / stage.seconds * 1e-9 if stage.seconds > 0 else 0.0

    def bandwidth(self, stage: StageAccount) -> float | None:
        """GB/s of what it touches."""
        return stage.bytes / stage.seconds * 1e-9 if stage.seconds > 0 else None

    def least(self, stage: StageAccount) -> float:
        """Seconds at the peak, or at the memory's bandwidth where that takes longer."""
        part = stage.threads / max(1, self.account.network.threads)
        compute = (stage.multiplied or 0) / (stage.peak * part * 1e9)
        return max(compute, stage.bytes / (self.bandwidths["memory"] * 1e9))

    def binds(self, stage: StageAccount) -> str:
        """Name what bounds it: ``compute`` or ``memory``."""
        slow = stage.bytes / self.bandwidths["memory"] > (stage.multiplied or 0) / stage.peak
        return "memory" if slow else "compute"

    def loss(self, stage: StageAccount) -> float:
        """Seconds that it takes more than ``least``."""
        return max(0.0, stage.seconds - self.least(stage))


def stage_roofline(page: NetworkPage) -> Element | None:
    """Each stage's rate over its flop a byte; None where no stage counts operations."""
    drawn = [stage for stage in page.by_time if page.needed_rate(stage) and stage.bytes]
    if not drawn:
        return None
    x, y = _axes(page, drawn)
    parts = [*grid(x, y, "{:g}"), *titles(x, y, "flop per byte of its tensors", "GFLOP/s")]
    rates = page.bandwidths
    parts += roofs(x, y, rates, max(page.peaks.values()), ROOM)
    for name, peak in page.peaks.items():
        parts += roof_of_peak(x, y, rates, peak, name, "end")
    spots = [(x.at(_intensity(stage)), y.at(page.needed_rate(stage))) for stage in drawn]
    for stage, (at, up) in [*zip(drawn, spots, strict=True)][::-1]:
        title = tag("title", _label(page, stage))
        radius = pixels(_radius(page, stage))
        kind = f"dot {'layer-dot' if stage.schedule else 'loop-dot'}"
        parts.append(tag("circle", title, cx=pixels(at), cy=pixels(up), r=radius, class_=kind))
    boxes = [
        PlotArea(at - _radius(page, stage), up - _radius(page, stage),
                 at + _radius(page, stage), up + _radius(page, stage))
        for stage, (at, up) in zip(drawn, spots, strict=True)
    ]  # fmt: skip
    texts = [str(1 + page.by_time.index(stage)) for stage in drawn[:NAMED]]
    parts += numbers_beside(spots[: len(texts)], texts, boxes)
    return svg(parts, WIDE, HIGH, "Roofline of all stages")


def _radius(page: NetworkPage, stage: StageAccount) -> float:
    return 3 + 13 * sqrt(min(1.0, page.share(stage)))


def _intensity(stage: StageAccount) -> float:
    return (stage.multiplied or 0) / max(1, stage.bytes)


def _label(page: NetworkPage, stage: StageAccount) -> str:
    return (
        f"{shorten(stage.name, _LONGEST)}: {time_text(stage.seconds)}, "
        f"{page.needed_rate(stage):.3g} GFLOP/s, {_intensity(stage):.3g} flop a byte"
    )


def _axes(page: NetworkPage, drawn: Sequence[StageAccount]) -> tuple[Log, Log]:
    rates = [page.needed_rate(stage) for stage in drawn]
    reach = [_intensity(stage) for stage in drawn]
    ridge = max(page.peaks.values()) / page.bandwidths["memory"]
    x = Log(0.6 * min(*reach, ridge), 1.6 * max(*reach, ridge), LEFT, WIDE - RIGHT)
    lowest = min(*rates, page.bandwidths["memory"] * x.low, *page.peaks.values())
    y = Log(0.7 * lowest, 1.25 * max(*page.peaks.values(), *rates), HIGH - BOTTOM, TOP)
    return x, y


def memory_map(account: NetworkAccount) -> Element | None:
    """Draw where buffers lie in the arena, from the first stage that uses one to the last."""
    if not account.buffers:
        return None
    size, count = max(1, account.report.arena), len(account.stages)
    wide = WIDE - LEFT - RIGHT
    high = HIGH - TOP - BOTTOM

    def across(position: float) -> float:
        return LEFT + wide * position / count

    def down(offset: float) -> float:
        return TOP + high * (1 - offset / size)

    parts = list[Element]()
    for step in range(_TICKS + 1):
        at = size * step / _TICKS
        ends = {"x1": LEFT, "y1": down(at), "x2": LEFT + wide, "y2": down(at)}
        parts.append(segment(ends, "grid"))
        parts.append(label_at(LEFT - 6, down(at) + 4, bytes_text(round(at)), "tick", "end"))
    for position in range(0, count, max(1, ceil(count / 10))):
        middle = across(position + 0.5)
        parts.append(label_at(middle, TOP + high + 16, str(position), "tick"))
    parts.append(label_at(LEFT + wide / 2, TOP + high + 36, "stage, in program order", "axis"))
    for number, buffer in enumerate(account.buffers):
        parts.append(_block(buffer, number, across, down))
    marks = [(across(at), down(account.live(at))) for at in range(count)]
    steps = " ".join(
        f"{pixels(left)},{pixels(up)} {pixels(left + wide / count)},{pixels(up)}"
        for left, up in marks
    )
    parts.append(tag("polyline", points=steps, class_="live"))
    return svg(parts, WIDE, HIGH, "Buffers of the arena over the stages of a run")


def _block(buffer: BufferAccount, number: int, across: Position, down: Position) -> Element:
    left, right = across(buffer.first), across(buffer.last + 1)
    top, bottom = down(buffer.offset + buffer.size), down(buffer.offset)
    label = (
        f"{shorten(buffer.name, _LONGEST)}: {bytes_text(buffer.size)} at byte {buffer.offset}, "
        f"stages {buffer.first} to {buffer.last}"
    )
    return tag(
        "rect", tag("title", label), x=pixels(left), y=pixels(top),
        width=pixels(max(0.5, right - left)), height=pixels(max(0.5, bottom - top)),
        class_=f"block b{number % COLOURS}",
    )  # fmt: skip


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
        _timeline(page), _figures(page), _stages(page), _apart(page), _fused_section(page),
        _layouts(page),
    )  # fmt: skip


def _header(page: NetworkPage) -> Element:
    network, options = page.account.network, page.account.network.options
    target = options.target
    caches = ", ".join(f"{cache.name} {size_text(cache.size)}" for cache in target.caches)
    rates = ", ".join(f"{name} {rate:.0f}" for name, rate in page.bandwidths.items())
    known = "" if page.machine.measured else " (assumed)"
    facts = [
        ("machine", f"{target.model_name}, {target.isa}, {target.cores} cores"),
        ("caches", caches),
        *(
            (name, f"{peak:.1f} GFLOP/s on {thread_count(network.threads)}{known}")
            for name, peak in page.peaks.items()
        ),
        ("bandwidth", f"{rates} GB/s{known}"),
        ("threads", str(network.threads)),
        ("type between layers", network.dtype),
        ("level, algorithm", f"{options.level}, {options.algorithm}"),
        ("compiled in", f"{network.seconds:.1f} s"),
    ]
    return header_of("polysci report of a network", page.title, facts)


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
    return summary_of(cards)


def _first(page: NetworkPage) -> Element:
    """Write what to look at first: where time goes beyond what the machine allows."""
    lines = [_whole(page), *_losses(page), *_unfused_items(page)]
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


def _unfused_items(page: NetworkPage) -> Iterator[list[Child]]:
    stages = page.account.stages
    for pair in sorted(page.account.apart, key=lambda pair: -pair.bytes)[:2]:
        spent = pair.bytes / (page.bandwidths["memory"] * 1e9)
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
    detail = shorten(stage.schedule, 160) or stage.result
    cells: list[tuple[str, Child | list[Child]]] = [
        ("number", str(at)),
        ("word name", [shorten(stage.name, _NAME), tag("small", detail)]),
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


def _fused_section(page: NetworkPage) -> Element:
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


def trace_text(account: NetworkAccount) -> str:
    """The JSON of all runs of an account.

    A stage is on every thread that computes it, for as long as all of them take: they meet at its
    end, and its times are read there. The counter tells the bytes of the arena in use.
    """
    network = account.network
    return json.dumps(
        {
            "displayTimeUnit": "ms",
            "otherData": {
                "network": network.name, "threads": network.threads, "runs": len(account.runs),
                "isa": str(network.options.target.isa), "arena_bytes": account.report.arena,
            },
            "traceEvents": [*_names(account), *_events(account)],
        }
    )  # fmt: skip


def _names(account: NetworkAccount) -> Iterator[dict[str, Any]]:
    titles = [("process_name", RUNS, account.network.name), ("thread_name", RUNS, "runs")]
    threads = range(1, account.network.threads + 1)
    titles += [("thread_name", at, f"thread {at}") for at in threads]
    for what, thread, title in titles:
        yield {"name": what, "ph": "M", "pid": PROCESS, "tid": thread, "args": {"name": title}}


def _events(account: NetworkAccount) -> Iterator[dict[str, Any]]:
    live = [account.live(stage.position) for stage in account.stages]
    for number, run in enumerate(account.runs):
        marks = run.marks
        yield _span(f"run {number}", "run", RUNS, marks[0], marks[-1], {"run": number})
        for stage, held in zip(account.stages, live, strict=True):
            start, end = marks[stage.position : stage.position + 2]
            yield _counter(start, held)
            details = {**_arguments(stage), "run": number}
            for thread in range(1, stage.threads + 1):
                title = shorten(stage.name, _LONGEST_EVENT)
                yield _span(title, stage.kind, thread, start, end, details)
        yield _counter(marks[-1], 0)


def _arguments(stage: StageAccount) -> dict[str, Any]:
    return {
        "stage": stage.position, "kind": stage.kind, "schedule": stage.schedule or "none",
        "result": stage.result, "flops": stage.flops, "bytes": stage.bytes,
        "bytes_read": stage.read, "bytes_written": stage.written, "weight_bytes": stage.weights,
        "threads": stage.threads,
    }  # fmt: skip


def _span(
    name: str, category: str, thread: int, start: float, end: float, arguments: Mapping[str, Any]
) -> dict[str, Any]:
    return {
        "name": name, "cat": category, "ph": "X", "pid": PROCESS, "tid": thread,
        "ts": start * MICROSECONDS, "dur": (end - start) * MICROSECONDS, "args": dict(arguments),
    }  # fmt: skip


def _counter(at: float, live: int) -> dict[str, Any]:
    return {
        "name": "arena", "ph": "C", "pid": PROCESS, "tid": RUNS, "ts": at * MICROSECONDS,
        "args": {"bytes": live},
    }  # fmt: skip
