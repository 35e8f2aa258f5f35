"""Searches that measure on an OpenCL device; every listed layer, and random ones, on it."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

import polysci
from polysci.errors import UnsupportedError, WisdomError
from polysci.lower.algorithm import SYMBOL
from polysci.measure import first_run
from polysci.measure.bench import Bench, CandidateError
from polysci.measure.check import check
from polysci.measure.first_run import has_run
from polysci.ops import layer_lists
from polysci.ops.convolution_gradients import Conv2dBackwardData, Conv2dBackwardWeights
from polysci.ops.problem import Problem
from polysci.runtime.backends.opencl import OpenCL, devices
from polysci.runtime.measurement import host_of
from polysci.runtime.policy import Policy
from polysci.runtime.source import emit
from polysci.space.schedule import parse
from polysci.target.host import detect
from polysci.target.target import Target
from polysci.tune.wisdom import Wisdom
from tests.models.test_all_layers import layers

pytest.importorskip("pyopencl", reason="OpenCL: pyopencl is not installed")
if not devices():
    pytest.skip("OpenCL: there is no device", allow_module_level=True)

PROBLEM = polysci.Conv2d(N=1, C=4, H=5, W=5, K=8, R=1, S=1)


@pytest.fixture(scope="module")
def target() -> Iterator[Target]:
    (device,) = OpenCL().targets()
    yield device


def test_records_are_of_one_device(target: Target, tmp_path: Path) -> None:
    wisdom = Wisdom(tmp_path / "wisdom.sqlite")
    result = polysci.optimize(PROBLEM, "measure", target=target, time_limit=0.5, wisdom=wisdom)
    assert result.measurement and result.measurement.peak_gflops is None
    record, *_ = [it for it in wisdom.measurements(host_of(target)) if it.level != "trial"]
    assert record.isa == target.isa.name and devices()[0].driver_version in record.compiler
    again = polysci.optimize(PROBLEM, "wisdom-only", target=target, wisdom=wisdom)
    assert again.schedule == result.schedule and again.measurement.recorded
    primitive = polysci.compile(PROBLEM, "wisdom-only", target=target, wisdom=wisdom)
    assert primitive.backend == "opencl:0" and primitive.schedule == result.schedule
    for other in (replace(target, model_name="another device"), detect()):
        with pytest.raises(WisdomError, match="no record"):
            polysci.optimize(PROBLEM, "wisdom-only", target=other, wisdom=wisdom)


def test_code_is_checked_once(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_run, "read_policy", Policy)
    primitive = polysci.compile(PROBLEM, "estimate", target=target)
    assert has_run(primitive.library.path)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("statement", "said"),
    [("for (volatile int turn = 1; turn;) ;", r"ran longer than 5 s and was killed$"),
     ("y[200] = 1;", r"wrote outside y: as far as 4 bytes after the end$"),
     ("y[-3] = 1;", r"wrote outside y: as far as 12 bytes before the start$")],
)  # fmt: skip
def test_what_a_kernel_does_wrong_costs_its_process_alone(
    target: Target, statement: str, said: str
) -> None:
    """A kernel that hangs, and writes to the margins around a result."""
    schedule = parse(f"p k:8 q:4 > brgemm_{target.isa}_f32_4x{target.isa.lanes_f32}")
    head, name, tail = emit(PROBLEM, schedule).file.partition(f"void {SYMBOL}_k0(")
    body, end, rest = tail.partition("\n}\n")
    path = OpenCL().build(f"{head}{name}{body}\n    {statement}{end}{rest}")
    with (
        Bench(PROBLEM, timeout=5, backend=OpenCL()) as bench,
        pytest.raises(CandidateError, match=said),
    ):
        bench.check(path, SYMBOL, schedule)


def random_layer(seed: int) -> polysci.Conv2d:
    """Return a convolution of a few channels on a small map."""
    random = Random(seed)
    groups = random.choice((1, 1, 1, 2, 3))
    channels, filters = (groups * random.randint(1, 9) for _ in range(2))
    if random.random() < 0.2:
        groups = filters = channels
    R, S = random.randint(1, 4), random.randint(1, 4)
    return polysci.Conv2d(
        N=random.randint(1, 2), C=channels, K=filters, R=R, S=S, groups=groups,
        H=random.randint(7, 12), W=random.randint(7, 12), pad=(random.randrange(R),) * 2,
        stride=(random.randint(1, 2), random.randint(1, 2)), dilation=random.randint(1, 2),
    )  # fmt: skip


def with_gradients(problem: Problem) -> Iterator[Problem]:
    """Yield a problem in its layouts, and what training computes of a convolution."""
    if not isinstance(problem, polysci.Conv2d):
        yield problem
        return
    for layout in ("nhwc", "nchw"):
        forward = problem.with_(layout=layout)
        yield from (forward, Conv2dBackwardData(forward), Conv2dBackwardWeights(forward))


def faults_on_device(problems: Iterable[Problem], target: Target) -> list[str]:
    """Return the faults of the model's choice for each problem; exact integers."""
    faults = []
    for number, problem in enumerate(problems):
        threads = 1 + number % 2
        try:
            plan = polysci.optimize(problem, "estimate", threads, target=target, quick=True)
        except UnsupportedError as error:
            faults.append(f"{problem}: {error}")
            continue
        verdicts = check(problem, [plan.schedule], threads, modes=["exact"], backend=OpenCL())
        faults += [f"{verdict} {verdict.fault}" for verdict in verdicts if not verdict.passed]
    return faults


def test_a_gradient_of_several_classes_is_exact(target: Target) -> None:
    """Each class is a kernel on operands that begin elsewhere."""
    forward = polysci.Conv2d(N=2, C=14, H=10, W=9, K=2, R=4, S=4, pad=1, stride=(1, 2), groups=2)
    assert not faults_on_device([Conv2dBackwardData(forward)], target)


@pytest.mark.slow  # half an hour for all
@pytest.mark.exhaustive
@pytest.mark.parametrize("network", layer_lists.names())
def test_listed_layers_are_exact(network: str, target: Target) -> None:
    problems = [it for layer in layers(network) for it in with_gradients(layer)]
    faults = faults_on_device(problems, target)
    assert not faults, "\n".join(faults)


@pytest.mark.exhaustive
@pytest.mark.parametrize("share", range(20))
def test_random_layers_are_exact(share: int, target: Target) -> None:
    drawn = map(random_layer, range(5 * share, 5 * share + 5))
    faults = faults_on_device((it for layer in drawn for it in with_gradients(layer)), target)
    assert not faults, "\n".join(faults)
