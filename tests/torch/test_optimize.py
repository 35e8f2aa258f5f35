"""``polysci.torch.optimize``: modules compute what they did, wherever PyTorch users put them."""

import copy
import io
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from polysci.errors import SpecError, UnsupportedError

torch = pytest.importorskip("torch")
pytest.importorskip("onnx")
from polysci.torch import optimize  # noqa: E402
from tests.support.torch_models import MODULES  # noqa: E402
from tests.support.torch_results import compare, leaves  # noqa: E402

nn = torch.nn
pytestmark = pytest.mark.filterwarnings("ignore")  # what torch's parts warn each other of


class Mixed(nn.Module):
    """Two parts that can be compiled, and a call between them that cannot."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 5, 1)

    def forward(self, x: Any, scale: float = 2.0) -> Any:
        y = torch.erfinv(self.first(x).tanh() * 0.5)
        return {"y": self.last(y).relu() * scale, "sorted": (y, x.mean((2, 3)))}


@pytest.fixture(scope="module")
def mixed() -> tuple[Any, Any, Any]:
    torch.manual_seed(0)
    module, x = Mixed().eval(), torch.randn(2, 3, 6, 7)
    return module, optimize(module, x, "estimate"), x


def test_parts_are_compiled_and_the_rest_is_pytorchs(mixed: tuple[Any, Any, Any]) -> None:
    module, optimized, x = mixed
    compare(module, optimized, x)
    report = optimized.report
    assert len(report.parts) == 2 and [call.op for call in report.refused] == [
        "aten.erfinv.default"
    ]
    assert "polysci has no such operator" in str(report)


def test_copies_and_files_compute_the_same(mixed: tuple[Any, Any, Any]) -> None:
    module, optimized, x = mixed
    file = io.BytesIO()
    torch.save(optimized, file)
    file.seek(0)
    for other in (copy.deepcopy(optimized), torch.load(file, weights_only=False)):
        compare(module, other, x)
        assert other.state_dict().keys() == module.state_dict().keys()


def test_programs_of_torch_export_can_be_copied_and_saved() -> None:
    torch.manual_seed(0)
    module, x = nn.Sequential(nn.Linear(6, 5), nn.ReLU()).eval(), torch.randn(3, 6)
    free = ({0: torch.export.Dim("rows", max=8)},)
    program = torch.export.export(module, (x,), dynamic_shapes=free)
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    optimized = optimize(program, x, "estimate", dynamic_shapes=free)
    optimized.load_state_dict({"0.weight": torch.ones(5, 6), "0.bias": torch.ones(5)})
    loaded = optimize(torch.export.load(file).module(), x, "estimate")
    for own in (optimized, loaded):
        data = io.BytesIO()
        torch.save(own, data)
        data.seek(0)
        for other in (copy.deepcopy(own), torch.load(data, weights_only=False)):
            assert other.report.parts and other.state_dict().keys() == module.state_dict().keys()
            assert torch.equal(other(x), own(x))
            if own is optimized:
                compare(other.module, other, torch.randn(7, 6))
    assert not torch.equal(optimized(x), loaded(x))


def test_modes_and_threads(mixed: tuple[Any, Any, Any]) -> None:
    _, optimized, x = mixed
    wanted = leaves(optimized(x))

    def run(_: int) -> list[Any]:
        with torch.inference_mode():
            return leaves(optimized(x))

    with ThreadPoolExecutor(4) as pool:
        runs = [*pool.map(run, range(16))]
    with torch.autocast("cpu", torch.bfloat16):
        runs.append(leaves(optimized(x)))
        assert leaves(optimized(x.bfloat16()))[0].dtype == torch.float32
    assert all(torch.equal(a, b) for run in runs for a, b in zip(run, wanted, strict=True))


def test_inputs_by_name_and_of_other_strides(mixed: tuple[Any, Any, Any]) -> None:
    module, optimized, x = mixed
    turned = torch.randn(7, 6, 3, 2).permute(3, 2, 1, 0)
    compare(module, optimized, turned)
    compare(module, optimized, x.to(memory_format=torch.channels_last))
    assert torch.equal(optimized(x=x)["y"], optimized(x)["y"])


@pytest.mark.parametrize(
    ("change", "error", "reason"),
    [
        (lambda m, x: m(x[:, :, :-1]), ValueError, r"expected \(2, 3, 6, 7\)"),
        (lambda m, x: m(x.double()), TypeError, "expected torch.float32, got torch.float64"),
        (lambda m, x: m(x.clone().requires_grad_()), UnsupportedError, "computes no gradients"),
        (lambda m, x: m(x, 3.0), TypeError, "expected the structure"),
        (lambda m, x: m(x.to("meta")), TypeError, "expected a dense tensor on the CPU"),
        (lambda m, x: m(x.numpy()), TypeError, "tensors or numbers, got ndarray"),
        (lambda m, x: torch.func.vmap(m)(x[None]), UnsupportedError, "no transform of torch.func"),
        (lambda m, x: torch.export.export(m, (x,)), UnsupportedError, "is no program"),
        (lambda m, x: optimize(torch.jit.trace(nn.ReLU(), x), x), UnsupportedError, "TorchScript"),
        (lambda m, x: m.train(), UnsupportedError, "does not learn"),
        (lambda m, x: m.to("meta"), UnsupportedError, "stays torch.float32 on cpu"),
        (lambda m, x: optimize(nn.Linear(2, 2), x), SpecError, "call eval"),
        (lambda m, x: optimize(3, x), TypeError, "ExportedProgram, got int"),
    ],
)
def test_errors(mixed: tuple[Any, Any, Any], change: Any, error: Any, reason: str) -> None:
    with pytest.raises(error, match=reason):
        change(*mixed[1:])


def test_conversions_that_change_nothing_are_allowed(mixed: tuple[Any, Any, Any]) -> None:
    assert mixed[1].float().to("cpu").eval() is mixed[1]


def test_conversions_convert_the_module() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(64, 5))
    x = torch.randn(2, 3, 6, 6)
    optimized = optimize(module.eval(), x, "estimate")
    exact = copy.deepcopy(module).double()(x.double())
    for kind, error in ((torch.float64, 1e-12), (torch.bfloat16, 0.03), (torch.float32, 0.02)):
        assert optimized.to(kind) is optimized
        assert {p.dtype for p in optimized.parameters()} == {kind}
        y = optimized(x.to(kind))
        assert y.dtype == kind and (y.double() - exact).abs().max() < error
        assert bool(optimized.report.reason) == (kind == torch.bfloat16)  # left to eager
        with pytest.raises((TypeError, RuntimeError), match=r"expected|should be the same"):
            optimized(x.to(torch.float16))  # the latter is eager's
    again = optimize(torch.export.export(module, (x,)), x, "estimate")
    with pytest.raises(UnsupportedError, match="convert what it is of"):
        again.double()


def test_changed_weights_are_compiled_again() -> None:
    torch.manual_seed(0)
    module, x = nn.Sequential(nn.Linear(6, 5), nn.ReLU()).eval(), torch.randn(3, 6)
    optimized = optimize(module, x, "estimate")
    with torch.no_grad():
        module[0].weight.mul_(2)
    compare(module, optimized, x)
    optimized.load_state_dict({"0.weight": torch.ones(5, 6), "0.bias": torch.ones(5)})
    compare(module, copy.deepcopy(optimized), x)


class Scaled(nn.Module):
    """A weight that is neither parameter nor buffer, and one of inference mode."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.layer = torch.ones(5), nn.Linear(6, 5)
        with torch.inference_mode():
            self.register_buffer("shift", torch.ones(5))

    def forward(self, x: Any) -> Any:
        return self.layer(x) * self.scale + self.shift


