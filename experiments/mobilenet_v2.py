"""MobileNetV2 as an ONNX file: a network to compare whole, made here instead of downloaded.

Width 1.0, one image of 3 x 224 x 224, 1000 classes (Sandler et al., 2018, table 2), for inference.
Weights are random but seeded: as He initialises them, with batch-norm statistics and scales that
are not trivial, so that folding them is real work and activations stay of ordinary size.

  python experiments/mobilenet_v2.py --output mobilenet_v2.onnx

Needs PyTorch and what its exporter needs: pip install torch onnx onnxscript. Where ONNX Runtime is
installed, the file's result is compared with PyTorch's.
"""

from __future__ import annotations

import argparse
import importlib.util
import logging
import sys
import warnings
from pathlib import Path
from typing import Any

NEEDED = ("torch", "onnx", "onnxscript")
BLOCKS = (  # expansion, channels, repetitions, stride of the first
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
STEM, HEAD, CLASSES = 32, 1280, 1000
SHAPE = (1, 3, 224, 224)
OPSET = 18  # the oldest that the exporter writes itself
TOLERANCE = 1e-4  # of the largest result


def network(torch: Any) -> Any:
    """The module in evaluation mode, with random weights and statistics of the current seed."""
    nn = torch.nn

    def unit(c: int, k: int, size: int, stride: int = 1, groups: int = 1) -> list[Any]:
        pad = size // 2
        conv = nn.Conv2d(c, k, size, stride, pad, groups=groups, bias=False)
        return [conv, nn.BatchNorm2d(k)]

    class Block(nn.Module):  # type: ignore[misc, name-defined]
        """Expand by a 1x1, filter each channel by a 3x3, project by a 1x1, add the input."""

        def __init__(self, c: int, k: int, expansion: int, stride: int) -> None:
            super().__init__()
            wide = c * expansion
            layers = [*unit(c, wide, 1), nn.ReLU6()] if expansion > 1 else []
            layers += [*unit(wide, wide, 3, stride, wide), nn.ReLU6(), *unit(wide, k, 1)]
            self.layers, self.adds = nn.Sequential(*layers), stride == 1 and c == k

        def forward(self, x: Any) -> Any:
            y = self.layers(x)
            return x + y if self.adds else y

    layers, c = [*unit(3, STEM, 3, 2), nn.ReLU6()], STEM
    for expansion, k, count, first in BLOCKS:
        for index in range(count):
            layers.append(Block(c, k, expansion, first if index == 0 else 1))
            c = k
    layers += [*unit(c, HEAD, 1), nn.ReLU6(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    layers.append(nn.Linear(HEAD, CLASSES))
    model = nn.Sequential(*layers)
    for module in model.modules():
        randomise(nn, module)
    return model.eval()


def randomise(nn: Any, module: Any) -> None:
    """Seeded weights of one layer; scales below 1, as trained ones are."""
    if isinstance(module, nn.Conv2d):
        nn.init.kaiming_normal_(module.weight, mode="fan_in")
    elif isinstance(module, nn.Linear):
        nn.init.normal_(module.weight, std=0.05)
        nn.init.normal_(module.bias, std=0.1)
    elif isinstance(module, nn.BatchNorm2d):
        nn.init.uniform_(module.weight, 0.5, 1.0)
        nn.init.normal_(module.bias, std=0.2)
        nn.init.normal_(module.running_mean, std=0.2)
        nn.init.uniform_(module.running_var, 0.5, 2.0)


def export(torch: Any, model: Any, x: Any, path: Path) -> None:
    """Write the model with its weights into one file."""
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it misses torchvision
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter's, about itself
        program = torch.onnx.export(
            model, (x,), dynamo=True, opset_version=OPSET, verbose=False,
            input_names=["input"], output_names=["logits"],
        )  # fmt: skip
    program.save(str(path), external_data=False)


def difference(path: Path, x: Any, y: Any) -> float:
    """max |ONNX Runtime's - PyTorch's| over the largest of PyTorch's."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (result,) = session.run(None, {"input": x.numpy()})
    return float(abs(result - y.numpy()).max() / abs(y.numpy()).max())


def main() -> int:
    """Export, compare where that is possible; 1 where something is missing or differs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, required=True, metavar="FILE")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        print(
            f"mobilenet_v2: error: PyTorch's exporter needs {' and '.join(missing)}: "
            f"pip install {' '.join(missing)}",
            file=sys.stderr,
        )
        return 1
    import torch

    torch.manual_seed(arguments.seed)
    model, x = network(torch), torch.randn(SHAPE)
    with torch.inference_mode():
        y = model(x)
    export(torch, model, x, arguments.output)
    count = sum(parameter.numel() for parameter in model.parameters())
    print(f"{arguments.output}: {count} parameters, |logits| up to {float(y.abs().max()):.3g}")
    if importlib.util.find_spec("onnxruntime") is None:
        print("not compared with PyTorch: onnxruntime is not installed")
        return 0
    error = difference(arguments.output, x, y)
    print(f"ONNX Runtime differs from PyTorch by {error:.2g} of the largest result")
    return int(not error <= TOLERANCE)


if __name__ == "__main__":
    sys.exit(main())
