"""Random operators with weights, windows or steps."""

from tests.support.operatorcase import OperatorCase


def window(case: OperatorCase, axes: int) -> tuple[list[int], list[int]]:
    """Taps and an image that they fit into; strides, dilations and padding as attributes."""
    taps = [case.size(1, 3) for _ in range(axes)]
    image = [case.size(5, 8) for _ in range(axes)]
    if case.chance():
        case.words["strides"] = [case.size(1, 3) for _ in range(axes)]
    way = case.pick("pads", "SAME_UPPER", "SAME_LOWER", "VALID", "none")
    if way == "pads":
        case.words["pads"] = [case.size(0, size - 1) for size in taps * 2]
    elif way != "none":
        case.words["auto_pad"] = way
    if way in ("pads", "none") and case.chance(0.3):
        case.words["dilations"] = [case.size(1, 2) for _ in range(axes)]
    return taps, image


def convolution(case: OperatorCase) -> None:
    taps, image = window(case, case.size(1, 3))
    groups, per, filters = case.size(1, 2), case.size(1, 3), case.size(1, 3)
    case.data([case.size(1, 2), groups * per, *image])
    case.weight(case.values([groups * filters, per, *taps]), "float32")
    if case.chance():
        case.weight(case.values([groups * filters]), "float32")
    case.words["group"] = groups


def transposed(case: OperatorCase) -> None:
    taps, _ = window(case, case.size(1, 2))
    case.words.pop("auto_pad", None)
    groups, per, filters = case.size(1, 2), case.size(1, 3), case.size(1, 3)
    case.data([case.size(1, 2), groups * per, *(case.size(3, 5) for _ in taps)])
    case.weight(case.values([groups * per, filters, *taps]), "float32")
    case.words["group"] = groups


def pool(case: OperatorCase) -> None:
    taps, image = window(case, case.size(1, 3))
    if case.op != "MaxPool" and case.opset < 19:
        case.words.pop("dilations", None)
    case.words["kernel_shape"] = taps
    if case.op == "MaxPool" and case.opset < 10:
        case.words.pop("dilations", None)
    if case.opset >= 10 and case.chance() and case.op != "LpPool":
        case.words["ceil_mode"] = 1
    if case.op == "AveragePool" and case.chance():
        case.words["count_include_pad"] = 1
    if case.op == "LpPool":
        case.words["p"] = case.size(1, 3)
        case.words.pop("dilations", None)
    case.data([case.size(1, 2), case.size(1, 3), *image])


def whole_pool(case: OperatorCase) -> None:
    case.data([case.size(), case.size(), *case.shape(1, 3)])


def resize(case: OperatorCase) -> None:
    shape = [case.size(1, 2), case.size(1, 2), case.size(2, 6), case.size(2, 6)]
    mode = case.pick("nearest", "linear", "cubic")
    case.data(shape)
    case.words["mode"] = mode
    case.words["coordinate_transformation_mode"] = case.pick(
        "half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric"
    )
    if mode == "nearest":
        case.words["nearest_mode"] = case.pick("round_prefer_floor", "round_prefer_ceil", "floor",
                                               "ceil")  # fmt: skip
    if mode == "cubic" and case.chance():
        case.words["cubic_coeff_a"] = -0.5
    sizes = [*shape[:2], case.size(1, 9), case.size(1, 9)]
    case.weight([], "float32") if case.opset < 13 else case.without()
    if case.chance():
        case.weight([1, 1, case.pick(0.5, 0.8, 1.3, 2, 2.5), case.pick(0.5, 1, 3)], "float32")
    else:
        (case.weight([], "float32") if case.opset < 13 else case.without()).weight(sizes)


def batch_norm(case: OperatorCase) -> None:
    shape = case.shape(2, 4)
    case.data(shape)
    for low in (-1.0, -1.0, -1.0, 0.1):
        case.weight(case.values([shape[1]], low=low), "float32")


