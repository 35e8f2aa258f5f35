"""Run by an interpreter that has an exported package ``net`` and NumPy, nothing else."""

import importlib.util
import sys

import net
import numpy as np

assert not [name for name in ("polysci", "cffi", "islpy") if importlib.util.find_spec(name)]
inputs, found = np.load(sys.argv[1]), {}
assert sorted(net.__all__) == sorted({key.partition("/")[0] for key in inputs})
for name in net.__all__:
    layer = getattr(net, name)
    x, w, bias, residual, clamp = (
        inputs[f"{name}/{which}"] for which in ("x", "w", "bias", "residual", "clamp")
    )
    assert (layer.x_shape, layer.w_shape, layer.y_shape) == (x.shape, w.shape, residual.shape)
    packed = layer.pack_weights(w)
    found[f"{name}/plain"] = layer(x, packed)
    out = np.full_like(residual, np.nan)
    assert layer(x, packed, bias, residual, tuple(clamp), out) is out
    found[f"{name}/fused"] = out
    again = residual.copy()
    assert layer(x, packed, bias=bias, residual=again, clamp=clamp, out=again) is again
    assert np.array_equal(again, out) and str(x.shape) in repr(layer)
    assert layer(x[:0], packed).shape == (0, *layer.y_shape[1:])
np.savez(sys.argv[2], **found)
