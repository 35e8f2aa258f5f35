"""Tuners to compare the genetic one with: random individuals, and Bayesian optimisation."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from polysci.errors import UnsupportedError
from polysci.tune.tuners.options import Proposals, TunerOptions
from polysci.tune.tuners.space import Decision, Genome, Space, genes_of

TOGETHER: Final = 4  # individuals proposed before the time of any is known: compilers share cores


def propose_random(space: Space, options: TunerOptions) -> Proposals:
    """The seeds, then individuals at random."""
    rng, proposed = np.random.default_rng(options.seed), dict.fromkeys(space.seeds)
    yield list(proposed)
    while (left := min(options.budget, space.size) - len(proposed)) > 0:
        batch = dict.fromkeys(space.genome(rng) for _ in range(min(TOGETHER, left)))
        fresh = [genome for genome in batch if genome not in proposed]
        proposed |= dict.fromkeys(fresh)
        if fresh:
            yield fresh


def load_optuna() -> Any:
    """The package. Raises UnsupportedError that tells how to install it."""
    try:
        optuna = importlib.import_module("optuna")
    except ImportError as error:
        raise UnsupportedError(
            f"tuner 'bayesian': optuna cannot be imported ({error}); pip install 'polysci[tuners]'"
        ) from error
    logging.getLogger("optuna").setLevel(logging.WARNING)  # it tells of every trial otherwise
    return optuna


def check_packages(options: TunerOptions) -> None:
    """Raise UnsupportedError where what the tuner is made of cannot be imported."""
    if options.name == "bayesian":
        load_optuna()


def propose_by_density(space: Space, options: TunerOptions) -> Proposals:
    """Propose by a tree-structured Parzen estimator (optuna's TPESampler).

    Its parameters are genes; the individual is the one with most of them (Bergstra and others,
    Algorithms for Hyper-Parameter Optimization, 2011).
    """
    optuna = load_optuna()
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=options.seed))
    columns = {
        name: optuna.distributions.CategoricalDistribution(sorted({*values.tolist()}))
        for decision in space.decisions
        for name, values in zip(_columns(decision), decision.genes.T, strict=True)
    }
    for genome in space.seeds:
        study.enqueue_trial(_params(space, genome))
    for _ in range(max(1, options.budget // TOGETHER)):
        trials = [study.ask(columns) for _ in range(TOGETHER)]
        seconds = yield [_nearest(space, trial.params) for trial in trials]
        for trial, time in zip(trials, seconds, strict=True):
            if np.isfinite(time):
                study.tell(trial, time)
            else:
                study.tell(trial, state=optuna.trial.TrialState.FAIL)


def _columns(decision: Decision) -> list[str]:
    return [f"{decision.name} {column}" for column in range(decision.genes.shape[1])]


def _params(space: Space, genome: Genome) -> dict[str, int]:
    return {
        name: int(gene)
        for decision, genes in zip(space.decisions, genes_of(space, genome), strict=True)
        for name, gene in zip(_columns(decision), genes, strict=True)
    }


def _nearest(space: Space, params: Mapping[str, int]) -> Genome:
    return tuple(
        decision.nearest(np.array([params[name] for name in _columns(decision)]))
        for decision in space.decisions
    )
