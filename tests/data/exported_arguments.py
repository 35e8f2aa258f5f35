"""Run by an interpreter that has an exported package ``net`` and NumPy, nothing else."""

import threading

import numpy as np
from net import error_etc_passwd_s_0_NAME as one
from net import layer_6 as same
from net import layer_class as layer
from net import res2a_1 as other

random = np.random.default_rng(0)
shapes = layer.x_shape, layer.w_shape, layer.y_shape
x, w, r = (random.integers(-3, 4, shape).astype(np.float32) for shape in shapes)
packed, foreign = layer.pack_weights(w), other.pack_weights(np.zeros(other.w_shape, np.float32))
y = layer(x, packed)
fixed = np.zeros_like(y)
fixed.flags.writeable = False
memory = np.zeros(x.size + r.size + 4, np.float32)
low, high = memory[: r.size].reshape(r.shape), memory[4 : 4 + r.size].reshape(r.shape)
wide = memory[: x.size].reshape(x.shape)


class Liar(np.ndarray):
    """An array that reports another shape than its memory has."""

    @property
    def shape(self):
        return x.shape


refusals = [
    (TypeError, "x: expected a numpy.ndarray of float32, got builtins.list", {"x": x.tolist()}),
    (TypeError, "x: expected dtype float32 in native byte order", {"x": x.astype(">f4")}),
    (TypeError, "x: expected dtype float32", {"x": x.astype(np.float64)}),
    (TypeError, "x: expected dtype float32", {"x": x.astype(object)}),
    (TypeError, "x: expected a numpy.ndarray", {"x": np.ma.masked_equal(x, 0)}),
    (
        TypeError,
        "x: expected an array of (1,) float32, as its memory is",
        {"x": np.zeros(1, np.float32).view(Liar)},
    ),
    (ValueError, "x: expected shape", {"x": x[:, 1:]}),
    (ValueError, "x: expected a C-contiguous array, got strides", {"x": x[:, ::-1]}),
    (TypeError, "packed: expected the result of pack_weights(w), got numpy", {"packed": w}),
    (ValueError, "packed: expected weights packed for", {"packed": foreign}),
    (ValueError, "bias: expected shape", {"bias": r[0, 0, 0, :1]}),
    (ValueError, "residual: expected shape", {"residual": r[:, :1]}),
    (ValueError, "residual: expected shape (0, ", {"x": x[:0], "residual": r}),
    (TypeError, "clamp: expected two numbers", {"clamp": 1}),
    (ValueError, "clamp: expected numbers that fit in a float", {"clamp": (0, 10**400)}),
    (ValueError, "clamp: expected lo <= hi", {"clamp": (1, 0)}),
    (ValueError, "clamp: expected lo <= hi", {"clamp": (0, float("nan"))}),
    (TypeError, "out: expected dtype float32", {"out": np.zeros(y.shape)}),
    (ValueError, "out: expected a writable array", {"out": fixed}),
    (ValueError, "out: expected memory apart from residual", {"residual": low, "out": high}),
    (ValueError, "out: expected memory apart from x", {"x": wide, "out": low}),
]
for kind, message, arguments in refusals:
    try:
        layer(**{"x": x, "packed": packed, **arguments})
    except (TypeError, ValueError) as error:
        assert type(error) is kind and str(error).startswith(message), error
    else:
        raise AssertionError(message)


def odd(array):
    """A copy that is not aligned."""
    bytes_ = np.zeros(array.nbytes + 1, np.uint8)
    moved = bytes_[1:].view(np.float32).reshape(array.shape)
    moved[...] = array
    assert not moved.flags.aligned
    return moved


out = odd(r)
assert layer(odd(x), layer.pack_weights(odd(w)), residual=odd(r), out=out) is out
assert np.array_equal(out, y + r)
assert y.ctypes.data % 64 == 0 and packed.array.ctypes.data % 64 == 0
ones = np.ones(one.x_shape, np.float32)
weights = one.pack_weights(np.ones(one.w_shape, np.float32))
assert np.array_equal(same(ones, weights), np.full(one.y_shape, 5, np.float32))

failures = []


def work(number):
    scaled, expected = x * np.float32(number), y * np.float32(number)
    if not all(np.array_equal(layer(scaled, packed), expected) for _ in range(200)):
        failures.append(number)


threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert not failures
