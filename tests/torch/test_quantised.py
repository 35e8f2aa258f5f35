"""Models that PT2E quantised: results are PyTorch's up to a step, and layers have 8 bits."""

import warnings
from pathlib import Path
from typing import Any

import pytest

from polysci.cli import main
from polysci.network.compiled import compile_network

torch = pytest.importorskip("torch")
pytest.importorskip("onnx")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pytest.importorskip("torchao")
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
    from torchao.quantization.pt2e.quantizer.x86_inductor_quantizer import (
        X86InductorQuantizer,
        get_default_x86_inductor_quantization_config,
    )
from polysci.torch import optimize  # noqa: E402
from polysci.torch.dynamo import compile_graph  # noqa: E402
from tests.support.torch_models.blocks import Residual, conv  # noqa: E402

nn = torch.nn
pytestmark = pytest.mark.filterwarnings("ignore")  # what torch's parts warn each other of
SHAPES = {"cnn": (2, 3, 12, 12), "mlp": (4, 5, 24), "depthwise": (1, 8, 9, 9)}


def cnn() -> Any:
    body = nn.Sequential(conv(8, 8), conv(8, 8, act=None))
    ends = [nn.MaxPool2d(2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10)]
    return nn.Sequential(conv(3, 8), Residual(body, activation=nn.ReLU()), *ends)


def mlp() -> Any:
    return nn.Sequential(nn.Linear(24, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU(),
                         nn.Linear(16, 7, bias=False))  # fmt: skip


def depthwise() -> Any:
    """As in MobileNetV2."""
    first = conv(8, 24, 1, act=nn.ReLU6)
    return nn.Sequential(first, conv(24, 24, act=nn.ReLU6, groups=24), conv(24, 8, 1, act=None))


MODULES = {"cnn": cnn, "mlp": mlp, "depthwise": depthwise}


def quantised(name: str, **words: Any) -> Any:
    """A module after PT2E, with ranges of three batches."""
    torch.manual_seed(0)
    module = MODULES[name]().eval()
    for part in module.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.running_var.uniform_(0.5, 2)
    quantizer = X86InductorQuantizer()
    quantizer.set_global(get_default_x86_inductor_quantization_config(**words))
    with torch.no_grad():
        exported = torch.export.export(module, (torch.randn(SHAPES[name]),)).module()
        prepared = prepare_pt2e(exported, quantizer)
        for _ in range(3):
            prepared(torch.randn(SHAPES[name]))
        return convert_pt2e(prepared)


def check(made: Any, wanted: Any) -> None:
    """A step of 8 bits at most, for sums between two whole numbers, which are few."""
    step = float(wanted.max() - wanted.min()) / 255
    assert float((made - wanted).abs().max()) <= step
    assert float(((made - wanted).abs() > step / 2).float().mean()) < 0.02


def types(network: Any) -> set[str]:
    return {layer.problem.dtype for layer in network.prepared.program.layers()}


CASES = {
    **{name: (name, {}) for name in MODULES},
    "at run time": ("mlp", {"is_dynamic": True}),
    "of 7 bits": ("cnn", {"reduce_range": True}),
}


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("case", CASES)
def test_optimized_modules_have_layers_of_8_bits(case: str) -> None:
    name, words = CASES[case]
    module, x = quantised(name, **words), torch.randn(SHAPES[name])
    optimized = optimize(module, x, "estimate")
    assert not optimized.report.refused
    part = optimized._variants[optimized._first].runs.__self__  # the only one
    assert types(part.network) <= {"u8:s8:u8", "u8:s8:s32"}
    with torch.no_grad():
        check(optimized(x), module(x))


def test_saved_programs_are_compiled(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    module, x, path = quantised("cnn"), torch.randn(SHAPES["cnn"]), tmp_path / "net.pt2"
    torch.export.save(torch.export.export(module, (x,)), path)
    network = compile_network(path, "estimate")
    assert types(network) == {"u8:s8:u8", "u8:s8:s32"}
    with torch.no_grad():
        check(torch.from_numpy(network(x.numpy())), module(x))
    assert main(["compile", str(path), "--level", "estimate", "--check"]) == 0
    assert "quantized_conv" in capsys.readouterr().out


@pytest.mark.exhaustive
def test_the_backend_of_torch_compile_takes_them() -> None:
    module, x = quantised("mlp"), torch.randn(SHAPES["mlp"])
    with torch.no_grad():
        compiled = torch.compile(module, backend=compile_graph, options={"rest": "eager"})
        check(compiled(x), module(x))
