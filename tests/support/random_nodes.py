"""Random nodes that fit what a graph has."""

from math import prod
from typing import Any

import numpy as np

from tests.support.graph_draft import Draft, Shape


def conv(d: Draft) -> bool:
    x = d.pick(4, 4, 3, 5)
    if x is None:
        return False
    channels, *space = d.shapes[x][1:]
    groups = d.one(1, 1, *{g for g in range(2, channels + 1) if channels % g == 0}, channels)
    filters = groups * d.one(1, 1, 2, 3, *([16, 17] if groups == 1 else []))
    taps = [d.one(1, 2, 3, 3) for _ in space]
    words = {"strides": [d.one(1, 1, 2, 3) for _ in space], "group": groups,
             "dilations": [d.one(1, 1, 2) for _ in space]}  # fmt: skip
    auto = d.one("NOTSET", "NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")
    if auto == "NOTSET":
        words["pads"] = [d.one(0, 1, 1, 2) for _ in range(2 * len(space))]
    elif auto != "VALID":
        words["dilations"] = [1] * len(space)
    depth = channels // groups * prod(taps)
    w = d.weight(filters, channels // groups, *taps, scale=depth**-0.5)
    bias = [d.weight(filters)] if d.one(True, False) else []
    reach = [(r - 1) * a + 1 for r, a in zip(taps, words["dilations"], strict=True)]
    pads = words.get("pads", [0] * 2 * len(space))
    room = [s + pads[at] + pads[len(space) + at] for at, s in enumerate(space)]
    if not auto.startswith("SAME") and any(a > b for a, b in zip(reach, room, strict=True)):
        return False
    return d.node("Conv", x, w, *bias, auto_pad=auto, **words)


def conv_transpose(d: Draft) -> bool:
    x = d.pick(4, 4, 3)
    if x is None:
        return False
    channels, *space = d.shapes[x][1:]
    groups = d.one(1, *{g for g in (2, channels) if channels % g == 0})
    filters = d.one(1, 2, 5)
    taps = [d.one(1, 2, 3, 4) for _ in space]
    strides = [d.one(1, 2, 3) for _ in space]
    words = {
        "strides": strides, "dilations": [d.one(1, 1, 2) for _ in space], "group": groups,
        "pads": [d.one(0, 0, 1) for _ in range(2 * len(space))],
        "output_padding": [d.one(*range(s)) for s in strides],
    }  # fmt: skip
    w = d.weight(channels, filters, *taps, scale=0.5)
    bias = [d.weight(filters * groups)] if d.one(True, False) else []
    return d.node("ConvTranspose", x, w, *bias, **words)


def gemm(d: Draft) -> bool:
    a = d.pick(2)
    if a is None:
        return False
    across, back = d.one(0, 1), d.one(0, 1)
    depth, rows = d.shapes[a] if across else d.shapes[a][::-1]
    columns = d.one(1, 3, 8, 17)
    shape = (columns, depth) if back else (depth, columns)
    b = d.one("w", "w", *[n for n, s in d.shapes.items() if s == shape])
    b = d.weight(*shape, scale=depth**-0.5) if b == "w" else b
    c = d.one((), (columns,), (1, columns), (rows, 1), (rows, columns), (1,))
    more = [d.weight(*c)] if c else []
    alpha, beta = d.one(1.0, 0.5), d.one(1.0, -2.0)
    return d.node("Gemm", a, b, *more, alpha=alpha, beta=beta, transA=across, transB=back)


def matmul(d: Draft) -> bool:
    a = d.pick()
    if a is None or not d.shapes[a]:
        return False
    *stack, depth = d.shapes[a]
    fits = [n for n, s in d.shapes.items() if len(s) > 1 and s[-2] == depth
            and len(s) == len(d.shapes[a]) and s[:-2] == d.shapes[a][:-2]]  # fmt: skip
    if fits and d.one(True, False):
        return d.node("MatMul", a, d.one(*fits))
    around = d.one((), (), tuple(stack[:-1]), (2, *(1 for _ in stack[:-1])))
    shape = d.one((depth,), (*around, depth, d.one(1, 4, 19)), (*around, depth, 8))
    return d.node("MatMul", a, d.weight(*shape, scale=depth**-0.5))


def norm(d: Draft) -> bool:
    x = d.pick(2, 3, 4, 4, 5)
    if x is None:
        return False
    channels = d.shapes[x][1]
    names = [d.weight(channels) for _ in range(4)]
    d.weights[names[3]] = np.abs(d.weights[names[3]]) + np.float32(0.5)
    return d.node("BatchNormalization", x, *names)


def unary(d: Draft) -> bool:
    x = d.pick()
    op, words = d.one(
        ("Relu", {}), ("Relu", {}), ("Sigmoid", {}), ("Tanh", {}), ("LeakyRelu", {"alpha": 0.1}),
        ("HardSigmoid", {}), ("HardSwish", {}), ("Erf", {}), ("Clip", {}), ("silu", {}),
        ("Abs", {}), ("Neg", {}), ("Sin", {}), ("Atan", {}), ("Elu", {}), ("Softplus", {}),
        ("Softsign", {}),
    )  # fmt: skip
    if op == "silu":
        return d.node("Sigmoid", x) and d.node("Mul", x, [*d.shapes][-1])
    if op == "Clip":
        bounds = [d.weight(), d.weight()]
        d.weights[bounds[0]], d.weights[bounds[1]] = np.float32([-0.5, 1.5])[:, ...]
        d.weights |= {n: np.asarray(d.weights[n], np.float32) for n in bounds}
        return d.node(op, x, *bounds)
    return d.node(op, x, **words)


def binary(d: Draft) -> bool:
    a = d.pick()
    shape = d.shapes[a]
    fits = [n for n, s in d.shapes.items() if broadcasts(s, shape)]
    other = d.one(*fits, *fits, "w")
    if other == "w":
        part = tuple(size if d.one(True, False) else 1 for size in shape)
        other = d.weight(*part[d.one(*range(len(shape) + 1)) :])
    pair = (a, other) if d.one(True, False) else (other, a)
    return d.node(d.one("Add", "Add", "Sub", "Mul", "Max", "Min"), *pair)


def broadcasts(one: Shape, other: Shape) -> bool:
    pairs = zip(one[::-1], other[::-1], strict=False)
    return all(a == b or 1 in (a, b) for a, b in pairs)


def concat(d: Draft) -> bool:
    a = d.pick(2, 3, 4, 4, 5)
    if a is None:
        return False
    along = d.one(1, 1, *range(len(d.shapes[a])))

    def rest(shape: Shape) -> Shape:
        return (*shape[:along], -1, *shape[along + 1 :])

    rank = len(d.shapes[a])
    fits = [n for n, s in d.shapes.items() if len(s) == rank and rest(s) == rest(d.shapes[a])]
    parts = [a, *(d.one(*fits) for _ in range(d.one(1, 2)))]
    return d.node("Concat", *parts, axis=d.one(along, along - len(d.shapes[a])))


def split(d: Draft) -> bool:
    x = d.pick(2, 3, 4, 4)
    if x is None:
        return False
    along = d.one(*range(len(d.shapes[x])))
    size = d.shapes[x][along]
    if size < 2:
        return False
    first = d.one(*range(1, size))
    return d.node("Split", x, d.ints(first, size - first), outputs=2, axis=along)


def slices(d: Draft) -> bool:
    x = d.pick(2, 3, 4, 4)
    if x is None:
        return False
    along = d.one(*range(len(d.shapes[x])))
    size = d.shapes[x][along]
    step = d.one(-2, -1, 1, 1, 2, 3)
    start, end = d.one(0, 1, -1, size, -100), d.one(size, -1, 100, -100)
    if not len(range(size)[slice(start, end, step)]):
        start, end = (0, 100) if step > 0 else (100, -100)
    return d.node("Slice", x, *(d.ints(one) for one in (start, end, along, step)))


def pad(d: Draft) -> bool:
    x = d.pick(2, 3, 4, 4)
    if x is None:
        return False
    shape = d.shapes[x]
    mode = d.one("constant", "constant", "edge", "reflect")
    most = [min(2, size - 1) if mode == "reflect" else 2 for size in shape]
    pads = [d.one(0, 0, *range(top + 1)) for _ in range(2) for top in most]
    more = [d.weight()] if mode == "constant" and d.one(True, False) else []
    return d.node("Pad", x, d.ints(*pads), *more, mode=mode)


def reshape(d: Draft) -> bool:
    x = d.pick()
    shape, op = d.shapes[x], d.one("Reshape", "Flatten", "Transpose", "Transpose", "Unsqueeze")
    if op == "Transpose":
        return d.node(op, x, perm=d.choices.sample(range(len(shape)), len(shape)))
    if op == "Flatten":
        return d.node(op, x, axis=d.one(*range(len(shape) + 1)))
    if op == "Unsqueeze":
        return len(shape) < 4 and d.node(op, x, d.ints(d.one(0, len(shape))))
    if 1 in shape and len(shape) > 1 and d.one(True, False):
        return d.node("Squeeze", x, d.ints(shape.index(1)))
    size = prod(shape)
    head = d.one(*(n for n in (1, 2, 3, 4, 6, 8, *shape[:1], *shape[-1:]) if size % n == 0))
    tail = d.one(*(n for n in (1, 2, 3, 4, 5, 7, *shape[-1:]) if size // head % n == 0))
    to = d.one((head, -1), (head, -1, tail), (-1,), (1, head, -1, tail), (*shape[:-1], 1, -1))
    return len(to) < 6 and d.node(op, x, d.ints(*to))


def pool(d: Draft) -> bool:
    x = d.pick(3, 4, 4, 5)
    if x is None:
        return False
    op = d.one("MaxPool", "AveragePool", "GlobalAveragePool")
    if op == "GlobalAveragePool":
        return d.node(op, x)
    space = d.shapes[x][2:]
    taps = [d.one(*range(1, min(3, size) + 1)) for size in space]
    pads = [d.one(*range(tap)) for tap in taps] + [d.one(*range(tap)) for tap in taps]
    words: dict[str, Any] = {"kernel_shape": taps, "strides": [d.one(1, 2, 3) for _ in space]}
    if d.one(True, False):
        words |= {"pads": pads}
        if op == "AveragePool":
            words["count_include_pad"] = d.one(0, 1)
    return d.node(op, x, **words)


def resize(d: Draft) -> bool:
    x = d.pick(4)
    if x is None:
        return False
    mode = d.one("nearest", "linear")
    way = d.one("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel")
    scales = d.weight(4)
    d.weights[scales] = np.float32([1, 1, d.one(1, 2, 0.5), d.one(1, 2, 3)])
    wide = d.shapes[x] * d.weights[scales]
    if min(d.shapes[x]) < 2 or (way == "align_corners" and (wide % 1).any()):
        return False  # of a fraction of a pixel ONNX's reference thinks otherwise
    return d.node("Resize", x, "", scales, mode=mode, coordinate_transformation_mode=way)


def reduction(d: Draft) -> bool:
    x = d.pick(2, 3, 4, 4)
    if x is None:
        return False
    rank, op = len(d.shapes[x]), d.one("ReduceMean", "ReduceMax", "Softmax", "LRN")
    if op == "Softmax":
        return d.node(op, x, axis=d.one(*range(-rank, rank)))
    if op == "LRN":
        return rank == 4 and d.node(op, x, size=d.one(1, 3, 5), alpha=0.1)
    axes = d.choices.sample(range(rank), d.one(1, min(2, rank)))
    return d.node(op, x, axes=axes, keepdims=d.one(0, 1))
