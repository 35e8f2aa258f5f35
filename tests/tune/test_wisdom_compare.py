"""Records of two machines: what schedules cost on the other one, and one setting for all."""

from pathlib import Path

import pytest

from polysci.errors import SpecError, WisdomError
from polysci.tune.wisdom import Wisdom
from polysci.tune.wisdom.compare import (
    MachineRecords,
    best_settings,
    compare_machines,
    read_machine,
)
from tests.support.records import HERE, put

THERE = "fedcba987654"
P, Q = "mb1ic64", "mb1ic32"
FIRST, SECOND = "p:2 > brgemm_avx2_f32_6x16", "k:8 p:3 > brgemm_avx2_f32_6x16"
THIRD, WIDE = "p > brgemm_avx2_f32_4x24", "p:2 > brgemm_avx512_f32_6x16"


def file(path: Path, host: str, *rows: tuple[str, str, float], level: str = "measure") -> Path:
    for problem, schedule, seconds in rows:
        put(Wisdom(path), problem, schedule=schedule, seconds=seconds, host=host, level=level)
    return path


@pytest.fixture
def here(tmp_path: Path) -> Path:
    rows = ((P, FIRST, 1e-3), (P, SECOND, 2e-3), (Q, SECOND, 3e-3), (Q, THIRD, 3.3e-3))
    return file(tmp_path / "here.sqlite", HERE, *rows)


@pytest.fixture
def there(tmp_path: Path) -> Path:
    path = file(tmp_path / "there.sqlite", THERE, (P, SECOND, 1e-3), (Q, WIDE, 4e-3))
    file(path, THERE, (P, FIRST, 1.5e-3), level="trial")
    return file(path, THERE, ("mb1ic7", FIRST, 1e-3))


def test_the_best_of_each_on_the_other(here: Path, there: Path) -> None:
    pair = compare_machines(read_machine(here), read_machine(there))
    q, p = pair.layers
    assert (p.problem, p.threads, p.seconds) == (P, 1, (1e-3, 1e-3))
    assert p.first_on_second.schedule == FIRST and p.first_on_second.loss == pytest.approx(1.5)
    assert p.second_on_first.schedule == SECOND and p.second_on_first.loss == pytest.approx(2)
    assert q.seconds == (3e-3, 4e-3)
    assert q.first_on_second.loss is None and q.second_on_first.loss is None
    assert pair.losses == (pytest.approx(1.5), pytest.approx(2))
    rows = pair.json_rows()
    assert len(rows) == 3 and rows[-1]["summary"]["geomean_loss"] == pair.losses


def test_a_kernel_of_another_isa_is_near(tmp_path: Path, here: Path) -> None:
    other = file(tmp_path / "o.sqlite", THERE, (P, WIDE, 2e-3), (P, THIRD, 1e-3))
    (layer,) = compare_machines(read_machine(here), read_machine(other)).layers
    assert layer.first_on_second.near and layer.first_on_second.loss == pytest.approx(2)
    assert layer.second_on_first.loss is None and not layer.second_on_first.near


def test_one_setting_for_all(here: Path) -> None:
    machine = read_machine(here)
    kernel, form = best_settings(list(machine.layers.values()))
    assert (kernel.kind, kernel.text, kernel.layers) == ("kernel", "brgemm_avx2_f32_6x16", 2)
    assert kernel.loss == pytest.approx(1)
    assert (form.kind, form.text) == ("schedule without sizes", "k p > brgemm_avx2_f32_6x16")
    assert form.loss == pytest.approx(2**0.5)
    assert best_settings([machine.layers[P, 1]]) == ()


def test_disturbed_times_are_the_best_only_where_they_are_alone(tmp_path: Path) -> None:
    wisdom = Wisdom(tmp_path / "w.sqlite")
    put(wisdom, P, schedule=FIRST, seconds=2e-3)
    put(wisdom, P, schedule=SECOND, seconds=1e-3, dropped=0.9)
    put(wisdom, Q, schedule=THIRD, seconds=1e-3, dropped=0.9)
    layers = read_machine(wisdom.path).layers
    assert layers[P, 1][0].schedule == FIRST and layers[Q, 1][0].schedule == THIRD


def test_exported_files_and_machines_in_them(tmp_path: Path, here: Path) -> None:
    file(here, THERE, (P, SECOND, 1e-3))
    Wisdom(here).export(tmp_path / "w.json")
    for path in (here, tmp_path / "w.json"):
        most = read_machine(path)
        assert (most.host, most.others, len(most.records)) == (HERE, 1, 4)
        assert [its.schedule for its in read_machine(path, "fed").records] == [SECOND]
    with pytest.raises(SpecError, match=f"no records of a machine 'x'; there are: {HERE}, {THERE}"):
        read_machine(here, "x")


def test_files_that_cannot_be_compared(tmp_path: Path, here: Path) -> None:
    other = file(tmp_path / "other.sqlite", THERE, ("mb1ic7", FIRST, 1e-3))
    with pytest.raises(SpecError, match="no problem in common, of 2 and 1"):
        compare_machines(read_machine(here), read_machine(other))
    with pytest.raises(WisdomError, match="cannot be read: No such file"):
        read_machine(tmp_path / "nothing")
    other.write_bytes(here.read_bytes()[:5000])
    with pytest.raises(WisdomError, match="damaged"):
        read_machine(other)
    other.write_text("{}")
    with pytest.raises(WisdomError, match="expected an object with"):
        read_machine(other)
    assert isinstance(read_machine(here), MachineRecords)
