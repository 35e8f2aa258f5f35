"""Run by an interpreter that has an exported package ``net`` and NumPy, nothing else."""

import importlib.util
import sys

import net
import numpy as np

assert not [name for name in ("polysci", "cffi", "islpy") if importlib.util.find_spec(name)]
SCALARS = ("y_zero", "residual_scale", "residual_zero")
inputs, found = np.load(sys.argv[1]), {}
names = [name for name in net.__all__ if hasattr(getattr(net, name), "x_shape")]
assert sorted(names) == sorted({key.partition("/")[0] for key in inputs})
for name in names:
    layer = getattr(net, name)
    x, w, bias, residual, clamp = (
        inputs[f"{name}/{which}"] for which in ("x", "w", "bias", "residual", "clamp")
    )
    assert (layer.x_shape, layer.w_shape, layer.y_shape) == (x.shape, w.shape, residual.shape)
    packed = layer.pack_weights(w, int(inputs.get(f"{name}/x_zero", 0)))
    rest = {}
    if f"{name}/scale" in inputs:
        numbers = (inputs[f"{name}/{which}"].item() for which in SCALARS)
        rest = {"scales": net.Scales(inputs[f"{name}/scale"], *numbers)}
    found[f"{name}/plain"] = layer(x, packed, **rest)
    out = np.ones_like(residual)
    assert layer(x, packed, bias, residual, tuple(clamp), out, **rest) is out
    found[f"{name}/fused"] = out
    again = residual.copy()
    assert layer(x, packed, bias=bias, residual=again, clamp=clamp, out=again, **rest) is again
    assert np.array_equal(again, out) and str(x.shape) in repr(layer)
    assert layer(x[:0], packed).shape == (0, *layer.y_shape[1:])
np.savez(sys.argv[2], **found)
