"""polysci learn: train the ranker ``learned``."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from polysci.cli import layers as shared

if TYPE_CHECKING:
    from polysci.tune.training import Judgement, TrainingSample

HELP = "train the ranker 'learned' on what searches measured on this machine"
MORE = (
    "Every schedule that a search times is kept in the record file. The ranker learns which of two "
    "is the faster one. Its accuracy on networks left out of training is printed."
)


def add(command: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    command.add_argument(
        "--wisdom", metavar="FILE", help="file of records (that of the cache directory)"
    )
    command.add_argument(
        "--threads",
        type=shared.positive,
        metavar="N",
        help="learn from schedules of N threads only",
    )
    shared.isa_option(command)
    command.add_argument("--json", action="store_true", help="print one JSON object")
    shared.wide_option(command)


def run(arguments: argparse.Namespace) -> int:
    """Validate on held-out networks, train on all samples, store the weights, print the file."""
    from polysci.tune import training as learn
    from polysci.tune.context import keep_weights
    from polysci.tune.wisdom import Wisdom

    target = shared.target_of(arguments)
    learn.regression()  # fails now, rather than later, where scikit-learn is missing
    shared.say("reading what was measured")
    training = learn.training_samples(Wisdom(arguments.wisdom), target, arguments.threads)
    judgements = _judgements(training)
    shared.say(f"learning from all {len(training)} layers")
    weights = learn.train(training)
    if judgements:
        weights = replace(weights, accuracy=judgements["all"].accuracy[0])
    path = keep_weights(target, weights)
    if arguments.json:
        held_out = {name: asdict(judgement) for name, judgement in judgements.items()}
        print(json.dumps({"weights": str(path), "held_out": held_out}))
        return 0
    if judgements:
        print(_table(judgements, shared.table_width(arguments)))
    print(f"learned from {weights}; weights in {path}")
    return 0


def _judgements(training: list[TrainingSample]) -> dict[str, Judgement]:
    """Figures by held-out network and of all; empty where only one network was measured."""
    from polysci.tune import training as learn

    groups = list(dict.fromkeys(sample.group for sample in training))
    if len(groups) < 2:
        shared.say(f"only {groups[0]} was measured: how well this does elsewhere is not known")
        return {}
    scores = learn.cross_validate(training, shared.say)
    by_group = {
        group: learn.judge_ranker([score for score in scores if score.sample.group == group])
        for group in groups
    }
    return {**by_group, "all": learn.judge_ranker(scores)}


def _table(judgements: dict[str, Judgement], width: int | None) -> str:
    """One line a network that was held out; ``traffic`` in brackets."""
    from polysci.text.tables import fit, paragraph

    head = ["held out", "layers", "schedules", "pairs right", "first choice", "worst"]
    rows = [head]
    for name, judgement in judgements.items():
        figures = [
            f"{a:.3f} ({b:.3f})" for a, b in (judgement.accuracy, judgement.top, judgement.worst)
        ]
        rows.append([name, str(judgement.layers), str(judgement.schedules), *figures])
    note = "In brackets: the model 'traffic'. First choice: its speed over the best measured speed."
    table = fit(rows, width, drop=("schedules", "layers"), clip=head[:1], left=head[:1])
    return f"{table}\n{paragraph(note, width, '')}"