def test_changes_that_pytorch_does_not_count_are_noticed() -> None:
    torch.manual_seed(0)
    module, x = Scaled().eval(), torch.randn(3, 6)
    optimized = optimize(module, x, "estimate")
    module.layer.weight.data.mul_(2)
    compare(module, optimized, x)
    module.scale.mul_(3)
    compare(module, optimized, x)
    module.scale = torch.full((5,), 4.0)
    compare(module, optimized, x)
    with torch.inference_mode():
        module.shift.zero_()
    assert optimized._state.has_changed()
    module.train()
    with pytest.raises(SpecError, match=r"^module: it learns; call eval\(\) first"):
        optimized(x)


def test_the_part_that_learns_is_named() -> None:
    module = nn.Sequential(nn.Linear(6, 5), nn.Sequential(nn.ReLU(), nn.BatchNorm1d(5))).eval()
    module[1][1].train()
    with pytest.raises(SpecError, match=r"^module\.1\.1 \(BatchNorm1d\): it learns"):
        optimize(module, torch.randn(3, 6), "estimate")


def test_the_state_of_a_module_that_has_an_optimized_one() -> None:
    torch.manual_seed(0)
    module, x = nn.Sequential(nn.Linear(6, 5), nn.ReLU()).eval(), torch.randn(3, 6)
    whole = nn.Sequential(optimize(module, x, "estimate"))
    state = {name: value * 2 for name, value in whole.state_dict().items()}
    assert list(state) == ["0.0.weight", "0.0.bias"]
    whole.load_state_dict(state)
    assert torch.equal(module[0].weight, state["0.0.weight"])
    compare(module, whole[0], x)


