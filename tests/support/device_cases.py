"""Layers and networks that devices with a queue run."""

import numpy as np
import onnx

from polysci.lower.registry import algorithm_of
from polysci.measure.integer_reference import Arrays
from polysci.ops.problem import Problem
from polysci.runtime.primitive import load_primitive
from polysci.runtime.source import emit
from polysci.space.schedule import parse
from tests.support.onnxmodels import model, node, reals

LAYERS = (
    *("mb1ic6ih9oc20oh9kh3ph1", "mb2ic8ih7oc16oh4kh3ph1sh2", "g8mb1ic8ih10oc8oh8kh3"),
    *("g2mb1ic8ih6oc40kh1", "mb1ic3ih21oc24kh7ph3sh2"),
)

# Tiles of warps: layer, layout, element types and schedule.
WARPS = (
    ("mb1ic16ih9oc40oh9kh3ph1", "nhwc", "bf16",
     "npq:32@by k:32@bx c:16 copy(A,B)x3+8 npq:16@ty k:32@tx > mma_cuda80_bf16_16x32"),
    ("mb1ic32ih9oc40oh5kh3ph1sh2", "nhwc", "f16",
     "npq:32@by k:64@bx c:32 copy(A,B)x2|swizzle npq:32@ty k:32@tx > mma_cuda75_f16_32x32"),
    ("mb1ic16ih9oc40oh9kh3ph1", "nchw", "bf16:bf16:f32",
     "npq:32@by k:64@bx c:16 copy(A,B)x4|swizzle npq:32@ty k:32@tx > mma_cuda80_bf16_32x32"),
    ("mm:24x40x48", "nhwc", "bf16",
     "i:16@by j:32@bx k:16 copy(A,B)x3|swizzle i:16@ty j:32@tx > mma_cuda80_bf16_16x32"),
    ("mm:13x44x40 tb alpha=2 beta=3", "nhwc", "bf16",
     "i:16@by j:64@bx k:16 copy(A,B)+8 i:16@ty j:32@tx > mma_cuda80_bf16_16x32"),
    ("mb1ic3ih9oc20oh5kh3ph1sh2", "nhwc", "f16:f16:f32",
     "npq:16@by k:32@bx rsc:32 copy(A,B)x2|swizzle npq:16@ty k:32@tx > mma_cuda80_f16_16x32"),
    ("bwd_d mb2ic40ih6oc16oh6kh3ph1", "nhwc", "bf16",
     "nhw:32@by c:32@bx k:16 copy(A,B)x3|swizzle nhw:16@ty c:32@tx > mma_cuda80_bf16_16x32"),
    ("bwd_w mb2ic16ih6oc40oh6kh3ph1", "nhwc", "bf16",
     "crs:32@by k:32@bx pqn:16 copy(A,B)x3|swizzle crs:16@ty k:32@tx > mma_cuda80_bf16_16x32"),
)  # fmt: skip

WARPS_OF_WORDS = (
    ("mb1ic32ih9oc40oh9kh3ph1", "nhwc", "u8:s8:u8",
     "npq:32@by k:32@bx c:32 copy(A,B)x3+16 npq:16@ty k:32@tx > mma_cuda80_i8_16x32"),
    ("mb1ic32ih9oc40oh5kh3ph1sh2", "nhwc", "s8:s8:s8",
     "npq:32@by k:64@bx c:32 copy(A,B)x2|swizzle npq:32@ty k:32@tx > mma_cuda75_i8_32x32"),
    ("mb1ic16ih9oc40oh9kh3ph1", "nchw", "u8:s8:s32",
     "npq:32@by k:64@bx c:32 copy(A,B)x4|swizzle npq:32@ty k:32@tx > mma_cuda80_i8_32x32"),
    ("mm:24x160x40 b=constant", "nhwc", "s8:s8:u8",
     "i:16@by j:64@bx k:128 copy(A,B)x3|swizzle i:16@ty j:32@tx > mma_cuda80_i8_16x32"),
    ("mb1ic3ih9oc20oh5kh3ph1sh2", "nhwc", "u8:s8:s8",
     "npq:16@by k:32@bx rsc:32 copy(A,B)x2|swizzle npq:16@ty k:32@tx > mma_cuda80_i8_16x32"),
)  # fmt: skip

