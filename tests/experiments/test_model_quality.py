"""The judge of the model: kept machines, fits of one CPU and of the others, what became worse."""

import csv
from pathlib import Path
from types import ModuleType

import pytest

from polysci.target import machine_file
from polysci.target.coefficients import FITTED, TABLE
from tests.support.scripts import run_script

FOLDER = Path(__file__).parents[2] / "experiments"


@pytest.fixture
def judge(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(FOLDER)
    import model_quality

    return model_quality


def test_every_kept_cpu_has_a_machine_file_and_samples(judge: ModuleType) -> None:
    files = {path.stem for path in (FOLDER / "machines/sampled").glob("*.toml")}
    assert files == set(judge.SAMPLES) and len(files) > 1
    for name in files:
        machine_file.read(FOLDER / f"machines/sampled/{name}.toml")


@pytest.mark.exhaustive
def test_a_cpu_is_left_out_of_the_fit_of_the_others(judge: ModuleType) -> None:
    cpu = judge.read_cpu("amd-avx2", True)
    assert len(cpu.layers) == 6  # three of each of two settings
    own = list(cpu.rows_to_fit())
    assert len(own) == sum(len(at.seconds) for at in cpu.layers if at.setting == "1 warm")
    slower = [(3 * seconds, fixed, counts, 3 * least) for seconds, fixed, counts, least in own]
    kept, fitted, others = judge.machines_of(cpu, {"amd-avx2": own, "another": slower})
    for machine in (fitted, others):
        assert machine.peak == kept.peak and machine != kept
        for name in FITTED:
            assert TABLE[name].least <= machine.coefficient(name) <= TABLE[name].most
    assert others.coefficient("reload_ns") > fitted.coefficient("reload_ns")
    rows = list(judge.score(cpu, [kept, fitted, others]))
    assert len(rows) == 6 and all(0 < row[name] <= 1 for row in rows for name in judge.COLUMNS)


def test_what_became_worse_is_told(judge: ModuleType) -> None:
    row = {"cpu": "a", "setting": "1 warm", "kept": 0.9, "own": 1.0, "others": 0.8}
    better = {**row, "own": 0.95, "others": 0.9}
    assert judge.compare([row], [row]) == []
    assert judge.compare([row], [better]) == [
        "a 1 warm: own 1.000 to 0.950", "a 1 warm: worst, own 1.000 to 0.950",
    ]  # fmt: skip
    assert judge.summarise([row, {**row, "kept": 0.4}])["a", "1 warm"][:2] == [
        pytest.approx(0.6), 0.4,
    ]  # fmt: skip


@pytest.mark.slow
def test_the_table_of_the_project_is_today_s(tmp_path: Path) -> None:
    """The command of experiments/README.md prints what that page says."""
    done = run_script(FOLDER / "model_quality.py", "--output", tmp_path)
    assert done.returncode == 0, done.stderr
    with (tmp_path / "model_quality.csv").open(encoding="utf-8", newline="") as file:
        assert len(list(csv.DictReader(file))) > 200
    page = (FOLDER / "README.md").read_text(encoding="utf-8")
    for line in done.stdout.splitlines()[1:]:
        cpu, *rest = line.split()
        assert f"| {cpu} | {' '.join(rest[:2])} | {' | '.join(rest[2:])} |" in page
