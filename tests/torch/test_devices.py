"""Modules, comprehensions and graphs of TorchDynamo on devices: what they computed, and refusals.

There is no CUDA here: ``cuda:0`` is the driver whose device is the CPU, and the emulation has the
memory of the host, so that tensors on the CPU stand for those of the device.
"""

import copy
import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import pytest

from polysci import notation
from polysci.errors import SpecError, UnsupportedError
from polysci.network.runner import Runner
from polysci.printers import devices as printer
from tests.support.any_device import DEVICES, at_hand
from tests.support.cuda_driver import calls, with_driver
from tests.support.cuda_emulation import COMPILER, NAME

torch = pytest.importorskip("torch")
pytest.importorskip("onnx")
from polysci.torch import devices, optimize  # noqa: E402
from tests.support.torch_results import compare  # noqa: E402

nn = torch.nn
pytestmark = pytest.mark.filterwarnings("ignore")  # what torch's parts warn each other of
PRODUCT = "def mm(float(M,K) A, float(K,N) B) -> (C) { C(m,n) +=! A(m,k) * B(k,n) }"


class Mixed(nn.Module):
    """Two parts that can be compiled, and a call between them that cannot."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 5, 1)

    def forward(self, x: Any) -> Any:
        y = torch.erfinv(self.first(x).tanh() * 0.5)
        return {"y": self.last(y).relu(), "mean": (y, x.mean((2, 3)))}


def perceptron() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 3), nn.Softmax(-1)).eval()


@pytest.fixture(
    params=[pytest.param(name, marks=[pytest.mark.exhaustive] * (name != NAME)) for name in DEVICES]
)
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    with at_hand(request.param) as name:
        yield name


@pytest.fixture
def opencl() -> Iterator[str]:
    with at_hand("opencl:0") as name:
        yield name


@pytest.mark.parametrize(
    "order", [torch.contiguous_format,
              pytest.param(torch.channels_last, marks=pytest.mark.exhaustive)],
)  # fmt: skip
def test_parts_of_a_module_run_on_the_device(device: str, order: Any) -> None:
    torch.manual_seed(0)
    module = Mixed().eval().to(memory_format=order)
    x = torch.randn(2, 3, 6, 7).to(memory_format=order)
    optimized = optimize(module, x, "estimate", device=device)
    assert [bool(part.stages) for part in optimized.report.parts] == [True, True]
    networks = [part.network for part in _parts(optimized)]
    assert {network.code.backend for network in networks} == {device}
    compare(module, optimized, x)


def _parts(optimized: Any) -> list[Any]:
    """The compiled parts of an optimized module that also has others."""
    (variant,) = optimized._variants.values()
    return [part for part in variant.runs.args[0].children() if hasattr(part, "network")]


def test_a_whole_module_is_copied_and_pickled(opencl: str) -> None:
    module, x = perceptron(), torch.randn(4, 6)
    optimized = optimize(module, x, "estimate", device=opencl)
    file = io.BytesIO()
    torch.save(optimized, file)
    file.seek(0)
    for other in (optimized, copy.deepcopy(optimized), torch.load(file, weights_only=False)):
        compare(module, other, x)
        assert other.report.parts[0].stages and not other.report.reason
    module[0].weight.data.mul_(2)  # weights that changed are compiled anew
    compare(module, optimized, x)


def test_tensors_in_a_device_memory_are_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    with at_hand(NAME) as device:
        module, x = perceptron(), torch.randn(4, 6)
        optimized = optimize(module, x, "estimate", device=device)
        seen, run = list[list[int]](), Runner.run_at

        def watch(self: Runner, addresses: Sequence[int]) -> None:
            seen.append([*addresses])
            run(self, addresses)

        monkeypatch.setattr(Runner, "run_at", watch)
        again = copy.deepcopy(optimized)
        y = again(x)
        assert seen == [[x.data_ptr(), y.data_ptr()]]
        assert torch.allclose(y, module(x), atol=1e-6)


def test_a_module_that_is_elsewhere_is_refused(opencl: str) -> None:
    away = nn.Linear(4, 3, device="meta").eval()
    with pytest.raises(SpecError, match=r"^module.weight: on meta, and device='opencl:0' computes"):
        optimize(away, torch.randn(2, 4), "estimate", device=opencl)
    here = nn.Linear(4, 3).eval()
    with pytest.raises(SpecError, match=r"^example_inputs: on meta, .* by \.to\('cpu'\)$"):
        optimize(here, torch.randn(2, 4, device="meta"), "estimate", device=opencl)
    optimized = optimize(here, torch.randn(2, 4), "estimate", device=opencl)
    with pytest.raises(
        TypeError, match=r"expected a dense tensor on the CPU, got Tensor of .* meta"
    ):
        optimized(torch.randn(2, 4, device="meta"))
    with pytest.raises(SpecError, match=r"^device opencl:0: .*; leave out threads$"):
        optimize(here, torch.randn(2, 4), "estimate", device=opencl, threads=2)
    with pytest.raises(UnsupportedError, match=r"^no backend 'vulkan:0'; known: host, "):
        optimize(here, torch.randn(2, 4), "estimate", device="vulkan:0")


def test_an_architecture_runs_no_module() -> None:
    pytest.importorskip("cuda.bindings.nvrtc", reason="CUDA: NVRTC is not installed")
    with pytest.raises(
        UnsupportedError, match=r"^device cuda:sm_80: compiles code, and modules run"
    ):
        optimize(perceptron(), torch.randn(4, 6), "estimate", device="cuda:sm_80")


class Sorted(nn.Sequential):
    def forward(self, x: Any) -> Any:
        return torch.sort(super().forward(x))[0]


def test_what_is_sorted_stays_on_the_device(opencl: str) -> None:
    module, x = Sorted(nn.Linear(6, 8)).eval(), torch.randn(4, 6)
    optimized = optimize(module, x, "estimate", device=opencl)
    assert torch.allclose(optimized(x), module(x), atol=1e-6)


def test_without_kernels_a_part_is_left_to_pytorch(
    opencl: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> str:
        raise UnsupportedError("no kernel of it")

    monkeypatch.setattr(printer, "print_network", refuse)
    module, x = nn.Sequential(nn.Linear(6, 8)).eval(), torch.randn(4, 6)
    optimized = optimize(module, x, "estimate", device=opencl)
    assert "no kernel of it" in str(optimized.report)
    assert torch.equal(optimized(x), module(x))


def test_graphs_of_inference_and_training_run_on_the_device(device: str) -> None:
    module, x = perceptron(), torch.randn(4, 6)
    words = {"backend": "polysci", "options": {"device": device, "rest": "eager"}}
    with torch.no_grad():
        assert torch.allclose(torch.compile(module, **words)(x), module(x), atol=1e-6)
    here, there = copy.deepcopy(module).train(), copy.deepcopy(module).train()
    learns = torch.compile(there, **words)
    steps = [torch.optim.Adam(own.parameters(), lr=0.01) for own in (here, there)]
    for _ in range(3):
        for run, step in zip((here, learns), steps, strict=True):
            step.zero_grad()
            run(x).square().sum().backward()
            step.step()
    for own, other in zip(here.parameters(), there.parameters(), strict=True):
        assert torch.allclose(own, other, rtol=1e-4, atol=1e-5)


def test_a_graph_that_is_elsewhere_is_refused(opencl: str) -> None:
    module = torch.compile(
        nn.Linear(4, 3, device="meta"), backend="polysci", options={"device": opencl}
    )
    with pytest.raises(Exception, match=r"on meta, and device='opencl:0' computes with tensors on"):
        module(torch.randn(2, 4, device="meta"))


def test_comprehensions_and_their_gradients(device: str) -> None:
    operator = notation.torch_op(PRODUCT, device=device)
    a, b = (torch.randn(shape, requires_grad=True) for shape in ((5, 7), (7, 3)))
    c = operator(a, b)
    assert torch.allclose(c, a @ b, atol=1e-5)
    seed = torch.randn(5, 3)
    (da, db) = torch.autograd.grad(c, (a, b), seed)
    assert torch.allclose(da, seed @ b.T, atol=1e-5) and torch.allclose(db, a.T @ seed, atol=1e-5)
    with pytest.raises(TypeError, match="mm: A: expected a dense tensor on the CPU"):
        operator(a.detach().to("meta"), b)


def driven(test: Callable[[], None]) -> Callable[[], None]:
    """The test with the driver of CUDA, where it can be built and called."""
    reason = "the driver of CUDA on this CPU: g++ or cuda-bindings is not installed"
    missing = COMPILER is None or find_spec("cuda") is None
    return pytest.mark.skipif(missing, reason=reason)(with_driver(test))


@driven
def test_cuda_takes_tensors_of_the_device_alone() -> None:
    for name in ("cuda", "cuda:0"):
        with pytest.raises(
            SpecError,
            match=r"^module.0.weight: on cpu, and device='cuda:0' .* on "
            r"cuda:0: move the module and its inputs by \.to\('cuda:0'\)$",
        ):
            optimize(perceptron(), torch.randn(4, 6), "estimate", device=name)  # fmt: skip
    operator = notation.torch_op(PRODUCT, device="cuda")
    with pytest.raises(TypeError, match="mm: A: expected a dense tensor on cuda:0, got one of"):
        operator(torch.randn(5, 7), torch.randn(7, 3))


@driven
def test_cuda_runs_on_the_current_stream_of_pytorch() -> None:
    """Addresses of tensors go to the driver, which nobody waits for; a runner for each stream."""
    from polysci.runtime.backends.cuda import stream_of
    from polysci.runtime.backends.nvrtc import import_cuda

    driver = import_cuda("driver")
    stream_of(0).enter()
    handles = [int(driver.cuStreamCreate(0)[1]) for _ in range(2)]
    current, seen, run = [handles[0]], list[int](), Runner.run_at

    def settle() -> None:
        for handle in handles:
            assert int(driver.cuStreamSynchronize(handle)[0]) == 0

    def run_and_settle(self: Runner, addresses: Sequence[int]) -> None:
        seen.extend(addresses)
        run(self, addresses)
        settle()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(devices, "place_of", lambda _: devices.CPU)
        patch.setattr(torch.cuda, "device", lambda _: nullcontext())
        stream = lambda _: SimpleNamespace(cuda_stream=current[0])  # noqa: E731
        patch.setattr(torch.cuda, "current_stream", stream)
        module, x = perceptron(), torch.randn(4, 6)
        with patch.context() as inner:  # tensors on the CPU do not wait for a stream to be read
            inner.setattr(Runner, "run_at", run_and_settle)
            optimized = optimize(module, x, "estimate", device="cuda")
            assert optimized.report.parts[0].stages and not optimized.report.parts[0].reason
            apart = torch.randn(25)[1:].view(4, 6)  # 4 bytes behind a line
            assert torch.allclose(optimized(apart), module(apart), atol=1e-6)
            assert apart.data_ptr() not in seen and not any(place % 16 for place in seen)
        waited, results = calls("cuStreamSynchronize"), []
        for current[0] in (*handles, *handles):
            results.append(optimized(x))
        assert calls("cuStreamSynchronize") == waited
        settle()
        assert all(torch.allclose(y, module(x), atol=1e-6) for y in results)
