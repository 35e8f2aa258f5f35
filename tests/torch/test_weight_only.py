"""Modules whose weights torchao quantised: results are eager's, and the weights stay narrow."""

import copy
import warnings
from typing import Any

import pytest

torch = pytest.importorskip("torch")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pytest.importorskip("torchao")
    from torchao.prototype.quantization.int4 import PrototypeInt4WeightOnlyConfig
    from torchao.quantization import (
        Int8DynamicActivationInt8WeightConfig,
        Int8WeightOnlyConfig,
        IntxWeightOnlyConfig,
        MappingType,
        PerAxis,
        PerGroup,
        PerRow,
        PerTensor,
        quantize_,
    )
from polysci.network.compiled import compile_network  # noqa: E402
from polysci.torch import optimize, variants  # noqa: E402

nn = torch.nn
pytestmark = pytest.mark.filterwarnings("ignore")  # what torch's parts warn each other of
X = torch.linspace(-2, 2, 3 * 5 * 64).sin().reshape(3, 5, 64)


def gated() -> Any:
    """Two layers, one with a bias, of widths that hold whole blocks."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 96, bias=False), nn.SiLU(), nn.Linear(96, 48)).eval()


def intx(bits: int, group: int = 0, *, mapping: Any = None) -> Any:
    return IntxWeightOnlyConfig(
        weight_dtype=getattr(torch, f"int{bits}"),
        granularity=PerGroup(group) if group else PerAxis(0),
        mapping_type=mapping or MappingType.SYMMETRIC,
    )


# Configuration -> the type of the blocks of the first layer.
CASES = {
    "int8 rows": (Int8WeightOnlyConfig(granularity=PerRow(), set_inductor_config=False), "s8x64"),
    "int8 tensor": (
        Int8WeightOnlyConfig(granularity=PerTensor(), set_inductor_config=False), "s8x64"
    ),
    "int8 groups": (
        Int8WeightOnlyConfig(granularity=PerGroup(32), set_inductor_config=False), "s8x32"
    ),
    "intx 8 rows": (intx(8), "s8x64"),
    "intx 8 groups": (intx(8, 16, mapping=MappingType.ASYMMETRIC), "u8x16"),
    "intx 4 groups": (intx(4, 32), "s4x32"),
    "intx 4 zeros": (intx(4, 32, mapping=MappingType.ASYMMETRIC), "u4x32"),
    "intx 3 rows": (intx(3), "s4x64"),
    "tinygemm": (PrototypeInt4WeightOnlyConfig(group_size=32, set_inductor_config=False), "u4x32"),
}  # fmt: skip


def quantised(config: Any) -> Any:
    module = gated()
    quantize_(module, config)
    return module


def narrow_types(network: Any) -> list[str]:
    """The types of weights of a network's products, f32 of those that are not narrow."""
    layers = network.prepared.program.layers()
    return [layer.problem.dtype.split(":")[1] for layer in layers]


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("name", CASES)
@torch.no_grad()
def test_weights_stay_narrow(name: str) -> None:
    config, blocks = CASES[name]
    module = quantised(config)
    own = optimize(module, X, "estimate", threads=1)
    assert not own.report.refused and not own.report.reason, own.report
    part = own._variants[own._first].runs.__self__  # the only one
    types = narrow_types(part.network)
    assert types[0] == blocks and all(kind[:2] == blocks[:2] for kind in types)
    torch.testing.assert_close(own(X), module(X), rtol=1e-4, atol=1e-5)
    exact = dequantised(module).double()(X.double())
    assert float((own(X) - exact).abs().max()) <= 1e-5 * float(exact.abs().max())


def dequantised(module: Any) -> Any:
    """The module with the values of its weights."""
    plain = gated()
    for own, layer in zip(plain, module, strict=True):
        if isinstance(layer, nn.Linear):
            identity = torch.eye(layer.in_features)
            values = nn.functional.linear(identity, layer.weight).T
            own.weight = nn.Parameter(values.detach().contiguous())
            own.bias = copy.deepcopy(layer.bias)
    return plain


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["int8 rows", "intx 4 zeros", "tinygemm"])
@torch.no_grad()
def test_the_backend_of_torch_compile_takes_them(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, blocks = CASES[name]
    module, networks = quantised(config), []

    def compile_noted(*arguments: Any, **words: Any) -> Any:
        networks.append(compile_network(*arguments, **words))
        return networks[-1]

    monkeypatch.setattr(variants, "compile_network", compile_noted)
    options = {"level": "estimate", "rest": "eager"}
    own = torch.compile(module, backend="polysci", options=options)
    torch.testing.assert_close(own(X), module(X), rtol=1e-4, atol=1e-5)
    assert narrow_types(networks[-1])[0] == blocks
    torch._dynamo.reset()


@torch.no_grad()
def test_rows_of_a_quantised_table_are_dequantised_where_they_are_read() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Embedding(50, 32), nn.SiLU()).eval()
    quantize_(module, intx(8, 16), filter_fn=lambda part, _: isinstance(part, nn.Embedding))
    ids = torch.randint(0, 50, (2, 7))
    own = optimize(module, ids, "estimate", threads=1)
    assert not own.report.refused and not own.report.reason, own.report
    (part,) = own.report.parts
    assert part.bytes < 50 * 32 * 4
    torch.testing.assert_close(own(ids), module(ids))


@torch.no_grad()
def test_rows_that_are_rounded_at_run_time_multiply_in_8_bits() -> None:
    module = quantised(Int8DynamicActivationInt8WeightConfig(set_inductor_config=False))
    own = optimize(module, X, "estimate", threads=1)
    assert not own.report.refused and len(own.report.parts) == 1, own.report
    part = own._variants[own._first].runs.__self__
    assert {layer.problem.dtype for layer in part.network.prepared.program.layers()} == {
        "u8:s8:s32"
    }
    expected = module(X)
    assert float((own(X) - expected).abs().max()) <= 0.01 * float(expected.abs().max())


@torch.no_grad()
def test_changed_numbers_are_noticed() -> None:
    module = quantised(CASES["intx 4 groups"][0])
    own = optimize(module, X, "estimate", threads=1)
    before = own(X)
    module[0].weight.scale.mul_(2)
    assert not torch.allclose(own(X), before)
    torch.testing.assert_close(own(X), module(X), rtol=1e-4, atol=1e-5)
