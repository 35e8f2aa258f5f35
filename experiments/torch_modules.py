"""How much faster are whole PyTorch modules in polysci than in the fastest of PyTorch's ways?

Peers: eager, ``torch.compile``, the same with freezing, and modules of mkldnn's prepacked weights;
on request with freezing and max-autotune, which takes minutes a model to compile. The first two
take images with channels last where that is faster, the others choose layouts themselves. Each
runs in a process of its own, in turns, and ratios are of the fastest: above 1, polysci is faster.
Rows that the CSV has are not measured again. ``--rounds 0`` compiles only, for all to find it in
their caches.

  python experiments/torch_modules.py resnet18 vit_ti --batch 1 --threads 1 --algorithm auto

Needs PyTorch.
"""

from __future__ import annotations

import csv
import sys
import time
import warnings
from argparse import Namespace
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import script

from polysci.errors import CheckError, SpecError
from polysci.measure.network_samples import WARM_UP_S, mean_seconds
from polysci.text.tables import fit
from polysci.tune import LEVELS

sys.path.insert(0, str(Path(__file__).parents[1]))  # the models are those of the tests
CNNS = ("resnet18", "resnet50", "regnet", "mobilenet_v2", "mobilenet_v3", "efficientnet_b0",
        "squeezenet", "shufflenet_v2", "googlenet", "densenet121", "convnext_t",
        "unet")  # fmt: skip
MODELS = (*CNNS, "vit_ti", "bert_mini")
OURS = "polysci"
PEERS = ("eager", "inductor", "freezing", "autotune", "mkldnn")
USUAL = ("eager", "inductor", "freezing", "mkldnn")
FROZEN = ("freezing", "autotune")
LAYOUTS = ("eager", "inductor")  # peers for which the layout of images matters
SETTING = ("model", "batch", "threads", "dtype", "algorithm", "level")
ROUNDS = 7


def make(arguments: Namespace, name: str, way: str) -> tuple[Callable[[], object], str]:
    """What runs a model in one of the ways, and a word on it."""
    import torch

    from tests.support.torch_models import MODULES

    warnings.simplefilter("ignore")
    torch.set_num_threads(arguments.threads)
    torch.set_grad_enabled(False)
    case = MODULES[name]
    module, inputs = case.module(small=False), case.inputs(arguments.batch, small=False)
    if way == OURS:
        return ours(arguments, module, inputs)
    if arguments.dtype == "bf16":
        module = module.to(torch.bfloat16)
        inputs = tuple(x.to(torch.bfloat16) if x.is_floating_point() else x for x in inputs)
    run = peer(torch, way, module, inputs)
    if way not in LAYOUTS or not any(x.dim() == 4 for x in inputs):
        return run, ""
    last = {"memory_format": torch.channels_last}
    changed = [x.to(**last) if x.dim() == 4 else x for x in inputs]
    other = peer(torch, way, module.to(**last), changed)
    times = []
    for either in (run, other):
        either()
        mean_seconds(either, WARM_UP_S)
        times.append(mean_seconds(either, 10 * WARM_UP_S))
    return (other, "channels last") if times[1] < times[0] else (run, "")


def ours(
    arguments: Namespace, module: Any, inputs: tuple[Any, ...]
) -> tuple[Callable[[], object], str]:
    """Our module's run, and the seconds until it was there."""
    from polysci.torch import optimize

    start = time.perf_counter()
    own = optimize(module, inputs, arguments.level, arguments.dtype, arguments.algorithm)
    own(*inputs)
    return partial(own, *inputs), f"{time.perf_counter() - start:.1f}"


def peer(torch: Any, way: str, module: Any, inputs: Any) -> Callable[[], object]:
    """A module's run in one of PEERS."""
    import torch._inductor.config

    if way == "eager":
        return partial(module, *inputs)
    if way == "mkldnn":
        from torch.utils import mkldnn

        run = mkldnn.to_mkldnn(module)
        return lambda: run(*(x.to_mkldnn() for x in inputs)).to_dense()
    torch._dynamo.reset()
    torch._inductor.config.autotune_num_choices_displayed = 0
    torch._inductor.config.freezing = way in FROZEN
    mode = "max-autotune" if way == "autotune" else None
    return partial(torch.compile(module, dynamic=False, mode=mode), *inputs)


