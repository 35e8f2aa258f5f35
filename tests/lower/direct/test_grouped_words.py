"""Grouped layers whose channels share lanes: every tail, type and layout, between guard pages."""

import pytest

from polysci.ops.convolutions import Conv2d
from polysci.runtime.source import Source
from polysci.space.schedule import parse
from polysci.target import microkernels
from polysci.target.host import detect
from polysci.target.microkernels import Microkernel
from polysci.tune import EmitOptions, emit
from tests.support.judge import Judge, build

TYPES = {
    "bf16": ("bf16", "bf16:bf16:f32"),
    "i8": ("u8:s8:u8", "s8:s8:s8", "u8:s8:s32", "s8:s8:u8", "s8:s8:s32"),
}
KERNELS = [
    max(microkernels.family(family, isa, compute), key=lambda kernel: kernel.rows)
    for isa, compute in (("avx512bf16", "bf16"), ("avx512vnni", "i8"), ("avx2vnni", "i8"))
    for family in ("grouped2", "grouped4", "grouped8")
    if microkernels.family(family, isa, compute)
]
CASES = [(str(kernel), dtype) for kernel in KERNELS for dtype in TYPES[kernel.compute]]


def layer(kernel: Microkernel, channels: int, **other: object) -> Conv2d:
    own = Conv2d(N=1, C=channels, H=5, W=7, K=channels, R=3, S=3, pad=1)
    return own.with_(groups=channels // kernel.group, **other)


def source_of(kernel: Microkernel, problem: Conv2d, loops: str, at: int) -> Source:
    """Return the code of all rows that a kernel has, in panels as wide as it is."""
    panel = f"g:{kernel.cols // kernel.group} " * (kernel.cols < problem.K)
    text = f"{loops} {panel}q:{min(kernel.rows, problem.Q)} > {kernel}"
    return emit(problem, parse(text), 1 + ("*" in loops), EmitOptions(f"layer_{at}"))


@pytest.mark.sampled(every=6)
@pytest.mark.parametrize(("name", "dtype"), CASES, ids=str)
def test_words_of_channels_give_the_sums_of_groups(judge: Judge, name: str, dtype: str) -> None:
    """Panels with fewer vectors than words have columns, and with lanes that are not used."""
    kernel = microkernels.find(name)
    if detect().refusal(kernel.isa):
        pytest.skip(f"this CPU lacks {kernel.isa}")
    vectors = {kernel.lanes * count for count in range(1, kernel.vecs + 2)}
    widths = {2 * kernel.group, *vectors, *(width + kernel.group for width in vectors)}
    cases = [(layer(kernel, width, dtype=dtype), "p") for width in sorted(widths)]
    wide = kernel.cols + kernel.group
    cases += [
        (layer(kernel, wide, dtype=dtype, stride=2), "p*"),
        (layer(kernel, wide, dtype=dtype, layout="nchw"), "pack(A) p"),
        (layer(kernel, wide, dtype=dtype, dilation=2, pad=2), "pack(A)+16 p"),
    ]
    sources = [source_of(kernel, problem, loops, at) for at, (problem, loops) in enumerate(cases)]
    by_unit = {str(source.header_set): list[int]() for source in sources}
    for at, source in enumerate(sources):
        by_unit[str(source.header_set)].append(at)
    for indices in by_unit.values():
        path = build([sources[at] for at in indices])
        for at in indices:
            judge.judge(cases[at][0], path, sources[at].symbol)