# Layers of 8 bits that work-items compute on their own: layer, layout, types, schedule.
WHOLE = (
    ("mb1ic6ih9oc20oh9kh3ph1", "nhwc", "u8:s8:u8", "n* pack(A) p k:4 > brgemm_{}4_i16_9x4"),
    ("mb2ic8ih7oc16oh4kh3ph1sh2", "nchw", "s8:s8:s8", "n* pack(A) p:2 k:4 > brgemm_{}4_i16_8x4"),
    ("mb1ic5ih7oc20oh7kh3ph1", "nhwc", "s8:s8:s32", "p* q:4 k:8 > brgemm_{}4_i16_4x8"),
    ("g8mb1ic8ih10oc8oh10kh3ph1", "nhwc", "u8:s8:s8", "p* g:4 q > depthwise_{}4_i16_2x4"),
    ("g2mb1ic8ih6oc40kh1", "nchw", "u8:s8:s32", "g* pack(A) p:2 k:4 > brgemm_{}4_i16_12x4"),
)  # fmt: skip

# Tiles of groups that multiply words of four 8-bit numbers.
WORDS = (
    ("mb1ic16ih7oc20oh7kh3ph1", "nhwc", "u8:s8:u8",
     "npq:16@by k:16@bx c:16 copy(A,B)x2+4 npq:4@ty k:4@tx > fma_{}4_i8_4x4"),
    ("mb2ic8ih7oc16oh4kh3ph1sh2", "nchw", "s8:s8:s8",
     "npq:8@by k:16@bx c:8 copy(A,B) npq:2@ty k:8@tx > fma_{}4_i8_2x8"),
    ("mb1ic3ih7oc5oh7kh3ph1", "nhwc", "u8:s8:s8",
     "npq:8@by k:8@bx rsc:12 copy(A,B)x2+4 npq:4@ty k:4@tx > fma_{}4_i8_4x4"),
    ("mm:13x21x17 b=constant", "nhwc", "s8:s8:s32",
     "i:8@by j:8@bx k:8 copy(A,B)x2 i:4@ty j:4@tx > fma_{}4_i8_4x4"),
    ("mm:3:13x21x17 b=constant", "nhwc", "u8:s8:u8",
     "i:8@by j:8@bx k:8 copy(A,B)x2 i:4@ty j:4@tx > fma_{}4_i8_4x4"),
    ("g2mb1ic8ih6oc40kh1", "nhwc", "u8:s8:s32",
     "npq:4@by k:16@bx c:4 copy(A,B)+4 npq:2@ty k:8@tx > fma_{}4_i8_2x8"),
    ("conv1d mb2ic5iw11oc6kw3pw1", "nchw", "s8:s8:u8",
     "nq:8@by k:8@bx sc:8 copy(A,B)x2 nq:4@ty k:4@tx > fma_{}4_i8_4x4"),
)  # fmt: skip


