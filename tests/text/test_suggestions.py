"""Misspelt names: what is suggested, and where."""

from __future__ import annotations

import pytest

from polysci.cli import main
from polysci.cost import RANKERS
from polysci.cost.shortlist import ranker_of
from polysci.errors import SpecError
from polysci.lower.choice import resolve_algorithm
from polysci.numerics.dtypes import PRECISIONS, precision_named
from polysci.ops import layer_lists, parse_problem
from polysci.target.isas import ISAS, isa_named
from polysci.text.names import suggest
from polysci.tune import LEVELS, optimize

NAMES = ("traffic", "tiles", "rules", "random")
LAYER = "mb1ic16ih8oc16oh8kh3ph1"


@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("trafic", "; did you mean 'traffic'?"),
        ("TRAFFIC", "; did you mean 'traffic'?"),
        ("tuiles", "; did you mean 'tiles' or 'rules'?"),
        ("ranodm", "; did you mean 'random'?"),
        ("winograd", ""),
        ("", ""),
        ("traffic" * 100_000, ""),
    ],
)
def test_the_closest_names_are_suggested(word: str, text: str) -> None:
    assert suggest(word, NAMES) == text


def test_names_keep_their_case() -> None:
    assert suggest("onednn", ["oneDNN"]) == "; did you mean 'oneDNN'?"


@pytest.mark.parametrize("names", [RANKERS, ISAS, LEVELS, PRECISIONS, layer_lists.names()])
def test_every_name_with_a_letter_doubled_is_suggested(names: object) -> None:
    known = list(names)  # type: ignore[call-overload]
    for name in known:
        assert repr(name) in suggest(name[:2] + name[1:], known)


def test_errors_that_list_names_suggest_one() -> None:
    with pytest.raises(SpecError, match=r"; did you mean 'traffic'\?$"):
        ranker_of("trafic")
    with pytest.raises(SpecError, match=r"; did you mean 'avx2'"):
        isa_named("avx")
    with pytest.raises(SpecError, match=r"; did you mean 'bf16'"):
        precision_named("bf6")
    with pytest.raises(SpecError, match=r"; did you mean 'patient'\?$"):
        optimize(parse_problem(LAYER), level="patent")
    with pytest.raises(SpecError, match=r"; did you mean 'winograd'\?$"):
        resolve_algorithm(parse_problem(LAYER), "winogard")
    with pytest.raises(SpecError, match=r"; did you mean 'resnet50' or 'resnext50'\?$"):
        layer_lists.load("resnet5")


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (["optimise", "resnet50"], "optimize"),
        (["optimize", LAYER, "--level", "exaustive"], "exhaustive"),
        (["check", LAYER, "--mode", "exat"], "exact"),
        (["wisdom", "lst"], "list"),
    ],
)
def test_choices_of_the_command_line(
    arguments: list[str], name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(arguments)
    assert f"; did you mean {name!r}?" in capsys.readouterr().err


def test_a_misspelt_network_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["optimize", "resnet5"]) == 2
    assert "; did you mean 'resnet50' or 'resnext50'?" in capsys.readouterr().err
