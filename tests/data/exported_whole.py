"""Run by an interpreter that has an exported package ``net`` of u8:s8:u8 layers and NumPy."""

import net
import numpy as np

layer = net.layer_class
x, w = np.full(layer.x_shape, 7, np.uint8), np.ones(layer.w_shape, np.int8)
packed, y = layer.pack_weights(w, 7), np.zeros(layer.y_shape, np.uint8)
assert not layer(x, packed).any() and layer(x, packed, scales=net.Scales(1, 9)).min() == 9
bias = np.zeros(w.shape[0], np.int32)
refusals = [
    (TypeError, "x: expected dtype uint8", {"x": x.astype(np.int8)}),
    (TypeError, "bias: expected dtype int32", {"bias": bias.astype(np.float32)}),
    (TypeError, "residual: expected dtype uint8", {"residual": y.astype(np.float32)}),
    (TypeError, "scales: expected Scales, got builtins.float", {"scales": 0.5}),
    (ValueError, "scale: expected shape", {"scales": net.Scales([1, 2])}),
]
for kind, message, arguments in refusals:
    try:
        layer(**{"x": x, "packed": packed, **arguments})
    except (TypeError, ValueError) as error:
        assert type(error) is kind and str(error).startswith(message), error
    else:
        raise AssertionError(message)
for wrong in (-1, 256, 0.5):
    try:
        layer.pack_weights(w, wrong)
    except ValueError as error:
        assert str(error).startswith("x_zero: expected 0 to 255, got"), error
    else:
        raise AssertionError(wrong)
for bad in ({"scale": float("nan")}, {"residual_scale": float("inf")}, {"y_zero": 300}):
    try:
        net.Scales(**bad)
    except ValueError as error:
        assert str(error).startswith(f"{next(iter(bad))}: expected"), error
    else:
        raise AssertionError(bad)
