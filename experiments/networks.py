"""How fast are networks of many kinds and precisions beside other libraries?

Each is made here with random weights, compiled for each number of threads, and timed in turns with
the peers at their fastest settings, every one in a process of its own, arrays bound ahead. The
ratio is the fastest peer's time over ours: above 1, polysci is faster. A peer that computes no
network in the ``--dtype`` has no time.

  python experiments/networks.py --set recurrent
  python experiments/networks.py --set images --algorithm auto --threads 1
  python experiments/networks.py lstm128_100 mlp_16_64_4 --threads 2 --save DIR

Needs the extra `peers`: pip install 'polysci[peers]'; the set transformers also PyTorch,
transformers, timm and onnxscript, and the set quantized ONNX Runtime's quantiser.
"""

from __future__ import annotations

import sys
import tempfile
from argparse import Namespace
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import image_models
import onnx
import quantized_models
import script
import small_models
import transformer_models

from polysci.errors import CheckError, SpecError
from polysci.lower import registry
from polysci.network.compiled import compile_network
from polysci.network.options import machine_for
from polysci.peers import Peer
from polysci.peers.contest import LEAST_ROUNDS, ROUNDS
from polysci.peers.networks.compare import compare_networks, installed_peers
from polysci.target.host import detect
from polysci.text.tables import fit
from polysci.tune import LEVELS

SETS = {
    "images": image_models.MODELS,
    **small_models.SETS,
    "transformers": transformer_models.MODELS,
    "quantized": quantized_models.MODELS,
}
PEERS = ("onnxruntime", "openvino")
QUICK = ("gru64_1", "mlp_16_64_4")


def parser() -> Any:
    words = script.options(__doc__, sample=False)
    words.add_argument("networks", nargs="*", metavar="NAME", help="(all of the sets)")
    words.add_argument(
        "--set",
        action="append",
        choices=[*SETS],
        help="several are possible (all)",
    )
    words.add_argument(
        "--threads", type=int, action="append", metavar="N", help="several are possible (1 and 2)"
    )
    words.add_argument("--level", choices=[*LEVELS], default="measure", help="(measure)")
    words.add_argument("--algorithm", choices=registry.options(), default="direct", help="(direct)")
    words.add_argument("--dtype", default="f32", metavar="NAME", help="of all of them (f32)")
    words.add_argument("--weights", default="f32", metavar="NAME", help="of our products (f32)")
    words.add_argument("--rounds", type=int, default=ROUNDS, metavar="N", help=f"({ROUNDS})")
    words.add_argument(
        "--save",
        type=Path,
        metavar="DIR",
        help="keep the models there as NAME.onnx, and take those that it has",
    )
    return words


def chosen(arguments: Namespace) -> dict[str, Any]:
    """What makes each model, by name. Raises SpecError for a name that is none."""
    every = {name: make for models in SETS.values() for name, make in models.items()}
    names = arguments.networks or [name for key in arguments.set or SETS for name in SETS[key]]
    if arguments.quick:
        names = [*QUICK]
    for name in names:
        if name not in every:
            raise SpecError(f"network {name!r}: expected one of {', '.join(every)}")
    return {name: every[name] for name in names}


def compare(path: Path, threads: int, peers: Sequence[Peer], arguments: Namespace) -> script.Row:
    """A row of the table: a network at a number of threads."""
    rounds = LEAST_ROUNDS if arguments.quick else arguments.rounds
    network = compile_network(
        path, arguments.level, threads, algorithm=arguments.algorithm, dtype=arguments.dtype,
        weights=arguments.weights,
    )  # fmt: skip
    say = partial(print, file=sys.stderr)
    result = compare_networks(network, path, peers, rounds=rounds)
    for name, failure in result.failures.items():
        say(f"{path.stem}: {name} has no time: {failure}")
    if not result.peers:
        raise CheckError(f"{path.stem}: no peer has a time")
    row: dict[str, object] = {
        "network": path.stem,
        "threads": threads,
        "us": result.latency_ms * 1e3,
        **{f"{peer.name} us": _microseconds(result.peers.get(peer.name)) for peer in peers},
        "fastest": result.fastest,
        "ratio": result.ratio,
        "error": result.max_error,
    }
    say(*map(_cell, row.values()))
    return row


def table(rows: Sequence[script.Row]) -> str:
    """A row a network; below them the geometric mean and the least ratio of each thread count."""
    words = [[_cell(value) for value in row.values()] for row in rows]
    lines = [fit([[*rows[0]], *words], None, left=("network", "fastest"))]
    ratios: Mapping[Any, list[float]] = {row["threads"]: [] for row in rows}
    for row in rows:
        ratios[row["threads"]].append(float(str(row["ratio"])))
    lines += [
        f"{threads} threads: geometric mean {script.geomean(values):.3f}, least {min(values):.3f}"
        for threads, values in ratios.items()
    ]
    return "\n".join(lines)


def _microseconds(milliseconds: float | None) -> float | str:
    return "none" if milliseconds is None else milliseconds * 1e3


def _cell(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def work(arguments: Namespace) -> bool:
    """Compare, print, write the CSV; whether it came to its end."""
    models, rows = chosen(arguments), list[script.Row]()
    peers = installed_peers(PEERS, partial(print, file=sys.stderr))
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.save or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for name, make in models.items():
            if not (folder / f"{name}.onnx").exists():
                onnx.save(make(), folder / f"{name}.onnx")
        runs = [(name, n) for n in arguments.threads or (1, 2) for name in models]
        tasks = (compare(folder / f"{name}.onnx", n, peers, arguments) for name, n in runs)
        rows, complete = script.kept(tasks, "networks", len(runs))
    if rows:
        print(table(rows))
        peak = machine_for(detect()).peak
        print(f"this machine's peak: {peak:.0f} GFLOP/s a core")
        name = f"networks-{arguments.algorithm}"
        script.write_csv(script.stem(arguments, name).with_suffix(".csv"), rows)
    return complete


if __name__ == "__main__":
    sys.exit(script.run(work, parser().parse_args()))