def integers(shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Small integers, whose sums are exact."""
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(np.float32)


def check_device_layer(problem: Problem, words: str, backend: str) -> None:
    """Assert that a schedule computes a layer exactly on a device, with and without epilogue."""
    schedule = parse(words)
    primitive = load_primitive(problem, emit(problem, schedule), 1, backend=backend)
    arrays = Arrays.of(problem, 0, algorithm_of(schedule).exact_inputs(problem))
    inputs = arrays.inputs
    packed = primitive.pack_weights(inputs["w"], arrays.x_zero or 0)
    fused = {name: inputs[name] for name in ("bias", "residual", "clamp")}
    for variant, own in (("plain", {}), ("fused", fused)):
        result = primitive(inputs["x"], packed, scales=arrays.scales, **own)
        if problem.activation:
            expected = arrays.fused if own else arrays.plain
            assert np.allclose(result, expected, rtol=1e-5, atol=1e-5)
        else:
            fault = arrays.fault(variant, result)
            assert fault is None, f"{variant}: {fault}"


def two_layers() -> onnx.ModelProto:
    """Two convolutions, a sum with the input of the second, a mean and a softmax."""
    nodes = [
        node("Conv", "x w1 b1", "c1", pads=[1, 1, 1, 1]), node("Clip", "c1 lo hi", "r1"),
        node("Conv", "r1 w2", "c2", pads=[1, 1, 1, 1]), node("Add", "c2 r1", "s"),
        node("GlobalAveragePool", "s", "g"), node("Flatten", "g", "f"),
        node("Softmax", "f", "y", axis=1),
    ]  # fmt: skip
    weights = {"w1": reals(8, 3, 3, 3), "b1": reals(8, seed=1), "w2": reals(8, 8, 3, 3, seed=2)}
    weights |= {"lo": np.float32(0.0), "hi": np.float32(6.0)}
    return model(nodes, {"x": (1, 3, 6, 6)}, {"y": (1, 8)}, weights)


def recurrent(size: int = 8, batch: int = 2) -> onnx.ModelProto:
    """An LSTM of four steps, whose state passes from launch to launch."""
    weights = {"w": reals(1, 4 * size, 5), "r": reals(1, 4 * size, size, seed=1)}
    weights["b"] = reals(1, 8 * size, seed=2)
    nodes = [node("LSTM", "x w r b", "y h", hidden_size=size)]
    return model(nodes, {"x": (4, batch, 5)}, dict.fromkeys(("y", "h")), weights)


def long_steps() -> onnx.ModelProto:
    """One whose steps are long enough for work-items to share them."""
    return recurrent(128, 16)


def bytes_of(*shape: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(-128, 128, shape).astype(np.int8)


def quantised_convolutions() -> onnx.ModelProto:
    """Three, a sum, pools, a join and one of floats; the first one's results have 8 bits."""
    nodes = [
        node("QuantizeLinear", "x sx zx", "q"), node("DequantizeLinear", "q sx zx", "dq"),
        *(node("DequantizeLinear", f"w{at} s{at} z{at}", f"d{at}", axis=0) for at in (1, 2, 3)),
        node("Conv", "dq d1", "c1", pads=[1, 1, 1, 1]),
        node("QuantizeLinear", "c1 sx zx", "q1"), node("DequantizeLinear", "q1 sx zx", "dq1"),
        node("Conv", "dq1 d2", "c2", pads=[1, 1, 1, 1]), node("Add", "c2 dq1", "sum"),
        node("QuantizeLinear", "sum sy zy", "q2"), node("DequantizeLinear", "q2 sy zy", "dq2"),
        node("MaxPool", "dq2", "m", kernel_shape=[2, 2], strides=[2, 2]),
        node("AveragePool", "dq2", "p", kernel_shape=[2, 2], strides=[2, 2]),
        node("Concat", "m p", "both", axis=1), node("QuantizeLinear", "both sy zy", "q3"),
        node("DequantizeLinear", "q3 sy zy", "dq3"), node("Conv", "dq3 d3", "y"),
        node("Conv", "y w4", "z"),
    ]  # fmt: skip
    weights = {
        "sx": np.float32(0.05), "zx": np.uint8(117), "sy": np.float32(0.1),
        "zy": np.uint8(130), "w4": reals(5, 9, 1, 1),
    }  # fmt: skip
    for at, shape in enumerate(((8, 3, 3, 3), (8, 8, 3, 3), (9, 16, 1, 1)), 1):
        weights[f"w{at}"] = bytes_of(*shape, seed=at)
        weights[f"s{at}"] = np.linspace(0.001, 0.02, shape[0], dtype=np.float32)
        weights[f"z{at}"] = np.zeros(shape[0], np.int8)
    return model(nodes, {"x": (1, 3, 6, 6)}, {"q2": None, "z": None}, weights)


def quantised_products() -> onnx.ModelProto:
    """Operators of integers, with scales and without, scales from data, computed weights."""
    nodes = [
        node("DynamicQuantizeLinear", "x", "q s z"),
        node("MatMulInteger", "q w z", "i"), node("Cast", "i", "f", to=1),
        node("Mul", "f s", "r"), node("Tanh", "r", "t"),
        node("QuantizeLinear", "t st zt", "qt"),
        node("QLinearMatMul", "qt st zt w2 s2 z2 st zt", "q2"),
        node("Transpose", "q2", "turned", perm=[1, 0]),
        node("MatMulInteger", "q2 turned zt zt", "y"),
        node("Reshape", "q2 shape", "image"), node("ConvInteger", "image w3 zt", "c"),
    ]  # fmt: skip
    weights = {
        "w": bytes_of(9, 16, seed=1), "w2": bytes_of(16, 12, seed=2), "s2": np.float32(0.004),
        "w3": bytes_of(4, 3, 2, 2, seed=3), "st": np.float32(0.01), "zt": np.uint8(128),
        "z2": np.int8(0), "shape": np.array([-1, 3, 2, 2]),
    }  # fmt: skip
    return model(nodes, {"x": (5, 9)}, dict.fromkeys(("q2", "y", "c")), weights)
