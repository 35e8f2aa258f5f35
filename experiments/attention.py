"""How fast is attention alone beside PyTorch's scaled_dot_product_attention?

Twelve heads of 64, as many queries as keys, with and without a causal mask, in f32. PyTorch's own
runs its flash kernel for CPUs. Each library has a process of its own, and runs in turns; ratios are
PyTorch's time over ours: above 1, polysci is faster.

  python experiments/attention.py 128 512 2048 --threads 1

Needs PyTorch.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import script

from polysci.cli.layers import positive
from polysci.errors import CheckError
from polysci.text.tables import fit
from polysci.tune import LEVELS

HEADS, WIDTH = 12, 64
KEYS = (128, 256, 512, 1024, 2048, 4096)
WAYS = ("polysci", "PyTorch")
ROUNDS = 7
CLOSE = 1e-5  # absolute, of means of normally distributed values


def attention(
    arguments: Namespace, keys: int, threads: int, causal: bool, way: str
) -> tuple[Callable[[], Any], Any]:
    """A run of one of WAYS, and its result."""
    import torch

    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    torch.manual_seed(0)

    class Attention(torch.nn.Module):
        def forward(self, q: Any, k: Any, v: Any) -> Any:
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)

    module: Any = Attention().eval()
    inputs = tuple(torch.randn(1, HEADS, keys, WIDTH) for _ in range(3))
    if way == "polysci":
        from polysci.torch import optimize

        module = optimize(module, inputs, arguments.level)
        if module.report.reason or not module.report.parts:
            raise CheckError(f"{keys} keys: {module.report}")
    return partial(module, *inputs), module(*inputs).numpy()


def compare(arguments: Namespace, keys: int, threads: int, causal: bool) -> script.Row:
    """A row of the table."""
    ways = {way: (arguments, keys, threads, causal, way) for way in WAYS}
    results, seconds = script.in_turns(ways, attention, arguments.rounds)
    for error in results.values():
        if isinstance(error, Exception):
            raise CheckError(f"{keys} keys: {error}")
    ours, theirs = results.values()
    if not np.allclose(ours, theirs, rtol=0, atol=CLOSE):
        raise CheckError(f"{keys} keys: results differ by {abs(ours - theirs).max()}")
    return {
        "keys": keys, "causal": causal, "threads": threads,
        **{f"{way} ms": f"{seconds[way] * 1e3:.3f}" for way in WAYS},
        "ratio": f"{seconds['PyTorch'] / seconds['polysci']:.3f}",
    }  # fmt: skip


def parser() -> Any:
    words = script.options(__doc__, sample=False)
    words.add_argument("keys", nargs="*", type=positive, help=f"({' '.join(map(str, KEYS))})")
    words.add_argument("--threads", type=positive, action="append", metavar="N", help="(1)")
    words.add_argument("--level", choices=[*LEVELS], default="estimate", help="(estimate)")
    words.add_argument("--rounds", type=positive, default=ROUNDS, metavar="N", help=f"({ROUNDS})")
    return words


def work(arguments: Namespace) -> bool:
    """Compare, print, write the CSV; whether it came to its end."""
    keys = arguments.keys or KEYS[: 1 if arguments.quick else None]
    runs = [*product(keys, arguments.threads or [1], (False, True))]
    rows, complete = script.kept((compare(arguments, *run) for run in runs), "sizes", len(runs))
    if rows:
        print(fit([[*rows[0]], *[[str(value) for value in row.values()] for row in rows]], None))
        ratios = [float(str(row["ratio"])) for row in rows]
        print(f"geometric mean {script.geomean(ratios):.3f}, least {min(ratios):.3f}")
        script.write_csv(script.stem(arguments, "attention").with_suffix(".csv"), rows)
    return complete


if __name__ == "__main__":
    sys.exit(script.run(work, parser().parse_args()))
