"""``optimize(..., ranges=True)``: one library computes every size of a module's dimensions."""

import copy
import gc
import pickle
import re
import weakref
from typing import Any

import pytest

from polysci.errors import SpecError, UnsupportedError

torch = pytest.importorskip("torch")
from polysci.torch import optimize, optimized_module, variants  # noqa: E402
from tests.support.torch_results import compare  # noqa: E402

nn, Dim = torch.nn, torch.export.Dim
LENGTH = Dim("length", min=4, max=8)
pytestmark = pytest.mark.filterwarnings("ignore")  # what torch's parts warn each other of


class Attention(nn.Module):
    """Causal attention of heads whose width lies inside of a part of the range."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(8, 30), nn.Linear(10, 5)

    def forward(self, x: Any, scale: Any) -> Any:
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 5)).movedim(1, 3).unbind(1)
        z = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        y = self.out(z.transpose(1, 2).flatten(2)) * scale
        return {"y": y, "mean": y.mean(1)}


class Calls(nn.Module):
    """What a function computes of inputs."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Any) -> Any:
        return self.function(*inputs)


@pytest.fixture(scope="module")
def attention() -> tuple[Any, Any]:
    torch.manual_seed(0)
    module = Attention().eval()
    shapes = {"x": {1: LENGTH}, "scale": {1: LENGTH}}
    inputs = (torch.randn(2, 4, 8), torch.rand(1, 4, 1))
    return module, optimize(module, inputs, "estimate", dynamic_shapes=shapes, ranges=True)


def inputs_of(length: int) -> tuple[Any, Any]:
    return torch.randn(2, length, 8), torch.rand(1, length, 1)


