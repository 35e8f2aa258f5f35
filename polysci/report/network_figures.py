"""The figures of a network's page: roofline of all stages, and memory over time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import ceil, sqrt
from xml.etree.ElementTree import Element

from polysci.explain.roofline import SOURCES
from polysci.network.account import BufferAccount, NetworkAccount, StageAccount
from polysci.report.axes import Log, PlotArea, labels
from polysci.report.figures import HIGH, WIDE, along, grid, label_at, pixels, segment, svg, titles
from polysci.report.markup import tag
from polysci.report.network_model import NetworkPage
from polysci.text.tables import bytes_text, shorten, time_text

NAMED = 10  # stages with a number in the roofline
COLOURS = 7  # in style.css
_LEFT, _RIGHT, _TOP, _BOTTOM = 86, 14, 14, 46
ROOM = 110  # pixels that the name of a roof takes
_TICKS = 6
_LONGEST = 80


def stage_roofline(page: NetworkPage) -> Element | None:
    """Each stage's rate over its flop a byte; None where no stage counts operations."""
    drawn = [stage for stage in page.by_time if page.needed_rate(stage) and stage.bytes]
    if not drawn:
        return None
    x, y = _axes(page, drawn)
    parts = [*grid(x, y, "{:g}"), *titles(x, y, "flop per byte of its tensors", "GFLOP/s")]
    parts += _roofs(page, x, y)
    spots = [(x.at(_intensity(stage)), y.at(page.needed_rate(stage))) for stage in drawn]
    for stage, (at, up) in [*zip(drawn, spots, strict=True)][::-1]:
        title = tag("title", _label(page, stage))
        radius = pixels(_radius(page, stage))
        kind = f"dot {'layer-dot' if stage.schedule else 'loop-dot'}"
        parts.append(tag("circle", title, cx=pixels(at), cy=pixels(up), r=radius, class_=kind))
    named = drawn[:NAMED]
    frame = PlotArea(_LEFT, _TOP, WIDE - _RIGHT, HIGH - _BOTTOM)
    boxes = [
        PlotArea(at - _radius(page, stage), up - _radius(page, stage),
                 at + _radius(page, stage), up + _radius(page, stage))
        for stage, (at, up) in zip(drawn, spots, strict=True)
    ]  # fmt: skip
    texts = [str(1 + page.by_time.index(stage)) for stage in named]
    centres = labels(spots[: len(named)], texts, frame, boxes)
    for (at, up), (cx, cy), text in zip(spots, centres, texts, strict=False):
        if abs(cx - at) + abs(cy - up) > 30:
            parts.append(segment({"x1": at, "y1": up, "x2": cx, "y2": cy}, "lead"))
        parts.append(label_at(cx, cy + 4, text, "number"))
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
    ridge = max(page.peaks.values()) / page.bandwidths[-1]
    x = Log(0.6 * min(*reach, ridge), 1.6 * max(*reach, ridge), _LEFT, WIDE - _RIGHT)
    lowest = min(*rates, page.bandwidths[-1] * x.low, *page.peaks.values())
    y = Log(0.7 * lowest, 1.25 * max(*page.peaks.values(), *rates), HIGH - _BOTTOM, _TOP)
    return x, y


def _roofs(page: NetworkPage, x: Log, y: Log) -> Iterable[Element]:
    """The peaks, and the bandwidths of all threads, named where there is room."""
    top = max(page.peaks.values())
    for name, rate in zip(SOURCES, page.bandwidths, strict=True):
        first, last = max(x.low, y.low / rate), min(x.high, top / rate)
        if first >= last:
            continue
        ends = {"x1": x.at(first), "y1": y.at(first * rate), "x2": x.at(last)}
        yield segment(ends | {"y2": y.at(last * rate)}, f"roof {name}")
        if x.at(last) - x.at(first) > ROOM:
            side = -6 if name == "L2" else 15  # above its roof, so that L3's has room below its own
            yield along(x, y, (first, last), rate, f"{name} {rate:.0f} GB/s", side)
    for name, peak in page.peaks.items():
        level, start = y.at(peak), x.at(max(x.low, peak / max(page.bandwidths)))
        yield segment({"x1": start, "y1": level, "x2": x.end, "y2": level}, "roof")
        yield label_at(x.end - 6, level - 6, f"{name} {peak:.0f} GFLOP/s", "note", "end")


def memory_map(account: NetworkAccount) -> Element | None:
    """Draw where buffers lie in the arena, from the first stage that uses one to the last."""
    if not account.buffers:
        return None
    size, count = max(1, account.report.arena), len(account.stages)
    wide = WIDE - _LEFT - _RIGHT
    high = HIGH - _TOP - _BOTTOM

    def across(position: float) -> float:
        return _LEFT + wide * position / count

    def down(offset: float) -> float:
        return _TOP + high * (1 - offset / size)

    parts = list[Element]()
    for step in range(_TICKS + 1):
        at = size * step / _TICKS
        ends = {"x1": _LEFT, "y1": down(at), "x2": _LEFT + wide, "y2": down(at)}
        parts.append(segment(ends, "grid"))
        parts.append(label_at(_LEFT - 6, down(at) + 4, bytes_text(round(at)), "tick", "end"))
    for position in range(0, count, max(1, ceil(count / 10))):
        middle = across(position + 0.5)
        parts.append(label_at(middle, _TOP + high + 16, str(position), "tick"))
    parts.append(label_at(_LEFT + wide / 2, _TOP + high + 36, "stage, in program order", "axis"))
    for number, buffer in enumerate(account.buffers):
        parts.append(_block(buffer, number, across, down))
    marks = [(across(at), down(account.live(at))) for at in range(count)]
    steps = " ".join(
        f"{pixels(left)},{pixels(up)} {pixels(left + wide / count)},{pixels(up)}"
        for left, up in marks
    )
    parts.append(tag("polyline", points=steps, class_="live"))
    return svg(parts, WIDE, HIGH, "Buffers of the arena over the stages of a run")


def _block(buffer: BufferAccount, number: int, across: object, down: object) -> Element:
    assert callable(across) and callable(down)
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
