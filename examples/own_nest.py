"""A loop nest of your own, in C: ``python examples/own_nest.py [LEVEL]``.

The nest is a causal 1-D convolution with dilation 2 over a batch of sequences.
"""

import sys

import numpy as np

import polysci

NEST = """
#define TIME 200
#define PADDED 204
#define TAPS 3
float y[4][TIME][48], x[4][PADDED][32], w[TAPS][32][48];
#pragma scop
for (int n = 0; n < 4; n++)
  for (int t = 0; t < TIME; t++)
    for (int k = 0; k < 48; k++)
      for (int r = 0; r < TAPS; r++)
        for (int c = 0; c < 32; c++)
          y[n][t][k] += x[n][t + 2 * r][c] * w[r][c][k];
#pragma endscop
"""


def main(level: str = "measure") -> None:
    """Compile the nest and compare it with einsum."""
    nest = polysci.Nest(NEST, name="causal")
    prim = polysci.compile(nest, level=level)
    print(f"problem:  {nest}")
    print(f"schedule: {prim.schedule}")

    rng = np.random.default_rng(0)
    x = rng.integers(-4, 5, nest.x_shape).astype(np.float32)
    w = rng.integers(-4, 5, nest.w_shape).astype(np.float32)
    y = prim(x, prim.pack_weights(w))

    windows = np.stack([x[:, 2 * r : 2 * r + 200] for r in range(3)])
    assert (y == np.einsum("rntc,rck->ntk", windows, w)).all()
    print("equal to einsum, element by element")


if __name__ == "__main__":
    main(*sys.argv[1:])
