"""Random operators that move elements."""

from math import prod

import numpy as np

from tests.support.operatorcase import OperatorCase, dynamic, listed_axes


def transpose(case: OperatorCase) -> None:
    shape = case.shape()
    case.data(shape, case.pick("float32", "int64", "bool", "uint8"))
    if case.chance(0.8):
        case.words["perm"] = [int(axis) for axis in case.random.permutation(len(shape))]


def reshape(case: OperatorCase) -> None:
    shape = case.shape(2, 4)
    case.data(shape, case.pick("float32", "int32"))
    other = [0, -1] if case.chance() else [-1, shape[-1]]
    case.weight(case.pick([prod(shape)], [-1], other, [shape[0], prod(shape[1:])]))


def flatten(case: OperatorCase) -> None:
    shape = case.shape()
    case.data(shape)
    case.words["axis"] = case.size(0 if case.opset < 11 else -len(shape), len(shape))


def squeeze(case: OperatorCase) -> None:
    shape = [1 if case.chance() else case.size() for _ in range(case.size(1, 4))]
    case.data(shape)
    if ones := [axis for axis, size in enumerate(shape) if size == 1]:
        listed_axes(case, ones[: case.size(1, len(ones))], 13)


def unsqueeze(case: OperatorCase) -> None:
    case.data(case.shape(1, 3))
    listed_axes(case, case.pick([0], [1], [0, 2], [1, 0]), 13)


def concat(case: OperatorCase) -> None:
    shape = case.shape()
    axis, dtype = case.axis(len(shape)), case.pick("float32", "int64", "uint8")
    for _ in range(case.size(1, 4)):
        shape[axis] = case.size()
        case.data(shape, dtype)
    case.words["axis"] = axis


def split(case: OperatorCase) -> None:
    shape = case.shape()
    axis = case.axis(len(shape))
    sizes = [case.size() for _ in range(case.size(1, 3))]
    shape[axis] = sum(sizes)
    case.data(shape)
    case.words["axis"], case.outputs = axis % len(shape), len(sizes)
    if case.opset >= 18 and case.chance():
        step = -(-shape[axis] // len(sizes))
        if step * (len(sizes) - 1) < shape[axis]:
            case.words["num_outputs"] = len(sizes)
            return
    if case.opset < 13:
        case.words["split"] = sizes
    else:
        case.weight(sizes)


def slices(case: OperatorCase) -> None:
    shape = case.shape()
    case.data(shape, case.pick("float32", "int64"))
    axes = case.axes(len(shape))
    steps = [case.pick(1, 1, 2, -1, -2) for _ in axes] if case.opset >= 10 else [1] * len(axes)
    starts, ends = [], []
    for axis, step in zip(axes, steps, strict=True):
        low, high = sorted(int(v) for v in case.random.integers(-7, 8, 2))
        starts.append(high if step < 0 else low)
        ends.append(low if step < 0 else case.pick(high, 1 << 60))
        assert shape[axis]
    if case.opset < 10:
        case.words |= {"starts": starts, "ends": ends, "axes": axes}
    else:
        case.weight(starts).weight(ends).weight(axes).weight(steps)


def pad(case: OperatorCase) -> None:
    shape = [case.size(2, 5) for _ in range(case.size(1, 4))]
    mode = case.pick("constant", "reflect", "edge", *["wrap"] * (case.opset >= 19))
    case.data(shape)
    pads = [int(v) for v in case.random.integers(-1 if case.chance(0.3) else 0, 2, 2 * len(shape))]
    case.words["mode"] = mode
    if case.opset < 11:
        case.words["pads"] = pads
        return
    case.weight(pads)
    if mode == "constant" and case.chance():
        case.weight(1.5, "float32")


def expand(case: OperatorCase) -> None:
    shape = case.shape()
    case.data([size if case.chance() else 1 for size in shape], case.pick("float32", "int64"))
    case.weight([case.size(), *shape] if case.chance(0.3) else shape)


def tile(case: OperatorCase) -> None:
    shape = case.shape(1, 3)
    case.data(shape, case.pick("float32", "int32")).weight([case.size(1, 3) for _ in shape])


def blocks(case: OperatorCase) -> None:
    size = case.size(1, 3)
    case.words["blocksize"] = size
    n, c, h, w = (case.size(1, 3) for _ in range(4))
    if case.op == "SpaceToDepth":
        case.data([n, c, h * size, w * size])
        return
    case.data([n, c * size * size, h, w])
    if case.opset >= 11:
        case.words["mode"] = case.pick("DCR", "CRD")


def gather(case: OperatorCase) -> None:
    shape = case.shape()
    axis = case.axis(len(shape))
    low = 0 if case.opset < 11 else -shape[axis]
    case.data(shape, case.pick("float32", "int64", "bool"))
    index = case.random.integers(low, shape[axis], case.shape(0, 2))
    dynamic(case, index)
    case.words["axis"] = axis


def gather_elements(case: OperatorCase) -> None:
    shape = case.shape()
    axis = case.axis(len(shape))
    index = list(shape)
    index[axis] = case.size()
    case.data(shape)
    dynamic(case, case.random.integers(-shape[axis], shape[axis], index))
    case.words["axis"] = axis


def gather_nd(case: OperatorCase) -> None:
    shape = case.shape(1, 4)
    count = case.size(1, len(shape))
    lead = case.shape(1, 2)
    index = [case.random.integers(-size, size, lead) for size in shape[:count]]
    case.data(shape)
    dynamic(case, np.stack(index, -1))


def scatter_elements(case: OperatorCase) -> None:
    shape = case.shape()
    axis = case.axis(len(shape))
    count = case.size(1, shape[axis])
    index = list(shape)
    index[axis] = count
    places = np.argsort(case.random.random(shape), axis=axis)
    case.data(shape)
    dynamic(case, np.take(places, range(count), axis))
    case.data(index)
    case.words["axis"] = axis
    if case.opset >= 18 and case.chance():
        case.words["reduction"] = case.pick("add", "mul", "max", "min")


def scatter_nd(case: OperatorCase) -> None:
    shape = case.shape(1, 3)
    count = case.size(1, len(shape))
    places = case.random.permutation(prod(shape[:count]))[: case.size(1, prod(shape[:count]))]
    case.data(shape)
    dynamic(case, np.stack(np.unravel_index(places, shape[:count]), -1))
    case.data([len(places), *shape[count:]])
    if case.opset >= 18 and case.chance():
        case.words["reduction"] = case.pick("add", "mul", "max", "min")


def one_hot(case: OperatorCase) -> None:
    depth = case.size(2, 6)
    dynamic(case, case.random.integers(-depth, depth, case.shape(1, 3)))
    case.weight(depth).weight([0.25, 3.0], "float32")
    case.words["axis"] = case.pick(-1, 0, 1)


def triangle(case: OperatorCase) -> None:
    case.data(case.shape(2, 4), case.pick("float32", "int64"))
    if case.chance():
        case.weight(case.size(-4, 4))
    case.words["upper"] = case.size(0, 1)


def reverse_sequence(case: OperatorCase) -> None:
    time, batch = case.size(), case.size()
    case.data([time, batch, *case.shape(0, 2)])
    dynamic(case, case.random.integers(1, time + 1, batch))
    case.words |= {"time_axis": 0, "batch_axis": 1}
