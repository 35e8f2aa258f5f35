"""Random nodes between 8-bit tensors, as quantisers write them."""

import numpy as np
import onnx
from onnx import helper

from tests.support.graph_draft import Draft
from tests.support.random_nodes import binary, conv, gemm, matmul, pool, unary


def rounded(d: Draft, x: str) -> str:
    """``x`` rounded to 8 bits and back: real numbers that whole ones stand for."""
    kind = d.one(np.int8, np.uint8)
    scale = d.weight()
    d.weights[scale] = np.array(d.one(0.01, 0.02, 0.05, 0.1), np.float32)
    zero = f"w{len(d.weights)}"
    d.weights[zero] = np.array(d.one(0, 0, 3, 100), kind)
    made = d.fresh()
    d.nodes.append(helper.make_node("QuantizeLinear", [x, scale, zero], [f"{made}_q"]))
    d.nodes.append(helper.make_node("DequantizeLinear", [f"{made}_q", scale, zero], [made]))
    d.shapes[made] = d.shapes[x]
    return made


def rounded_weight(d: Draft, name: str, axis: int) -> None:
    """A weight as signed 8-bit numbers, with one scale or one along an axis."""
    axis %= d.weights[name].ndim
    values, per_axis = d.weights.pop(name), d.one(True, True, False)
    across = tuple(at for at in range(values.ndim) if at != axis) if per_axis else None
    scales = np.maximum(np.abs(values).max(across) / 127, 1e-3).astype(np.float32)
    shape = [-1 if at == axis else 1 for at in range(values.ndim)] if per_axis else []
    held, scale, zero = (f"{name}_{part}" for part in ("held", "scale", "zero"))
    d.weights[held] = np.rint(values / scales.reshape(shape)).clip(-127, 127).astype(np.int8)
    d.weights[scale], d.weights[zero] = scales, np.zeros(scales.shape, np.int8)
    words = {"axis": axis} if per_axis else {}
    d.nodes.append(helper.make_node("DequantizeLinear", [held, scale, zero], [name], **words))


def rounded_bias(d: Draft, node: onnx.NodeProto) -> None:
    """A bias as whole numbers of the sums' unit, where it has one a channel; else none."""
    x, w, bias = node.input
    made = next(one for one in d.nodes if x in one.output)
    unit = d.weights[made.input[1]] * d.weights[f"{w}_scale"] if f"{w}_scale" in d.weights else 0
    if not np.all(unit) or unit.shape not in ((), d.weights[bias].shape):
        del node.input[2]
        return
    held, scale = f"{bias}_held", f"{bias}_scale"
    d.weights[held] = np.rint(d.weights.pop(bias) / unit).astype(np.int32)
    d.weights[scale] = np.asarray(unit, np.float32)
    words = {"axis": 0} if unit.ndim else {}
    d.nodes.append(helper.make_node("DequantizeLinear", [held, scale], [bias], **words))


def of_8_bits(d: Draft) -> bool:
    """A node between 8-bit tensors: its operands are rounded before, its result behind it."""
    maker = d.one(conv, conv, conv, gemm, matmul, binary, pool, unary)
    before = len(d.nodes)
    if not maker(d):
        return False
    node = d.nodes.pop(before)
    rest, d.nodes = d.nodes[before:], d.nodes[:before]
    made = {name: d.shapes.pop(name) for name in node.output}
    for at, name in enumerate(node.input):
        if name in d.shapes:
            node.input[at] = rounded(d, name)
        elif at == 1 and node.op_type in ("Conv", "Gemm", "MatMul") and d.weights[name].ndim > 1:
            turned = any(word.name == "transB" and word.i for word in node.attribute)
            rounded_weight(d, name, 0 if node.op_type == "Conv" or turned else -1)
    if node.op_type in ("Conv", "Gemm") and len(node.input) > 2:
        rounded_bias(d, node)
    d.nodes += [node, *rest]
    d.shapes |= made  # behind those that were added
    if d.one(True, True, False):
        rounded(d, node.output[0])
    return True
