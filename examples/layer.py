"""One convolution on NumPy arrays: ``python examples/layer.py [LEVEL]``."""

import sys

import numpy as np

import polysci


def main(level: str = "measure") -> None:
    """Compile a 3x3 layer of ResNet-50, call it, and compare with the NumPy reference."""
    problem = polysci.Conv2d(N=1, C=64, H=56, W=56, K=64, R=3, S=3, pad=1)
    prim = polysci.compile(problem, level=level)
    print(f"schedule: {prim.schedule}")

    rng = np.random.default_rng(0)
    x = rng.standard_normal(problem.x_shape, dtype=np.float32)
    w = rng.standard_normal(problem.w_shape, dtype=np.float32)
    bias = rng.standard_normal(problem.K, dtype=np.float32)

    packed = prim.pack_weights(w)  # once
    y = prim(x, packed, bias=bias, activation="relu")  # for every input

    expected = problem.reference(x, w, bias, clamp=(0, np.inf))
    difference = float(np.abs(y - expected).max())
    print(f"largest difference from NumPy: {difference:.1e}")
    assert difference < 1e-3
    if prim.measurement:
        print(f"{prim.measurement.gflops:.1f} GFLOP/s")


if __name__ == "__main__":
    main(*sys.argv[1:])
