"""Single ONNX operators with random attributes, shapes and element types."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from onnx import helper

from tests.support import randomlayers as layers
from tests.support import randommoves as moves
from tests.support.operatorcase import FLOATS, INTEGERS, Draw, OperatorCase, listed_axes

OPSETS = (9, 11, 12, 13, 14, 16, 17, 18, 19, 20, 21, 22, 23)


def unary(
    low: float = -2.0, high: float = 2.0, kinds: Sequence[str] = FLOATS, **words: Any
) -> Draw:
    """Attributes are drawn between two numbers."""

    def draw(case: OperatorCase) -> None:
        case.data(case.shape(), case.pick(*kinds), low=low, high=high)
        for name, (least, most) in words.items():
            if case.chance(0.7):
                case.words[name] = float(case.random.uniform(least, most))

    return draw


def broadcast(kinds: Sequence[str], count: int = 2, low: float = -2.0) -> Draw:
    def draw(case: OperatorCase) -> None:
        full, dtype = case.shape(1, 4), case.pick(*kinds)
        for _ in range(count):
            shape = [size if case.chance(0.75) else 1 for size in full]
            case.data(
                shape[case.size(0, len(full) - 1) if case.chance(0.3) else 0 :], dtype, low=low
            )

    return draw


def variadic(case: OperatorCase) -> None:
    broadcast(FLOATS, case.size(1, 4))(case)


def shift(case: OperatorCase) -> None:
    broadcast(("uint8", "uint32", "uint64"), low=0)(case)
    case.words["direction"] = case.pick("LEFT", "RIGHT")


def modulo(case: OperatorCase) -> None:
    if case.chance():
        case.words["fmod"] = 1
        broadcast(("float32", "int32"), low=1)(case)
    else:
        broadcast(("int32", "int64", "int8"), low=1)(case)


def where(case: OperatorCase) -> None:
    full = case.shape()
    for dtype in ("bool", *[case.pick("float32", "int64", "uint8")] * 2):
        case.data([size if case.chance(0.7) else 1 for size in full], dtype)


def prelu(case: OperatorCase) -> None:
    full = case.shape(2, 4)
    case.data(full).data([1 if case.chance() else size for size in full[1:]])


def clip(case: OperatorCase) -> None:
    dtype = "float32" if case.opset < 12 else case.pick("float32", "float64", "int32", "int8")
    case.data(case.shape(), dtype)
    if case.opset < 11:
        case.words |= {"min": -0.5, "max": 0.75}
        return
    low, high = (-1, 2) if "int" in dtype else (-0.5, 0.75)
    case.weight(low, dtype) if case.chance(0.8) else case.without()
    case.weight(high, dtype) if case.chance(0.8) else None


def reduction(since: int, kinds: Sequence[str] = FLOATS, low: float = -2.0) -> Draw:
    def draw(case: OperatorCase) -> None:
        shape = case.shape()
        case.data(shape, case.pick(*kinds), low=low)
        if case.chance(0.8):
            listed_axes(case, case.axes(len(shape)), since)
        elif case.opset >= since and case.chance():
            case.words["noop_with_empty_axes"] = 1
        if case.chance():
            case.words["keepdims"] = 0

    return draw


def place_of_extreme(case: OperatorCase) -> None:
    shape = case.shape()
    case.data(shape, case.pick("float32", "int32", "float64"))
    case.words["axis"] = case.axis(len(shape))
    case.words["keepdims"] = case.size(0, 1)
    if case.opset >= 12 and case.chance():
        case.words["select_last_index"] = 1


def along_axis(case: OperatorCase) -> None:
    shape = case.shape()
    case.data(shape)
    if case.chance(0.7):
        axis = case.axis(len(shape))
        case.words["axis"] = axis % len(shape) if case.opset < 11 else axis


def cumulative(case: OperatorCase) -> None:
    shape = case.shape()
    case.data(shape, case.pick("float32", "int32", "int64", "float64")).weight(
        case.axis(len(shape))
    )
    case.words |= {"exclusive": case.size(0, 1), "reverse": case.size(0, 1)}


def top(case: OperatorCase) -> None:
    shape = case.shape()
    axis = case.axis(len(shape))
    case.data(shape, case.pick("float32", "int64")).weight([case.size(1, shape[axis])])
    case.words["axis"] = axis
    if case.opset >= 11:
        case.words["largest"] = case.size(0, 1)
    case.outputs = 2


def cast(case: OperatorCase) -> None:
    case.data(case.shape(), case.pick("float32", "float64", "int32", "int64", "bool", "uint8"),
              low=0.0)  # fmt: skip
    target = case.pick("float32", "float64", "int32", "int64", "bool", "uint8")
    case.words["to"] = helper.np_dtype_to_tensor_dtype(np.dtype(target))


NUMBERS = (*FLOATS, *INTEGERS)
OPERATORS: dict[str, tuple[int, Draw]] = {
    **{op: (7, unary()) for op in ("Identity", "Relu", "Sigmoid", "Tanh", "Softplus", "Softsign",
                                   "Sin", "Cos", "Sinh", "Cosh", "Asinh", "Atan", "Erf", "Exp",
                                   "Floor", "Ceil")},
    **{op: (7, unary(0.1, 4)) for op in ("Sqrt", "Log", "Reciprocal")},
    **{op: (7, unary(-0.9, 0.9)) for op in ("Asin", "Acos", "Atanh", "Tan")},
    **{op: (9, unary(kinds=NUMBERS)) for op in ("Abs", "Sign")},
    "Neg": (7, unary(kinds=("float32", "int32", "int64"))), "Round": (11, unary()),
    "Acosh": (9, unary(1.1, 4)), "Not": (7, unary(kinds=("bool",))),
    "IsNaN": (9, unary(kinds=("float32",))), "IsInf": (10, unary(kinds=("float32",))),
    "LeakyRelu": (7, unary(alpha=(0, 1))), "Elu": (7, unary(alpha=(0.1, 2))),
    "Selu": (7, unary(alpha=(1, 2), gamma=(1, 2))), "Celu": (12, unary(alpha=(0.5, 2))),
    "ThresholdedRelu": (10, unary(alpha=(0, 1))), "Mish": (18, unary()), "Gelu": (20, unary()),
    "HardSigmoid": (7, unary(alpha=(0.1, 0.3), beta=(0.4, 0.6))), "HardSwish": (14, unary()),
    "Shrink": (9, unary(bias=(0, 1), lambd=(0, 1))), "Clip": (7, clip), "Cast": (9, cast),
    **{op: (7, broadcast(("float32", "float64", "int32", "int64")))
       for op in ("Add", "Sub", "Mul")},
    "Div": (7, broadcast(("float32", "float64", "int32"), low=1)),
    "Pow": (13, broadcast(FLOATS, low=0.5)),
    **{op: (9, broadcast(("float32", "int32", "int64"))) for op in ("Less", "Greater")},
    "Equal": (11, broadcast(("float32", "int32", "bool"))),
    **{op: (12, broadcast(("float32", "int32"))) for op in ("LessOrEqual", "GreaterOrEqual")},
    **{op: (7, broadcast(("bool",))) for op in ("And", "Or", "Xor")},
    **{op: (18, broadcast(("int32", "uint8"))) for op in ("BitwiseAnd", "BitwiseOr", "BitwiseXor")},
    **dict.fromkeys(("Sum", "Mean", "Min", "Max"), (8, variadic)),
    "BitShift": (11, shift), "Mod": (10, modulo), "Where": (9, where), "PRelu": (9, prelu),
    "ReduceSum": (7, reduction(13, ("float32", "float64", "int32", "int64"))),
    **{op: (7, reduction(18)) for op in ("ReduceMean", "ReduceL1", "ReduceL2", "ReduceLogSumExp",
                                         "ReduceSumSquare", "ReduceProd")},
    **{op: (7, reduction(18, ("float32", "int32", "int64"))) for op in ("ReduceMax", "ReduceMin")},
    "ReduceLogSum": (7, reduction(18, low=0.1)),
    **dict.fromkeys(("ArgMax", "ArgMin"), (7, place_of_extreme)),
    **dict.fromkeys(("Softmax", "LogSoftmax", "Hardmax"), (7, along_axis)),
    "CumSum": (11, cumulative), "TopK": (10, top), "Transpose": (7, moves.transpose),
    "Reshape": (7, moves.reshape), "Flatten": (9, moves.flatten), "Squeeze": (7, moves.squeeze),
    "Unsqueeze": (7, moves.unsqueeze), "Concat": (7, moves.concat), "Split": (7, moves.split),
    "Slice": (7, moves.slices),
    "Pad": (7, moves.pad), "Expand": (8, moves.expand), "Tile": (7, moves.tile),
    **dict.fromkeys(("DepthToSpace", "SpaceToDepth"), (7, moves.blocks)),
    "Gather": (7, moves.gather),
    "GatherElements": (11, moves.gather_elements), "GatherND": (11, moves.gather_nd),
    "ScatterElements": (11, moves.scatter_elements), "ScatterND": (11, moves.scatter_nd),
    "OneHot": (9, moves.one_hot), "Trilu": (14, moves.triangle),
    "ReverseSequence": (10, moves.reverse_sequence),
    "Conv": (7, layers.convolution), "ConvTranspose": (7, layers.transposed),
    **dict.fromkeys(("MaxPool", "AveragePool", "LpPool"), (7, layers.pool)),
    **dict.fromkeys(("GlobalAveragePool", "GlobalMaxPool"), (7, layers.whole_pool)),
    "Resize": (11, layers.resize), "BatchNormalization": (9, layers.batch_norm),
    "LayerNormalization": (17, layers.layer_norm),
    "InstanceNormalization": (7, layers.instance_norm),
    "LRN": (7, layers.neighbours), "LpNormalization": (7, layers.lp_norm),
    "Gemm": (11, layers.gemm),
    "MatMul": (7, layers.matmul), "MatMulInteger": (10, layers.matmul_integer),
    **dict.fromkeys(("QuantizeLinear", "DequantizeLinear"), (10, layers.quantize)),
    "Einsum": (12, layers.einsum), **dict.fromkeys(("RNN", "GRU", "LSTM"), (7, layers.recurrent)),
}  # fmt: skip


def cases(count: int, seed: int) -> Iterator[OperatorCase]:
    """Operators in turns, each of an opset that has it."""
    random, names = np.random.default_rng(seed), list(OPERATORS)
    for number in range(count):
        op = names[number % len(names)]
        since, draw = OPERATORS[op]
        opset = int(random.choice([opset for opset in OPSETS if opset >= since]))
        case = OperatorCase(op, random, opset)
        draw(case)
        if not case.inputs:  # all were drawn as weights
            name = next(iter(case.weights))
            case.inputs[name] = case.weights.pop(name)
        yield case
