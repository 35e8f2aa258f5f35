"""How fast is one library for all lengths beside a library for each, and beside ONNX Runtime?

The network is an encoder of text like MiniLM, 6 layers of 384, with random weights. One library is
compiled for 1 to 512 tokens, one for each of 20 lengths alone; ONNX Runtime takes any length. Each
has a process of its own, and runs in turns. ``alone`` is the time of a library for this length over
that of the one for all, ``ratio`` ONNX Runtime's over it: above 1, the library for all is faster.

  python experiments/any_size.py --threads 1 --threads 2

Needs PyTorch, onnxscript and onnxruntime.
"""

from __future__ import annotations

import sys
import tempfile
import warnings
from argparse import Namespace
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import script

from polysci.cli.layers import positive
from polysci.errors import CheckError
from polysci.text.tables import fit
from polysci.tune import LEVELS

MOST, WIDTH, HEADS, LAYERS = 512, 384, 12, 6
SIZES = (1, 2, 3, 5, 7, 11, 16, 23, 32, 45, 64, 77, 100, 128, 151, 200, 256, 333, 411, 512)
WAYS = ("all", "alone", "onnxruntime")
ROUNDS = 9
CLOSE = 1e-4  # relative to the largest number


def export(path: Path) -> None:
    """Write the encoder as an ONNX model whose input has the axes batch, ``tokens`` and width."""
    import torch
    from torch import nn

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.products = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
            self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
            self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))

        def forward(self, x: Any) -> Any:
            parts = [own(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for own in self.products[:3]]
            mixed = nn.functional.scaled_dot_product_attention(*parts).transpose(1, 2).flatten(2)
            x = self.norms[0](x + self.products[3](mixed))
            return self.norms[1](x + self.narrow(nn.functional.gelu(self.wide(x))))

    torch.manual_seed(0)
    model = nn.Sequential(*(Layer() for _ in range(LAYERS))).eval()
    tokens = torch.export.Dim("tokens", min=2, max=MOST)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            model, (torch.randn(1, 64, WIDTH),), input_names=["x"], dynamo=True,
            dynamic_shapes=({1: tokens},), verbose=False,
        )  # fmt: skip
        program.save(str(path))


def network(
    path: Path, tokens: int, threads: int, level: str, way: str
) -> tuple[Callable[[], Any], Any]:
    """A run of one of WAYS, and its result."""
    x = np.random.default_rng(tokens).standard_normal((1, tokens, WIDTH), dtype=np.float32)
    if way == "onnxruntime":
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        session = onnxruntime.InferenceSession(str(path), options, ["CPUExecutionProvider"])
        run = partial(session.run, None, {"x": x})
        return run, run()[0]
    from polysci.network.compiled import compile_network
    from polysci.network.sizes import compile_sizes

    if way == "all":
        made: Any = compile_sizes(path, {"tokens": range(1, MOST + 1)}, level, threads)
    else:
        made = compile_network(path, level, threads, dims={"tokens": tokens})
    return partial(made, x), made(x)


def compare(path: Path, arguments: Namespace, threads: int, tokens: int) -> script.Row:
    """A row of the table."""
    ways = {way: (path, tokens, threads, arguments.level, way) for way in WAYS}
    results, seconds = script.in_turns(ways, network, arguments.rounds)
    for way, error in results.items():
        if isinstance(error, Exception):
            raise CheckError(f"{tokens} tokens, {way}: {error}")
    exact = results["onnxruntime"]
    for way in WAYS[:2]:
        if not np.allclose(results[way], exact, rtol=0, atol=CLOSE * abs(exact).max()):
            raise CheckError(f"{tokens} tokens: results of {way} differ from ONNX Runtime's")
    return {
        "tokens": tokens, "threads": threads,
        **{f"{way} ms": f"{seconds[way] * 1e3:.3f}" for way in WAYS},
        "alone": f"{seconds['alone'] / seconds['all']:.3f}",
        "ratio": f"{seconds['onnxruntime'] / seconds['all']:.3f}",
    }  # fmt: skip


def parser() -> Any:
    words = script.options(__doc__, sample=False)
    words.add_argument("tokens", nargs="*", type=positive, help=f"({' '.join(map(str, SIZES))})")
    words.add_argument("--threads", type=positive, action="append", metavar="N", help="(1)")
    words.add_argument("--level", choices=[*LEVELS], default="estimate", help="(estimate)")
    words.add_argument("--rounds", type=positive, default=ROUNDS, metavar="N", help=f"({ROUNDS})")
    return words


def work(arguments: Namespace) -> bool:
    """Compare, print, write the CSV; whether it came to its end."""
    sizes: Sequence[int] = arguments.tokens or SIZES[:: 10 if arguments.quick else 1]
    runs = [*product(arguments.threads or [1], sizes)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "encoder.onnx"
        export(path)
        rows, complete = script.kept(
            (compare(path, arguments, *run) for run in runs), "lengths", len(runs)
        )
    if rows:
        print(fit([[*rows[0]], *[[str(value) for value in row.values()] for row in rows]], None))
        for name in ("alone", "ratio"):
            values = [float(str(row[name])) for row in rows]
            print(f"{name}: geometric mean {script.geomean(values):.3f}, least {min(values):.3f}")
        script.write_csv(script.stem(arguments, "any_size").with_suffix(".csv"), rows)
    return complete


if __name__ == "__main__":
    sys.exit(script.run(work, parser().parse_args()))