def test_all_sizes_are_computed_without_a_compile(
    attention: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    module, fast = attention
    for owner in (optimized_module, variants):
        monkeypatch.delattr(owner, "capture")
    for length in (*range(4, 9), *range(8, 3, -1)):
        compare(module, fast, *inputs_of(length))
    assert len(fast.report.parts) == 1
    assert "one library for all sizes length=4..8: 3 programs, weights " in str(fast.report)


def test_other_sizes_are_refused(attention: tuple[Any, Any]) -> None:
    fast = attention[1]
    for length in (3, 9):
        said = rf"^inputs: x: axis 1: length is {length}, and ranges=True compiled length=4\.\.8$"
        with pytest.raises(SpecError, match=said):
            fast(*inputs_of(length))
    with pytest.raises(SpecError, match=r"^inputs: scale: axis 1: expected length=5, got 4$"):
        fast(inputs_of(5)[0], inputs_of(4)[1])
    with pytest.raises(SpecError, match=r"^inputs: x: axis 0: expected 2, got 3$"):
        fast(torch.randn(3, 5, 8), inputs_of(5)[1])
    with pytest.raises(SpecError, match=r"^inputs: x: expected 3 axes, got \[5, 8\]$"):
        fast(torch.randn(5, 8), inputs_of(5)[1])


def test_copies_compute_and_pickles_are_refused(attention: tuple[Any, Any]) -> None:
    module, fast = attention
    compare(module, copy.deepcopy(fast), *inputs_of(8))
    with pytest.raises(UnsupportedError, match="pickle"):
        pickle.dumps(fast)


def test_results_that_are_no_tensors_stay() -> None:
    rows, module = Dim("rows", min=5, max=6), Calls(lambda x: (x.exp(), None, x.shape[1])).eval()
    shapes = (({0: rows},),)
    fast = optimize(module, torch.rand(5, 4), "estimate", dynamic_shapes=shapes, ranges=True)
    x = torch.rand(6, 4)
    assert torch.allclose(fast(x)[0], x.exp()) and fast(x)[1:] == (None, 4)


def test_sizes_that_are_called_have_libraries_of_their_own() -> None:
    torch.manual_seed(0)
    module, rows = nn.Sequential(nn.Linear(4, 3), nn.ReLU()).eval(), Dim("rows", min=5, max=8)
    fast = optimize(
        module, torch.randn(5, 4), "estimate", dynamic_shapes=({0: rows},), ranges=True,
        specialize_bytes=1 << 30,
    )  # fmt: skip
    for _ in range(2):
        for count in (6, 8):
            compare(module, fast, torch.randn(count, 4))
        assert fast._ranges.network.specialized.wait(300)
    told = "specialised: rows=6 (1 run); rows=8 (1 run): 2 hits, "
    assert told in str(fast.report)
    with torch.no_grad():
        module[0].weight.mul_(-1)
    compare(module, fast, torch.randn(6, 4))
    assert "no size yet" in str(fast.report)
    fast._ranges.network.specialized.close()
    with pytest.raises(SpecError, match="specialize_bytes: of ranges=True"):
        optimize(module, torch.randn(5, 4), "estimate", specialize_bytes=1)


def test_weights_that_change_are_compiled_again() -> None:
    torch.manual_seed(0)
    module, x = nn.Linear(4, 3).eval(), torch.randn(5, 4)
    rows = Dim("rows", min=5, max=6)
    fast = optimize(module, x, "estimate", dynamic_shapes=({0: rows},), ranges=True)
    compare(module, fast, torch.randn(6, 4))
    with torch.no_grad():
        module.weight.mul_(-1)
    compare(module, fast, torch.randn(6, 4))


@pytest.mark.parametrize(
    ("shapes", "said"),
    [
        (None, "ranges=True takes a torch.export.Dim with a max for each axis"),
        (({0: 5},), "ranges=True takes a torch.export.Dim with a max for each axis"),
        (({0: Dim("rows")},), "rows: ranges=True takes a torch.export.Dim with a max, as in "),
        (({0: Dim.AUTO},), r"DimHint\(AUTO\): ranges=True takes a torch.export.Dim"),
        (({0: 2 * LENGTH},), r"2\*length: ranges=True takes a torch.export.Dim"),
    ],
)  # fmt: skip
def test_dimensions_without_a_range_are_refused(shapes: Any, said: str) -> None:
    with pytest.raises(SpecError, match=f"^dynamic_shapes: {said}.*$"):
        optimize(nn.Linear(4, 3).eval(), torch.randn(6, 4), dynamic_shapes=shapes, ranges=True)


@pytest.mark.parametrize(
    ("module", "shape", "said"),
    [
        (Calls(lambda x: torch.cat([x, x], 2)), (1, 4, 5), "dimension size cannot vary: cat: "),
        (Calls(lambda x: (x.exp(), x.shape[2])), (1, 4, 5), "a number that it returns "),
        (Calls(lambda x: x.tanh().erfinv()), (1, 4, 5), ".* aten.erfinv.default .*no such "),
    ],
)  # fmt: skip
def test_what_ranges_cannot_says_what_to_do(module: Any, shape: Any, said: str) -> None:
    free = ({2: Dim("size", min=5, max=6)},)
    with pytest.raises(UnsupportedError, match=f"^ranges: {said}.*; leave ranges off: each new "):
        optimize(module.eval(), torch.rand(shape), "estimate", dynamic_shapes=(free,), ranges=True)


def test_dynamic_shapes_that_do_not_fit_are_refused() -> None:
    loop = nn.LSTM(4, 4, batch_first=True).eval()
    said = r"^ranges: PyTorch fails when .*length.*; leave ranges and dynamic_shapes off to .*$"
    with pytest.raises(UnsupportedError, match=said):
        optimize(loop, torch.randn(1, 6, 4), dynamic_shapes=({1: LENGTH},), ranges=True)


def test_results_that_are_wrong_are_refused() -> None:
    """Of sizes that the module computes otherwise than the exported program does."""
    moody = Calls(lambda x: x.relu() if torch.compiler.is_exporting() else x.exp()).eval()
    rows, x = Dim("rows", min=5, max=6), torch.randn(5, 4)
    with pytest.raises(UnsupportedError, match=r"^ranges: for rows=\d: .*; leave ranges off"):
        optimize(moody, x, "estimate", dynamic_shapes=(({0: rows},),), ranges=True)


def test_eager_stays_where_it_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(variants, "time_in_turns", lambda *_: (1.0, 2.0))
    monkeypatch.setattr(variants, "measures", lambda _: True)
    rows, module = Dim("rows", min=5, max=6), nn.Linear(4, 3).eval()
    fast = optimize(module, torch.randn(5, 4), "estimate", dynamic_shapes=({0: rows},), ranges=True)
    assert "eager was faster on the example inputs" in str(fast.report)
    compare(module, fast, torch.randn(6, 4))
    with pytest.raises(SpecError, match="rows is 7"):
        fast(torch.randn(7, 4))


def test_libraries_of_sizes_beyond_a_limit_go(caplog: pytest.LogCaptureFixture) -> None:
    """Of those that do not fit the one that was called longest ago goes first."""
    module, rows = nn.Linear(4, 3).eval(), Dim("rows", min=2, max=9)
    least = optimize(module, torch.randn(2, 4), "estimate").report.bytes
    assert least > 4 * 4 * 3
    fast = optimize(
        module, torch.randn(2, 4), "estimate", dynamic_shapes=({0: rows},),
        cache_bytes=5 * least // 2,
    )  # fmt: skip
    assert "1 size: libraries hold " in str(fast.report)
    for size in (3, 2, 4):
        compare(module, fast, torch.randn(size, 4))
    assert re.search("2 sizes: libraries hold .* of at most .*, 1 dropped", str(fast.report))
    (line,) = [it.message for it in caplog.records if it.name == "polysci.torch.optimized_module"]
    assert "one was dropped" in line
    assert [shape for (shape,) in fast._variants] == [(2, 4), (4, 4)]
    part = weakref.ref(next(iter(fast._variants.values())).runs.__self__)
    fast(torch.randn(5, 4))
    gc.collect()
    assert part() is None


@pytest.mark.parametrize(("given", "error"), [(-1, SpecError), (1.5, TypeError)])
def test_wrong_limits_are_refused(given: Any, error: type) -> None:
    with pytest.raises(error, match="cache_bytes: expected "):
        optimize(nn.Linear(4, 3).eval(), torch.randn(2, 4), cache_bytes=given)
