"""How much faster are whole PyTorch modules in polysci than in eager and under inductor?

Prints a line of medians for each model, of turns one after the other:
``python experiments/torch_modules.py resnet18 --batch 1 --threads 1 --level estimate``
"""

from __future__ import annotations

import argparse
import copy
import csv
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

import torch
import torch._inductor.config

from polysci.torch import optimize

sys.path.insert(0, str(Path(__file__).parents[1]))  # the models are those of the tests
from tests.support.torch_models import MODULES

FIELDS = ("model", "batch", "threads", "level", "dtype", "compile_s", "polysci_ms",
          *(f"{name}_ms" for name in ("eager", "inductor", "freezing", "autotune", "mkldnn")),
          "over_eager", "best", "over_best")  # fmt: skip
CNNS = ("resnet18", "resnet50", "resnext50", "se_resnet50", "regnet", "mobilenet_v2",
        "mobilenet_v3", "efficientnet_b0", "squeezenet", "shufflenet_v2", "googlenet",
        "densenet121")  # fmt: skip
PEERS = ("eager", "inductor", "freezing", "autotune", "mkldnn")


def peer(name: str, module: Any) -> Any:
    """The module as one of PyTorch's ways runs it."""
    if name == "eager":
        return module
    if name == "mkldnn":
        from torch.utils import mkldnn

        run = mkldnn.to_mkldnn(copy.deepcopy(module))
        return lambda *inputs: run(*(x.to_mkldnn() for x in inputs)).to_dense()
    torch._inductor.config.freezing = name == "freezing"
    mode = "max-autotune" if name == "autotune" else None
    return torch.compile(module, dynamic=False, mode=mode)


def seconds_of(run: Callable[[], object], least: float = 0.03) -> float:
    """A run, of as many as fill a turn."""
    start, count = time.perf_counter(), 0
    while not count or time.perf_counter() - start < least:
        run()
        count += 1
    return (time.perf_counter() - start) / count


def measure(name: str, options: argparse.Namespace) -> dict[str, Any]:
    case = MODULES[name]
    module, inputs = case.module(small=False), case.inputs(options.batch, small=False)
    start = time.perf_counter()
    own = optimize(module, inputs, options.level, options.dtype, options.algorithm)
    spent = time.perf_counter() - start
    print(own.report, file=sys.stderr)
    runs, seconds = {"polysci": own}, dict[str, list[float]]()
    with torch.no_grad():
        for label in options.peers:
            try:
                run = peer(label, copy.deepcopy(module))
                run(*inputs)
                runs[label] = run
            except Exception as error:  # what a peer lacks is no fault of ours
                print(f"{name}: {label}: {error!s:.200}", file=sys.stderr)
        for turn in range(options.turns + 1):
            for label, run in runs.items():
                turn_s = seconds_of(partial(run, *inputs))
                if turn:  # the first one warms up
                    seconds.setdefault(label, []).append(turn_s)
    times = {label: median(values) for label, values in seconds.items()}
    mine = times.pop("polysci")
    return {
        "model": name, "batch": options.batch, "threads": options.threads, "level": options.level,
        "dtype": options.dtype, "compile_s": round(spent, 1), "polysci_ms": round(mine * 1e3, 3),
        **{f"{label}_ms": round(value * 1e3, 3) for label, value in times.items()},
        "over_eager": round(times.get("eager", 0) / mine, 2),
        "best": (best := min(times, key=times.__getitem__)),
        "over_best": round(times[best] / mine, 2),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=[*CNNS])
    parser.add_argument("--peers", nargs="*", default=[*PEERS], choices=PEERS)
    for word, default in (("batch", 1), ("threads", 1), ("turns", 9)):
        parser.add_argument(f"--{word}", type=int, default=default)
    for word, text in (("level", "estimate"), ("dtype", "f32"), ("algorithm", "direct")):
        parser.add_argument(f"--{word}", default=text)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(options.threads)
    rows = []
    table = csv.DictWriter(sys.stdout, FIELDS)
    table.writeheader()
    for name in options.models:
        rows.append(measure(name, options))
        table.writerow(rows[-1])
        sys.stdout.flush()
    gains = [row["over_best"] for row in rows]
    print(f"# beside the best: geomean {geometric_mean(gains):.2f}, least {min(gains):.2f}")


if __name__ == "__main__":
    main()
