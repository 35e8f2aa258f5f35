"""What tuners found for networks is kept by what these compute, whatever its tensors are called."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from polysci.errors import SpecError, WisdomError
from polysci.frontends.notation.elaborate import elaborate
from polysci.frontends.notation.graphs import graph_of_comprehension
from polysci.frontends.notation.parser import parse
from polysci.graph.graph import Graph
from polysci.graph.passes.table import simplify
from polysci.network import tuning
from polysci.network.cache import NetworkRecords
from polysci.network.options import PlanOptions
from polysci.notation import compile as compile_notation
from polysci.target.host import detect
from polysci.tune import TunerOptions
from polysci.tune.records import check_record, parse_choices, write_choices
from polysci.tune.wisdom import Wisdom

PLAIN = """
def f(float(M,K) A, float(K,N) B, float(N) b) -> (C, D) {
  C(m,n) +=! A(m,k) * B(k,n)
  C(m,n) = fmax(C(m,n) + b(n), 0)
  D(m) max=! C(m,n)
}"""
RENAMED = """
def other(float(P,Q) X, float(Q,R) Y, float(R) z) -> (U, V) {
  U(i,j) +=! X(i,c) * Y(c,j)
  U(i,j) = fmax(U(i,j) + z(j), 0)
  V(i) max=! U(i,j)
}"""
MINIMUM = PLAIN.replace("max=!", "min=!")
SIZES = {"M": 6, "K": 16, "N": 24}
OPTIONS = PlanOptions("estimate", 1, "f32", "direct", detect("portable"))
ONE = TunerOptions("genetic", 2, 1, elites=0)


def graph_of(text: str, sizes: Mapping[str, int]) -> Graph:
    return simplify(graph_of_comprehension(elaborate(parse(text)), sizes)[0])


def records(text: str, sizes: Mapping[str, int], wisdom: Wisdom) -> NetworkRecords:
    return NetworkRecords(graph_of(text, sizes), OPTIONS, wisdom)


@pytest.fixture
def wisdom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Wisdom:
    monkeypatch.setattr(tuning, "state_path", lambda _: tmp_path / "state.jsonl")
    return Wisdom(tmp_path / "wisdom.sqlite")


def test_names_do_not_matter_and_sizes_do(wisdom: Wisdom) -> None:
    plain = records(PLAIN, SIZES, wisdom)
    renamed = records(RENAMED, dict(zip("PQR", SIZES.values(), strict=True)), wisdom)
    larger = records(PLAIN, SIZES | {"N": 32}, wisdom)
    assert plain.key == renamed.key != larger.key
    assert plain._key_prefix == larger._key_prefix
    assert list(plain.numbers.values()) == list(renamed.numbers.values())
    assert records(MINIMUM, SIZES, wisdom)._key_prefix != plain._key_prefix
    bf16 = NetworkRecords(plain.graph, replace(OPTIONS, dtype="bf16"), wisdom)
    assert bf16.key != plain.key


def test_individuals_are_texts() -> None:
    texts = {
        "layer mm:6x16x24 f32": "j:8 i:6 > brgemm_portable_f32_6x8", "apart v3": "otherwise",
    }  # fmt: skip
    assert parse_choices(write_choices(texts)) == texts
    with pytest.raises(SpecError, match="expected 'CHOICE = OPTION', got 'no such'"):
        parse_choices("no such; apart v3 = otherwise")
    with pytest.raises(SpecError, match="'apart v3' is given twice"):
        parse_choices("apart v3 = otherwise; apart v3 = as costs say")


def test_other_sizes_are_seeds_layer_by_layer(wisdom: Wisdom) -> None:
    schedule = "j:8 i:6 > brgemm_portable_f32_6x8"
    texts = {"layer mm:6x16x24 f32": schedule, "apart v3": "otherwise"}
    records(PLAIN, SIZES, wisdom).keep(texts, 1e-6, whole=True)
    larger = records(PLAIN, SIZES | {"N": 32}, wisdom)
    assert larger.best() is None
    assert larger.seeds(["mm:6x16x32 f32"], 5) == [
        {"layer mm:6x16x32 f32": schedule, "apart v3": "otherwise"}
    ]
    assert records(MINIMUM, SIZES, wisdom).seeds(["mm:6x16x24 f32"], 5) == []


@pytest.mark.exhaustive
def test_what_a_tuner_found_is_taken_whatever_names_and_moves_by_export(
    wisdom: Wisdom, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"isa": "portable", "wisdom": wisdom}
    tuned = compile_notation(PLAIN, SIZES, level="estimate", tuner=ONE, **options)
    (record,) = [r for r in wisdom.list() if r.problem.startswith("network ")]
    assert record.level == "patient" and parse_choices(record.schedule)
    moved = Wisdom(tmp_path / "moved.sqlite")
    wisdom.export(tmp_path / "wisdom.json")
    assert moved.import_(tmp_path / "wisdom.json", check_record) == len(wisdom.list())
    assert moved.import_(tmp_path / "wisdom.json", check_record) == 0
    calls: list[str] = []
    monkeypatch.setattr("polysci.network.compiled.retune", lambda *_: calls.append("retune"))
    sizes = dict(zip("PQR", SIZES.values(), strict=True))
    known = compile_notation(RENAMED, sizes, level="patient", isa="portable", wisdom=moved)
    assert not calls
    texts = [[str(s) for s in f.network.schedules.values()] for f in (tuned, known)]
    assert texts[0] == texts[1]
    rng = np.random.default_rng(0)
    a, b, c = (rng.integers(-4, 5, shape).astype(np.float32) for shape in ((6, 16), (16, 24), 24))
    expected = np.maximum(a @ b + c, 0)
    result = known(a, b, c)
    assert np.array_equal(result["U"], expected)
    assert np.array_equal(result["V"], expected.max(axis=1))


@pytest.mark.parametrize(
    "text", ["nothing", "colour v3 = otherwise", "apart v3 = perhaps", "apart = otherwise",
             "layer mm:6x16x24 f32 = p:8 > brgemm_portable_f32_6x8",
             "layer mm:6x16 f32 = j:8 i:6 > brgemm_portable_f32_6x8"],
)  # fmt: skip
def test_a_record_that_is_none_is_not_imported(text: str, wisdom: Wisdom, tmp_path: Path) -> None:
    records(PLAIN, SIZES, wisdom).keep({}, 1e-6, whole=True)
    assert wisdom.list() == ()  # no choices, no record
    where = records(PLAIN, SIZES, wisdom)
    wisdom.record(where.key, 1, "", "patient", text, 1e-6, host="elsewhere")
    wisdom.export(tmp_path / "wisdom.json")
    with pytest.raises(WisdomError, match="record 0"):
        Wisdom(tmp_path / "moved.sqlite").import_(tmp_path / "wisdom.json", check_record)


@pytest.mark.parametrize("key", ["network", "network zz f32 direct 1", "network ../x f32 direct 1"])
def test_a_key_that_is_none_is_not_imported(key: str, wisdom: Wisdom, tmp_path: Path) -> None:
    wisdom.record(key, 1, "", "patient", "apart v3 = otherwise", 1e-6, host="elsewhere")
    wisdom.export(tmp_path / "wisdom.json")
    with pytest.raises(WisdomError, match="record 0: problem 'network"):
        Wisdom(tmp_path / "moved.sqlite").import_(tmp_path / "wisdom.json", check_record)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "texts",
    [{"layer mm:6x16x24 f32": "j:8 i:6 > brgemm_portable_f32_99x99"}, {"colour v3": "otherwise"}],
)
def test_a_record_that_no_longer_works_is_ignored(
    texts: Mapping[str, str], wisdom: Wisdom, caplog: pytest.LogCaptureFixture
) -> None:
    records(PLAIN, SIZES, wisdom).keep(texts, 1e-6, whole=True)
    function = compile_notation(PLAIN, SIZES, level="estimate", isa="portable", wisdom=wisdom)
    assert "ignoring the record of f" in caplog.text
    zeros = function(*(np.zeros(shape, np.float32) for shape in ((6, 16), (16, 24), (24,))))
    assert not zeros["C"].any()
