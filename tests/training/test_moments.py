"""Statistics of batch normalisation by the layer before it: those of a pass over its results."""

from dataclasses import replace

import numpy as np
import pytest

from polysci import layers, training
from polysci.frontends.layers import build_model
from polysci.graph.simplify import simplify
from polysci.network import prepare, retune
from polysci.network.planned import plan_network
from polysci.network.prepare import CompileOptions
from polysci.program.stages import LayerStage
from polysci.target.host import detect
from polysci.target.machine import assume_rates
from polysci.training import Trainer
from tests.support.flags import QUICK
from tests.support.networks import network_of

RNG = np.random.default_rng(0)
X, CLASSES = RNG.normal(size=(4, 3, 12, 12)).astype(np.float32), RNG.integers(0, 10, 4)
MODEL = [
    layers.Conv2d(3, 24, 3, stride=2, padding=1), layers.BatchNorm2d(24), layers.ReLU(),
    layers.Conv2d(24, 20, 1), layers.ReLU(), layers.BatchNorm2d(20),
    layers.AdaptiveAvgPool2d(1), layers.Flatten(), layers.Linear(20, 10),
]  # fmt: skip


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers sum their results whatever it takes."""
    monkeypatch.setattr(retune, "gain_of_moments", lambda *_: 1.0)


def trainer_of(threads: int = 1, **options: object) -> Trainer:
    optimizer = training.SGD(lr=0.05, momentum=0.9)
    return training.compile_training(
        MODEL, X.shape, "cross_entropy", optimizer, level="estimate", threads=threads, flags=QUICK,
        **options,
    )  # fmt: skip


def counted(trainer: Trainer) -> int:
    """Layers that write moments."""
    stages = trainer.network.prepared.program.stages
    return sum(bool(stage.moments) for stage in stages if isinstance(stage, LayerStage))


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize(("threads", "large"), [(1, 0), (2, 1000)])
def test_statistics_are_those_of_float64(threads: int, large: int) -> None:
    """Running ones; results of a large mean are rounded to 2^-15, and their squares to 1/16."""
    parts = [layers.Conv2d(3, 20, 3, stride=2), layers.BatchNorm2d(20, momentum=0.3)]
    made = build_model(parts, [3, 3, 13, 13], training=True)
    x = RNG.normal(size=(3, 3, 13, 13)).astype(np.float32)
    values = {"x": x, **made.parameters, **made.state}
    values["0.bias"] = values["0.bias"] + np.float32(large)
    network = network_of(made.graph, threads)
    moments = [stage.moments for stage in network.prepared.program.layers()]
    assert len(moments) == 1 and all(moments)
    windows = np.lib.stride_tricks.sliding_window_view(x.astype(float), (3, 3), (2, 3))[
        :, :, ::2, ::2
    ]
    y = np.einsum("ncpqrs,kcrs->kpqn", windows, values["0.weight"]).reshape(20, -1)
    results = network(values)
    mean, variance = (results[made.replaced[f"1.running_{name}"]] for name in ("mean", "var"))
    wanted = (y + values["0.bias"].astype(float)[:, None]).mean(axis=1)
    np.testing.assert_allclose(mean, 0.3 * wanted, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(
        variance, 0.7 + 0.3 * y.var(axis=1, ddof=1), rtol=1e-6 + 1e-7 * large
    )


@pytest.mark.exhaustive
@pytest.mark.usefixtures("always")
@pytest.mark.parametrize(("threads", "dtype"), [(1, "f32"), (2, "f32"), (2, "bf16")])
def test_steps_are_those_with_passes(
    monkeypatch: pytest.MonkeyPatch, threads: int, dtype: str
) -> None:
    trainers = [trainer_of(threads, dtype=dtype)]
    monkeypatch.setattr(retune, "take_moments", lambda placed, *_: (placed, ()))
    trainers.append(trainer_of(threads, dtype=dtype, name="passes"))
    assert [counted(trainer) for trainer in trainers] == [2, 0]
    losses = [[trainer.step(X, CLASSES) for _ in range(3)] for trainer in trainers]
    tolerance = 2e-6 if dtype == "f32" else 2e-3  # a pass reads what was rounded to 8 bits
    assert losses[0] == pytest.approx(losses[1], rel=tolerance)
    for name, value in trainers[1].state.items():
        if "running" in name:
            scale = abs(value).max()
            np.testing.assert_allclose(
                trainers[0].state[name], value, rtol=0, atol=tolerance * scale, err_msg=name
            )


@pytest.mark.exhaustive
@pytest.mark.usefixtures("always")
def test_reproducible_steps_take_passes() -> None:
    steps = list[list[float]]()
    for threads in (1, 2):
        trainer = trainer_of(threads, reproducible=True)
        assert counted(trainer) == 0
        steps.append([trainer.step(X, CLASSES) for _ in range(2)])
    assert steps[0] == steps[1]


@pytest.mark.parametrize(("l2", "chosen"), [(1.0, True), (1e6, False)])
def test_a_layer_sums_where_a_second_read_takes_longer(
    monkeypatch: pytest.MonkeyPatch, l2: float, chosen: bool
) -> None:
    """All results lie in L2."""
    target = detect("portable")
    monkeypatch.setattr(prepare, "machine_for", lambda _: replace(assume_rates(target), l2=l2))
    made = build_model(MODEL[:2], [*X.shape], training=True)
    options = CompileOptions("estimate", 1, "f32", "direct", target)
    planned = plan_network(prepare.prepare(simplify(made.graph), target=target), options, "small")
    (layer,) = planned.prepared.program.layers()
    assert bool(layer.moments) is chosen
    refused = [it for it in planned.prepared.fusions if it.refusal.startswith("a pass")]
    assert len(refused) == (not chosen)
