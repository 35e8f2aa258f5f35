"""Measure a stratified sample of schedules of many layers, once; the other experiments read it.

Every schedule is generated, compiled, checked bit for bit and timed, with warm and cold caches.
A sample that is there already is not measured again: after Ctrl-C, or a crash, run it once more.
Takes about a minute a layer and number of threads on a quiet machine, which it should be.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from records import RESULTS, Sample, read
from rich.progress import track

from polysci.errors import PolysciError
from polysci.measure.bench import Bench
from polysci.measure.samples import Samples
from polysci.measure.trials import BuiltSchedule, build_trials, time_trials
from polysci.ops import layer_lists, parse_problem
from polysci.ops.problem import Problem
from polysci.runtime.measurement import Measurement, host_of, protocol
from polysci.target.host import detect
from polysci.tune import context_of
from polysci.tune.fit import sample_schedules

# Beside MOpt's 32: layers of ResNet-50, VGG-16, Inception v3 and YOLOv2 that are like none of them.
LAYERS = {
    "mopt": (),
    "resnet50": ("res2a_branch1", "res2b_branch2a", "res3a_branch2c", "res3b_branch2a",
                 "res4a_branch1", "res4a_branch2c", "res4b_branch2a", "res5a_branch2c",
                 "res5b_branch2a"),
    "vgg16": ("conv1_2", "conv3_1", "conv5_1"),
    "inception_v3": ("mixed_5b/5x5_2", "mixed_6a/3x3", "mixed_6b/7x7_2", "mixed_7c/1x1"),
    "yolov2": ("conv4", "conv21"),
}  # fmt: skip
# Products with packed weights: of transformers, squares, tall and flat ones, and PolyDL's.
GEMMS = {
    "vit_b": ("197x768x2304", "197x768x768", "197x3072x768"),
    "bert_base": ("128x768x3072", "128x3072x768", "16x768x768", "512x768x768"),
    "llama": ("1x4096x4096", "16x4096x1024", "128x2048x2048"),
    "square": ("256x256x256", "512x512x512", "1024x1024x1024"),
    "tall": ("8192x64x64", "4096x32x512", "64x4096x64"),
    "polydl": ("84x4096x1024", "256x2048x256", "2048x32x4096", "35x2560x2048"),
}
NETWORK = {"Y": "yolo9000", "R": "resnet18", "M": "mobilenet"}  # of MOpt's layers
LARGEST = 8e9  # flops: Y23 of MOpt's layers has 17e9 and would take as long as ten others
COUNT = 150
BATCH = 16
SAMPLES, SAMPLE_S = 9, 4e-3


def main() -> int:
    arguments = parse_arguments()
    done = Counter[tuple[str, str, int, bool]]()
    if arguments.output.exists():
        for sample in read(arguments.output):
            its = sample.measurement
            done[sample.problem.key, its.schedule, its.threads, sample.cold] += 1
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    try:
        with arguments.output.open("a", encoding="utf-8") as file:
            for network, problem in LAYER_SETS[arguments.set](arguments.quick):
                for threads in arguments.threads:
                    for sample in measured(network, problem, threads, arguments.count, done):
                        print(sample, file=file, flush=True)
    except KeyboardInterrupt:
        print(f"stopped; what was measured is in {arguments.output}", file=sys.stderr)
        return 130
    return 0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="three small layers, 20 schedules")
    parser.add_argument("--count", type=int, default=None, help=f"schedules a layer ({COUNT})")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], help="(1 2)")
    parser.add_argument(
        "--set", choices=tuple(LAYER_SETS), default="convolutions", help="(convolutions)"
    )
    parser.add_argument(
        "--output", type=Path, help="(results/sample.jsonl, of gemms results/sample_gemms.jsonl)"
    )
    arguments = parser.parse_args()
    name = "sample" if arguments.set == "convolutions" else f"sample_{arguments.set}"
    arguments.output = arguments.output or RESULTS / f"{name}.jsonl"
    arguments.count = arguments.count or (20 if arguments.quick else COUNT)
    return arguments


def layers(quick: bool) -> Iterator[tuple[str, Problem]]:
    """The layers with the network that they are of."""
    if quick:
        for text in ("mb1ic64ih14oc64kh3ph1", "mb1ic256ih7oc128kh1", "g64mb1ic64ih28oc64kh3ph1"):
            yield "quick", parse_problem(text, "nhwc")
        return
    chosen = [
        (NETWORK[problem.name[0]] if network == "mopt" else network, problem)
        for network, names in LAYERS.items()
        for problem in layer_lists.load(network)
        if (not names or problem.name in names) and problem.flops < LARGEST
    ]
    yield from sorted(chosen, key=lambda entry: entry[1].flops)


def gemms(quick: bool) -> Iterator[tuple[str, Problem]]:
    """The products with where they are from; of a quick run three small ones."""
    chosen = [
        (network, parse_problem(f"mm:{text} b=constant"))
        for network, texts in GEMMS.items()
        for text in texts
    ]
    chosen.sort(key=lambda entry: entry[1].flops)
    yield from chosen[:3] if quick else chosen


LAYER_SETS: Mapping[str, Callable[[bool], Iterator[tuple[str, Problem]]]] = {
    "convolutions": layers,
    "gemms": gemms,
}


def measured(
    network: str,
    problem: Problem,
    threads: int,
    count: int,
    done: Counter[tuple[str, str, int, bool]],
) -> Iterator[Sample]:
    """Samples of one layer that are not there yet."""
    target = detect()
    host = host_of(target)
    there = {
        cold: {
            schedule for key, schedule, n, c in done if (key, n, c) == (problem.key, threads, cold)
        }
        for cold in (False, True)
    }
    if min(map(len, there.values())) >= count:
        return
    context = context_of(problem, threads, target)
    schedules = sample_schedules(context, count)
    title = f"{network} {problem.name or problem} {threads}t"
    with Bench(problem, threads) as bench:
        for at in track(range(0, len(schedules), BATCH), title):
            batch = build_trials(problem, schedules[at : at + BATCH], threads)
            for cold in (False, True):
                todo = [trial for trial in batch if str(trial.schedule) not in there[cold]]
                yield from (
                    Sample(network, problem, Measurement(
                        its.seconds, problem.flops, str(trial.schedule),
                        protocol(SAMPLES, SAMPLE_S, cold), threads, host,
                    ))
                    for trial, its in _timed(bench, todo, cold)
                )  # fmt: skip


def _timed(
    bench: Bench, tried: Sequence[BuiltSchedule], cold: bool
) -> Iterator[tuple[BuiltSchedule, Samples]]:
    """What could be timed; each is checked before its warm run."""
    timed = time_trials(
        bench, tried, samples=SAMPLES, min_sample_s=SAMPLE_S, cold=cold, check=not cold
    )
    for trial, its in timed:
        if isinstance(its, PolysciError):
            print(f"{bench.problem}: {trial.schedule}: {its}", file=sys.stderr)
        else:
            yield trial, its


if __name__ == "__main__":
    sys.exit(main())