class Several(nn.Module):
    """Results that no call makes, beside one of a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 5)

    def forward(self, x: Any, other: Any) -> Any:
        return x, self.layer(other).relu(), 1, None, True, self.layer.bias * 2, other


def test_results_that_no_call_makes() -> None:
    torch.manual_seed(0)
    module, inputs = Several().eval(), (torch.randn(2), torch.randn(3, 6))
    optimized, file = optimize(module, inputs, "estimate"), io.BytesIO()
    assert len(optimized.report.parts) == 1 and not optimized.report.reason
    assert not isinstance(optimized._variants[optimized._first].runs, nn.Module)
    torch.save(optimized, file)
    file.seek(0)
    with torch.no_grad():
        wanted = module(*inputs)
    for other in (optimized, copy.deepcopy(optimized), torch.load(file, weights_only=False)):
        made = other(*inputs)
        assert made[2:5] == wanted[2:5] == (1, None, True) and made[4] is True
        assert made[0] is inputs[0] and made[6] is inputs[1]
        torch.testing.assert_close((made[1], made[5]), (wanted[1], wanted[5]))


def test_replaced_parts_are_compiled_again() -> None:
    torch.manual_seed(0)
    module, x = nn.Sequential(nn.Linear(6, 5), nn.ReLU()).eval(), torch.randn(3, 6)
    optimized = optimize(module, x, "estimate")
    module[0] = nn.Linear(6, 4)
    compare(module, optimized, x)
    module[0].weight.data = torch.randn(4, 6)
    compare(module, optimized, x)
    module.append(nn.Tanh())
    compare(module, optimized, x)


def test_hooks_are_captured_with_the_code() -> None:
    module, x = nn.Sequential(nn.Linear(6, 5), nn.ReLU()).eval(), torch.randn(3, 6)
    module[0].register_forward_hook(lambda part, inputs, made: made + 1)
    optimized, wanted = optimize(module, x, "estimate"), module(x)
    module[0].register_forward_hook(lambda part, inputs, made: made * 2)
    torch.testing.assert_close(optimized(x), wanted)


def test_free_dimensions() -> None:
    module, x = nn.Sequential(nn.Linear(6, 5), nn.ReLU()).eval(), torch.randn(3, 6)
    free = ({0: torch.export.Dim("rows", max=8)},)
    optimized = optimize(module, x, "estimate", dynamic_shapes=free)
    compare(module, optimized, torch.randn(7, 6))
    with pytest.raises(SpecError, match="sizes that dynamic_shapes does not take"):
        optimized(torch.randn(9, 6))


class Loop(nn.Module):
    def forward(self, x: Any) -> Any:
        while x.sum() > 1:
            x = x / 2
        return x


def test_what_cannot_be_exported_is_eager() -> None:
    optimized = optimize(Loop().eval(), torch.ones(3), "estimate")
    assert "torch.export cannot capture it" in optimized.report.reason
    assert torch.equal(optimized(torch.ones(3)), torch.full((3,), 0.25))


@pytest.mark.exhaustive
def test_bf16_is_allowed() -> None:
    module, (x,) = MODULES["resnet18"].module(), MODULES["resnet18"].inputs()
    optimized = optimize(module, x, "estimate", "bf16")
    with torch.no_grad():
        np.testing.assert_allclose(optimized(x), module(x), atol=3e-2)


def test_errors_beyond_rounding_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    from polysci.torch import variants

    compile_graph = variants._compile_graph

    def compile_other(options: Any, graph: Any) -> Any:
        constants = {name: value * (1 + 2**-15) for name, value in graph.constants.items()}
        return compile_graph(options, replace(graph, constants=constants))

    monkeypatch.setattr(variants, "_compile_graph", compile_other)
    torch.manual_seed(0)
    report = optimize(nn.Linear(64, 32, bias=False).eval(), torch.randn(8, 64), "estimate").report
    assert report.reason == "no part of it computes what eager does"
    assert 2**-18 <= report.parts[0].bound < report.parts[0].error < 2**-14


@pytest.mark.exhaustive
def test_slower_modules_are_left_to_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    from polysci.torch import variants

    monkeypatch.setattr(variants, "time_in_turns", lambda eager, mine, device: (1.0, 1.1))
    optimized = optimize(nn.Linear(6, 5).eval(), torch.ones(2, 6), "measure")
    assert optimized.report.reason == "eager was faster on the example inputs"
    assert optimized.report.gain == pytest.approx(1 / 1.1)
    assert optimized(torch.ones(2, 6)).shape == (2, 5)
