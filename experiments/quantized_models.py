"""Quantised networks as ONNX Runtime's quantiser writes them, of models with random weights.

``qdq``: weights and activations of 8 bits between QuantizeLinear and DequantizeLinear, calibrated
on random inputs; ``dynamic``: activations quantised as they come, by MatMulInteger; ``weights``:
constant weights alone, of 8 bits a column; ``int4``: MatMulNBits of 4 bits in blocks of 32. Needs
ONNX Runtime, and what the float models need.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import image_models
import numpy as np
import onnx
import transformer_models
from onnx import helper, numpy_helper, version_converter

OPSET = 17  # scales of channels need 13
CALIBRATION = 4  # random inputs
BLOCK = 32  # weights of 4 bits that share a scale
FLOAT = {**image_models.MODELS, **transformer_models.MODELS}


class RandomInputs:
    """Inputs for the calibration, as ONNX Runtime reads them; token numbers are small."""

    def __init__(self, model: onnx.ModelProto) -> None:
        random, self.left = np.random.default_rng(0), list[dict[str, np.ndarray]]()
        for _ in range(CALIBRATION):
            self.left.append({port.name: _draw(port, random) for port in model.graph.input})

    def get_next(self) -> dict[str, np.ndarray] | None:
        return self.left.pop() if self.left else None


def _draw(port: onnx.ValueInfoProto, random: np.random.Generator) -> np.ndarray:
    tensor = port.type.tensor_type
    shape = [axis.dim_value for axis in tensor.shape.dim]
    dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
    if np.issubdtype(dtype, np.integer):
        return random.integers(0, 1000, shape).astype(dtype)
    return random.normal(size=shape).astype(dtype)


def qdq(source: Path, to: Path) -> None:
    from onnxruntime import quantization

    quantization.quantize_static(
        source, to, RandomInputs(onnx.load(source)), per_channel=True,
        quant_format=quantization.QuantFormat.QDQ,
        activation_type=quantization.QuantType.QUInt8,
        weight_type=quantization.QuantType.QInt8,
    )  # fmt: skip


def dynamic(source: Path, to: Path) -> None:
    from onnxruntime import quantization

    quantization.quantize_dynamic(source, to, weight_type=quantization.QuantType.QInt8)


def int4(source: Path, to: Path) -> None:
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    quantiser = MatMulNBitsQuantizer(
        onnx.load(source), bits=4, block_size=BLOCK, is_symmetric=True, accuracy_level=4
    )
    quantiser.process()
    quantiser.model.save_model_to_file(str(to))


def weights(source: Path, to: Path) -> None:
    """Store constant factors of MatMul in 8 bits, with a scale a column."""
    model = onnx.load(source)
    graph, constants = model.graph, {it.name: it for it in model.graph.initializer}
    for node in [node for node in graph.node if node.op_type == "MatMul"]:
        if (constant := constants.get(node.input[1])) is None:
            continue
        values, name = numpy_helper.to_array(constant), node.input[1]
        scale = (np.abs(values).max(0) / 127).astype(np.float32)
        numbers = np.round(values / scale).astype(np.int8)
        parts, whole = [f"{name}_q", f"{name}_s"], f"{name}_f"
        for part, array in zip(parts, (numbers, scale), strict=True):
            graph.initializer.append(numpy_helper.from_array(array, part))
        graph.node.insert(0, helper.make_node("DequantizeLinear", parts, [whole], axis=1))
        node.input[1] = whole
    used = {name for node in graph.node for name in node.input}
    kept = [it for it in graph.initializer if it.name in used]
    del graph.initializer[:]
    graph.initializer.extend(kept)
    onnx.save(model, to)


def quantised(name: str, way: Callable[[Path, Path], None]) -> onnx.ModelProto:
    """Return a quantised float model."""
    from onnxruntime.quantization import quant_pre_process

    with tempfile.TemporaryDirectory() as folder:
        source, shaped, to = (Path(folder) / f"{it}.onnx" for it in ("float", "shaped", "to"))
        onnx.save(version_converter.convert_version(FLOAT[name](), OPSET), source)
        quant_pre_process(source, shaped, skip_symbolic_shape=True)
        way(shaped, to)
        return onnx.load(to)


WAYS: Mapping[str, Callable[[Path, Path], None]] = MappingProxyType(
    {"qdq": qdq, "dynamic": dynamic, "weights": weights, "int4": int4}
)
CASES = (
    ("resnet50", "qdq"),
    ("mobilenet_v2", "qdq"),
    ("efficientnet_b0", "qdq"),
    ("yolo", "qdq"),
    ("bert_base_128", "dynamic"),
    ("minilm_128", "dynamic"),
    ("minilm_128", "qdq"),
    ("minilm_128", "weights"),
    ("vit_s", "qdq"),
    ("llama_prefill_128", "int4"),
    ("llama_decode", "int4"),
)
MODELS: Mapping[str, Callable[[], Any]] = MappingProxyType(
    {f"{name}_{way}": partial(quantised, name, WAYS[way]) for name, way in CASES}
)