def layer_norm(case: OperatorCase) -> None:
    shape = case.shape(1, 4)
    axis = case.axis(len(shape))
    case.data(shape).data(shape[axis % len(shape) :])
    if case.chance():
        case.data(shape[axis % len(shape) :])
    case.words |= {"axis": axis, "epsilon": 1e-3}


def instance_norm(case: OperatorCase) -> None:
    shape = case.shape(3, 4)
    case.data(shape)
    case.weight(case.values([shape[1]]), "float32").weight(case.values([shape[1]]), "float32")


def neighbours(case: OperatorCase) -> None:
    case.data([case.size(), case.size(), case.size(), case.size()])
    case.words["size"] = case.pick(1, 3, 5)


def lp_norm(case: OperatorCase) -> None:
    shape = case.shape()
    case.data(shape)
    case.words |= {"axis": case.axis(len(shape)), "p": case.size(1, 2)}


def gemm(case: OperatorCase) -> None:
    m, n, k = (case.size(1, 7) for _ in range(3))
    a, b = case.size(0, 1), case.size(0, 1)
    case.data([k, m] if a else [m, k]).data([n, k] if b else [k, n])
    if case.chance(0.7):
        case.data(case.pick([n], [1, n], [m, 1], [m, n], [1]))
    case.words |= {"transA": a, "transB": b, "alpha": 0.5, "beta": 2.0}


def matmul(case: OperatorCase) -> None:
    m, n, k = (case.size(1, 7) for _ in range(3))
    lead = case.shape(0, 2) if case.chance() else []
    first = [*lead, m, k] if case.chance(0.8) else [k]
    second = [*([] if case.chance() else lead), k, n] if case.chance(0.8) else [k]
    case.data(first).data(second)


def matmul_integer(case: OperatorCase) -> None:
    m, n, k = (case.size(1, 7) for _ in range(3))
    kind, lead = case.pick("int8", "uint8"), case.shape(0, 2) if case.chance() else []
    case.data([*lead, m, k], "uint8").data([*lead, k, n], kind)
    if case.chance():
        case.weight(3, "uint8").weight(1, kind)


def quantize(case: OperatorCase) -> None:
    kind = case.pick("uint8", "int8")
    shape = case.shape(1, 4)
    if case.op == "QuantizeLinear":
        case.data(shape)
    else:
        case.data(shape, kind)
    case.weight(0.03, "float32")
    if case.op != "QuantizeLinear" or kind == "int8" or case.chance():
        case.weight(5, kind)


EQUATIONS = (
    ("ij,jk->ik", "ij", "jk"), ("bij,bjk->bik", "bij", "bjk"), ("ij->ji", "ij"), ("ii->i", "ii"),
    ("ij->", "ij"), ("bhid,bhjd->bhij", "bhid", "bhjd"), ("i,j->ij", "i", "j"), ("ij,j", "ij", "j"),
)  # fmt: skip


def einsum(case: OperatorCase) -> None:
    equation, *operands = case.pick(*EQUATIONS)
    sizes = {letter: case.size() for letter in "bhidjk"}
    for letters in operands:
        case.data([sizes[letter] for letter in letters])
    case.words["equation"] = equation


def recurrent(case: OperatorCase) -> None:
    steps, batch, size, hidden = (case.size(1, 4) for _ in range(4))
    direction = case.pick("forward", "reverse", "bidirectional")
    ways, gates = 1 + (direction == "bidirectional"), {"RNN": 1, "GRU": 3, "LSTM": 4}[case.op]
    case.data([steps, batch, size])
    case.weight(case.values([ways, gates * hidden, size]), "float32")
    case.weight(case.values([ways, gates * hidden, hidden]), "float32")
    if case.chance():
        case.weight(case.values([ways, 2 * gates * hidden]), "float32")
    case.words |= {"direction": direction, "hidden_size": hidden}
    if case.op == "GRU":
        case.words["linear_before_reset"] = case.size(0, 1)
    case.outputs = 3 if case.op == "LSTM" else 2
