"""Lessons from the record file, by network, and the command that trains on them."""

import json
import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from polysci.cli import main
from polysci.cost.shortlist import predict_seconds
from polysci.errors import SpecError, WisdomError
from polysci.ops import parse_key, parse_problem
from polysci.ops.layer_lists import load
from polysci.ops.problem import Problem
from polysci.runtime.measurement import host_of
from polysci.target.host import detect
from polysci.target.machine import assume_rates
from polysci.tune import context as ranker_context
from polysci.tune import context_of, training
from polysci.tune.calibrate import machine_path
from polysci.tune.training import training_samples
from polysci.tune.wisdom import Wisdom
from tests.support import samples

TARGET = detect("portable")  # the same rates on every machine, and never calibrated
HOST, FEATURES = host_of(TARGET), TARGET.isa.features
OWN = parse_problem("mb1ic20ih9oc24kh3ph1")
NETWORKS = {"resnet50": 15, "vgg16": 7, "yolov2": 5}  # a layer of each that no other has


def tried(wisdom: Wisdom, problem: Problem, count: int = 20, host: str = HOST) -> None:
    """Times as the model predicts, but packing is worse than it thinks."""
    context = context_of(problem, 1, TARGET)
    seconds = {
        str(plan): predict_seconds(context, plan) * (2.0 if plan.pack else 1.0)
        for plan in samples.members(context, count)
    }
    wisdom.record_trials(problem.key, 1, FEATURES, seconds, host=host)


@pytest.fixture
def wisdom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Wisdom:
    """An empty file, in a cache directory that knows the rates of TARGET."""
    tmp_path.chmod(0o700)
    monkeypatch.setenv("POLYSCI_CACHE_DIR", str(tmp_path))
    machine_path(TARGET).write_text(assume_rates(TARGET).to_json(), encoding="utf-8")
    return Wisdom()


@pytest.fixture
def full(wisdom: Wisdom) -> Wisdom:
    for network, number in NETWORKS.items():
        tried(wisdom, load(network)[number])
    tried(wisdom, OWN)
    return wisdom


@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
def test_a_key_gives_its_problem_back(layout: str) -> None:
    for problem in (
        *load("mobilenet_v1", layout)[:4],
        parse_problem("mb3ic4ih9iw5oc7kh3kw2", layout),
    ):
        assert parse_key(problem.key) == problem.with_(name="", multiplicity=1)
    nest = parse_problem("nest O[8][4]+=A[8][2]*B[2][4] for i:8 j:4 k:2 : O[i][j] A[i][k] B[k][j]")
    assert parse_key(nest.key).key == nest.key


@pytest.mark.parametrize("key", ["", "mb1", "mb1ic4ih9oc7kh3 nhwc bf16", "a b c", "nest f32"])
def test_what_is_no_key_is_refused(key: str) -> None:
    with pytest.raises(SpecError):
        parse_key(key)


@pytest.mark.exhaustive
def test_layers_are_grouped_by_network_and_unknown_ones_stand_alone(full: Wisdom) -> None:
    tried(full, load("resnet50", "nchw")[15].with_(N=4))
    tried(full, OWN.with_(N=2), host="another machine")
    found = {sample.group: sample for sample in training_samples(full, TARGET)}
    assert sorted(found) == sorted([*NETWORKS, OWN.key])
    assert [sample.group for sample in training_samples(full, TARGET)].count("resnet50") == 2
    for sample in found.values():
        assert len(sample.schedules) == len(sample.seconds) == 20
        assert (sample.seconds > 0).all()


@pytest.mark.exhaustive
def test_records_that_mean_nothing_here_are_left_out(full: Wisdom) -> None:
    before = [sample.schedules for sample in training_samples(full, TARGET)]
    nonsense = {"no arrow": 1.0, "k:8 p > brgemm_avx512_f32_99x99": 1.0, "z:3 > depthwise": 1.0}
    full.record_trials(OWN.key, 1, FEATURES, nonsense, host=HOST)
    full.record_trials("no problem f32", 1, FEATURES, {"k:8 > k": 1.0}, host=HOST)
    assert [sample.schedules for sample in training_samples(full, TARGET)] == before


