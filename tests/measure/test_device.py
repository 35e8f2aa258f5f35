"""Code of an OpenCL device in the worker process: its faults, and times by the device's clock."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from polysci.lower.algorithm import SYMBOL
from polysci.measure.bench import Bench, CandidateError
from polysci.ops.convolutions import Conv2d
from polysci.runtime.backends.opencl import OpenCL, devices
from polysci.runtime.source import emit
from polysci.space.schedule import parse

pytest.importorskip("pyopencl", reason="OpenCL: pyopencl is not installed")
if not devices():
    pytest.skip("OpenCL: there is no device", allow_module_level=True)

PROBLEM = Conv2d(N=1, C=6, H=5, W=4, K=9, R=3, S=3, pad=1)
SCHEDULE = parse("pack(A) p k:4 > brgemm_opencl4_f32_4x4")
RUN, PACK = f"{SYMBOL}_k0", f"{SYMBOL}_pack_weights_k0"
# A kernel, a statement at its end, and what is said of it.
FAULTS = {
    "wrong": (RUN, "y[3] += 1;", r"plain call: wrong result: 1 of 180 elements .*got -?\d+\.0$"),
    "writes behind y": (RUN, "y[180] = 0;", "wrote outside y: as far as 4 bytes after the end"),
    "writes before y": (RUN, "y[-1] = 0;", "wrote outside y: as far as 4 bytes before the start"),
    "reads behind x": (RUN, "y[0] += 0 * x[120];", "got nan; it reads outside of x$"),
    "reads before x": (RUN, "y[9] += 0 * x[-1];", "got nan; it reads outside of x$"),
    "reads behind the bias": (
        RUN, "if (bias) y[0] += 0 * bias[9];", "clamp call: .*; it reads outside of bias$",
    ),
    "reads behind packed weights": (
        RUN, "y[0] += 0 * packed[648];", "it reads outside of packed weights$",
    ),
    "reads behind w": (PACK, "packed[-648] += 0 * w[486];", "it reads outside of w$"),
    "writes x": (
        RUN, "((__global float *)x)[2] = 9;", r"wrote byte \d+ of x, which is only read",
    ),
    "writes behind packed weights": (
        PACK, "packed[8] = 0;", "pack_weights: wrote outside packed: as far as",
    ),
}  # fmt: skip
HANG = "for (volatile int turn = 1; turn;) ;"


def source_of(changes: dict[str, str]) -> str:
    """Return the code of the problem with changes, each of a text that it has."""
    text = emit(PROBLEM, SCHEDULE, 1).file
    for right, wrong in changes.items():
        assert right in text
        text = text.replace(right, wrong, 1)
    return text


def faulty(kernel: str, statement: str) -> str:
    """Return the code of the problem with a statement at the end of a kernel."""
    head, name, tail = source_of({}).partition(f"__kernel void {kernel}(")
    body, end, rest = tail.partition("\n}\n")
    assert name and end
    return f"{head}{name}{body}\n    {statement}{end}{rest}"


def build(text: str) -> Path:
    return OpenCL().build(text)


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    with Bench(PROBLEM, timeout=60, backend=OpenCL()) as its:
        yield its


def fault_of(bench: Bench, text: str) -> str:
    """Return what a check says, in one line behind the name of the candidate."""
    path = build(text)
    with pytest.raises(CandidateError) as raised:
        bench.check(path, SYMBOL, SCHEDULE)
    (line,) = str(raised.value).splitlines()
    return line


def test_sound_code_passes_in_both_modes(bench: Bench) -> None:
    candidate = build(source_of({})), SYMBOL
    bench.check(*candidate, SCHEDULE)
    assert 0 < bench.bound(*candidate, SCHEDULE) <= 1


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(name, marks=[] if name in ("writes behind y", "reads behind x") else
                     [pytest.mark.sampled(every=3)])
        for name in FAULTS
    ],
)  # fmt: skip
def test_faults_are_named(bench: Bench, fault: str) -> None:
    kernel, statement, message = FAULTS[fault]
    said = fault_of(bench, faulty(kernel, statement))
    assert re.search(message, said), said


def test_an_endless_kernel_costs_one_line() -> None:
    """The process ends with the kernel, whatever other candidates it knew."""
    sound = build(source_of({}))
    with Bench(PROBLEM, timeout=60, backend=OpenCL()) as bench:
        bench.check(sound, SYMBOL, SCHEDULE)
        bench.timeout, pid = 2.0, bench.pid
        assert re.search("ran longer than 2 s and was killed$", fault_of(bench, faulty(RUN, HANG)))
        assert not Path(f"/proc/{pid}").exists()
        bench.timeout = 60
        bench.check(sound, SYMBOL, SCHEDULE)


def test_what_a_device_refuses_costs_one_line(bench: Bench) -> None:
    large = source_of({",[],[],2592]": ",[],[],1152921504606846976]"})
    assert re.search("Unable to allocate 1.00 EiB", fault_of(bench, large))
    groups = "__attribute__((reqd_work_group_size(64, 1, 1)))"
    said = fault_of(bench, source_of({f"void {RUN}": f"{groups} void {RUN}"}))
    assert re.search(f"kernel {RUN}, groups of 1 work-items: .*INVALID_WORK_GROUP_SIZE", said), said


def test_the_device_times(bench: Bench) -> None:
    """A kernel of one work-item takes longer with more work, by the device's clock."""
    slow = faulty(RUN, "for (volatile int turn = 0; turn < 400000; ++turn) ;")
    candidates = [(build(text), SYMBOL) for text in (source_of({}), slow)]
    for cold in (False, True):
        quick, other = bench.time(candidates, samples=1, cold=cold, min_sample_s=1e-4)
        assert 1e-7 < 3 * quick.median < other.median < 1
