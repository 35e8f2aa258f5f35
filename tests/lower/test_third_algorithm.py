"""A third algorithm enters by one row: searched, recorded, checked, explained and exported."""

import json
from pathlib import Path

import numpy as np
import pytest

from polysci import tune
from polysci.cli import main
from polysci.errors import SpecError, UnsupportedError
from polysci.lower import registry
from polysci.lower.choice import candidates, key_of, resolve_algorithm
from polysci.lower.registry import ALGORITHMS, AlgorithmRow, algorithm_named
from polysci.measure.bench import Bench, CandidateError
from polysci.measure.check import check
from polysci.measure.error_bound import Reals
from polysci.measure.integer_reference import Arrays
from polysci.ops.convolutions import Conv2d
from polysci.runtime.build import cache
from polysci.space.schedule import parse
from polysci.target.host import detect
from polysci.tune.wisdom import Wisdom
from tests.support.samples import fixed_context

CONV = Conv2d(N=1, C=8, H=6, W=6, K=16, R=1, S=1)
WIDE_FILTER = CONV.with_(R=3, S=3, pad=1)
TARGET = detect("portable")
SPEC = ["mb1ic8ih6oc16kh1", "--isa", "portable", "--algorithm", "pointwise"]


@pytest.fixture(autouse=True)
def row(monkeypatch: pytest.MonkeyPatch) -> None:
    """The row; nothing else of the package knows of the algorithm."""
    added = AlgorithmRow("tests.support.pointwise:Pointwise", "takes 1x1 filters only")
    monkeypatch.setattr(registry, "ALGORITHMS", {**ALGORITHMS, "pointwise": added})


def test_its_rules_decide_what_auto_considers() -> None:
    assert resolve_algorithm(CONV, "auto") == "auto"
    assert resolve_algorithm(WIDE_FILTER.with_(stride=3), "auto") == "direct"
    assert key_of(CONV, "pointwise") == f"{CONV.key} pointwise"
    with pytest.raises(UnsupportedError, match="pointwise: only convolutions of 1x1 filters"):
        resolve_algorithm(WIDE_FILTER, "pointwise")
    texts = [str(it.schedule) for it in candidates(CONV, fixed_context(CONV), 8, "auto")]
    assert {text.startswith("pointwise() ") for text in texts[:4]} == {False, True}


@pytest.mark.exhaustive
def test_a_search_records_and_reuses_its_schedules(tmp_path: Path) -> None:
    wisdom = Wisdom(tmp_path / "wisdom.sqlite")
    won = tune.optimize(CONV, algorithm="pointwise", target=TARGET, wisdom=wisdom)
    assert won.measurement and not any(trial.fault for trial in won.trials)
    assert all(str(trial.schedule).startswith("pointwise() ") for trial in won.trials)
    again = tune.optimize(CONV, "wisdom-only", algorithm="pointwise", target=TARGET, wisdom=wisdom)
    assert again.schedule == won.schedule and again.source == won.source
    direct = tune.optimize(CONV, "estimate", target=TARGET, wisdom=wisdom)
    assert direct.schedule.transform is None


@pytest.mark.exhaustive
def test_a_check_takes_its_integers_and_its_bound() -> None:
    schedule = tune.optimize(CONV, "estimate", algorithm="pointwise", target=TARGET).schedule
    assert [(it.mode, it.fault) for it in check(CONV, [schedule])] == [("exact", ""), ("bound", "")]
    inputs = Arrays.of(CONV, 0, algorithm_named("pointwise").exact_inputs(CONV)).inputs
    assert set(np.unique(inputs["x"])) == {-1, 0, 1} and set(np.unique(inputs["w"])) == {-2, 0, 2}
    own, direct = (Reals.of(CONV, 0, algorithm_named(name)) for name in ("pointwise", "direct"))
    assert own.terms == direct.terms + 1


@pytest.mark.exhaustive
def test_wrong_code_is_found_with_its_integers() -> None:
    result = tune.optimize(CONV, "estimate", algorithm="pointwise", target=TARGET)
    path = cache.build(result.source.file.replace(".bias = bias", ".bias = 0"))
    with Bench(CONV) as bench, pytest.raises(CandidateError, match="wrong result"):
        bench.check(path, tune.SYMBOL, result.schedule)


@pytest.mark.exhaustive
def test_the_commands_know_it(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["explain", *SPEC]) == 0
    assert "Pointwise\n  pointwise() " in capsys.readouterr().out
    assert main(["explain", *SPEC, "--json", "--source"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["schedule"].startswith("pointwise() ") and "primitive" in told["source"]
    assert main(["explain", *SPEC, "--plot", str(tmp_path / "it.svg")]) == 2
    assert "use --algorithm direct" in capsys.readouterr().err
    assert main(["check", *SPEC, "--level", "estimate"]) == 0
    assert "2 passed, 0 failed" in capsys.readouterr().out
    page = tmp_path / "page.html"
    assert main(["report", *SPEC, "--level", "estimate", "-o", str(page)]) == 0
    assert "pointwise()" in page.read_text(encoding="utf-8")
    assert main(["export", *SPEC, "--level", "estimate", "-o", str(tmp_path / "c")]) == 0


@pytest.mark.parametrize("word", ["fft(3)", "direct()", "pointwis()"])
def test_a_transform_that_no_row_has_is_refused(word: str) -> None:
    schedule = parse(f"{word} k:8 > brgemm_portable_f32_4x4")
    with pytest.raises(
        SpecError,
        match="expected a transform named winograd, winograd_f16, residues, bilinear, pointwise",
    ):
        tune.emit(CONV, schedule)