@pytest.mark.exhaustive
def test_too_little_says_how_much_there_is_and_how_to_get_more(wisdom: Wisdom) -> None:
    with pytest.raises(WisdomError, match=r"at least 50 schedules of 3 layers.*got 0 of 0; .*opti"):
        training_samples(wisdom, TARGET)
    tried(wisdom, OWN, 55)
    with pytest.raises(WisdomError, match="got 55 of 1"):
        training_samples(wisdom, TARGET)
    with pytest.raises(WisdomError, match=r"with 7 thread\(s\); got 0 of 0"):
        training_samples(wisdom, TARGET, 7)


@pytest.mark.exhaustive
def test_the_command_trains_and_its_weights_are_used(
    full: Wisdom, capsys: pytest.CaptureFixture[str]
) -> None:
    assert context_of(OWN, 1, TARGET).weights is None
    assert main(["learn", "--isa", "portable"]) == 0
    out, told = capsys.readouterr()
    assert "[4/4] learning without" in told and "learning from all 4 layers" in told
    assert all(name in out for name in (*NETWORKS, "all", str(ranker_context.weights_path(TARGET))))
    weights = context_of(OWN, 1, TARGET).weights
    assert weights is not None and weights == ranker_context.load_weights(TARGET)
    assert (weights.layers, weights.schedules) == (4, 80)
    assert 0.5 < weights.accuracy <= 1
    words = ["explain", str(OWN), "--isa", "portable", "--ranker", "learned", "--json"]
    assert main(words) == 0
    assert json.loads(capsys.readouterr().out)["schedule"]


@pytest.mark.exhaustive
def test_the_command_tells_json(full: Wisdom, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["learn", "--isa", "portable", "--json", "--wisdom", str(full.path)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["weights"] == str(ranker_context.weights_path(TARGET))
    assert set(found["held_out"]) == {*NETWORKS, OWN.key, "all"}
    assert found["held_out"]["all"]["layers"] == 4


@pytest.mark.exhaustive
def test_one_network_alone_is_learned_and_not_judged(
    wisdom: Wisdom, capsys: pytest.CaptureFixture[str]
) -> None:
    for problem in load("vgg16")[5:8]:
        tried(wisdom, problem)
    assert main(["learn", "--isa", "portable"]) == 0
    out, told = capsys.readouterr()
    assert "only vgg16 was measured" in told and "held out" not in out
    weights = ranker_context.load_weights(TARGET)
    assert weights is not None and weights.accuracy == 0.0


@pytest.mark.exhaustive
def test_the_command_fails_with_too_little(
    wisdom: Wisdom, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["learn", "--isa", "portable"]) == 1
    assert "got 0 of 0" in capsys.readouterr().err
    assert not ranker_context.weights_path(TARGET).exists()


def test_damaged_weights_are_told_and_left_aside(
    wisdom: Wisdom, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    ranker_context.weights_path(TARGET).write_text('{"format": "pickle"}')
    with caplog.at_level(logging.WARNING):
        assert context_of(OWN, 1, TARGET).weights is None
    assert "fields: expected exactly" in caplog.text and "'polysci learn'" in caplog.text
    assert main(["explain", str(OWN), "--isa", "portable", "--ranker", "learned"]) == 2
    assert "nothing was learned" in capsys.readouterr().err


@pytest.mark.exhaustive
def test_equal_times_teach_nothing(full: Wisdom) -> None:
    same = [replace(one, seconds=np.ones(20)) for one in training_samples(full, TARGET)]
    with pytest.raises(SpecError, match="times that differ by more than 2%"):
        training.train(same)