def compare(arguments: Namespace, name: str) -> script.Row:
    """A row of the table: a model."""
    ways = {way: (arguments, name, way) for way in (OURS, *arguments.peers)}
    told, seconds = script.in_turns(ways, make, arguments.rounds)
    for way, text in told.items():
        if isinstance(text, Exception):  # what a peer lacks is no fault of ours
            print(f"{name}: {way}: {text}", file=sys.stderr)
    if isinstance(told[OURS], Exception):
        raise CheckError(f"{name}: {told[OURS]}")
    times = {way: seconds[way] * 1e3 for way in (*arguments.peers,) if way in seconds}
    best = min(times, key=times.__getitem__) if times else ""
    mine = seconds.get(OURS, 0) * 1e3
    return {
        **{field: getattr(arguments, field, name) for field in SETTING}, "compile s": told[OURS],
        f"{OURS} ms": f"{mine:.3f}",
        **{f"{way} ms": f"{times[way]:.3f}" if way in times else "" for way in PEERS},
        "best": f"{best} {told[best]}".strip() if best else "",
        "ratio": f"{times[best] / mine:.3f}" if best else "",
    }  # fmt: skip


def kept_rows(path: Path) -> list[script.Row]:
    """What was measured before."""
    if not path.is_file():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def key_of(row: script.Row) -> tuple[str, ...]:
    return tuple(str(row[field]) for field in SETTING)


def parser() -> Any:
    words = script.options(__doc__, sample=False)
    words.add_argument("models", nargs="*", metavar="MODEL", help=f"({' '.join(MODELS)})")
    words.add_argument(
        "--peers", nargs="*", default=USUAL, choices=PEERS, help=f"({' '.join(USUAL)})"
    )
    for word, default in (("batch", 1), ("threads", 1), ("rounds", ROUNDS)):
        words.add_argument(f"--{word}", type=int, default=default, metavar="N", help=f"({default})")
    for word, known in (("level", LEVELS), ("dtype", ("f32", "bf16")),
                        ("algorithm", ("direct", "auto"))):  # fmt: skip
        first = "estimate" if word == "level" else known[0]  # type: ignore[index]
        words.add_argument(f"--{word}", choices=[*known], default=first, help=f"({first})")
    words.add_argument("--again", action="store_true", help="measure rows that the CSV has, too")
    return words


def work(arguments: Namespace) -> bool:
    """Compare, print, write the CSV; whether it came to its end."""
    from tests.support.torch_models import MODULES

    names = arguments.models or [*MODELS][: 2 if arguments.quick else None]
    if other := [name for name in names if name not in MODULES]:
        raise SpecError(f"model {other[0]!r}: expected one of {', '.join(MODULES)}")
    path = script.stem(arguments, "torch-modules").with_suffix(".csv")
    rows = {key_of(row): row for row in kept_rows(path)}
    wanted = {key_of({**vars(arguments), "model": name}): name for name in names}
    todo = [name for key, name in wanted.items() if arguments.again or key not in rows]
    done, complete = script.kept((compare(arguments, name) for name in todo), "models", len(todo))
    if not arguments.rounds:
        return complete
    rows |= {key_of(row): row for row in done}
    shown = [rows[key] for key in wanted if key in rows]
    if shown:
        cells = [[str(value) for value in row.values()] for row in shown]
        print(fit([[*shown[0]], *cells], None, left=("model", "best")))
        ratios = [float(str(row["ratio"])) for row in shown if row["ratio"]]
        print(f"geomean {script.geomean(ratios):.3f}, least {min(ratios):.3f}")
        script.write_csv(path, [*rows.values()])
    return complete


if __name__ == "__main__":
    sys.exit(script.run(work, parser().parse_args()))
