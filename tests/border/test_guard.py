"""Unexpected errors become one that asks to be reported; wrong arguments stay what they are."""

import functools

import pytest

import polysci
from polysci.border.guard import guard
from polysci.cli import main
from polysci.errors import SpecError, UnexpectedError
from polysci.tune.wisdom import Wisdom

SPEC = "mb1ic8ih6oc8kh3ph1"


def fail(*_: object) -> None:
    raise KeyError("mine")


def test_an_unexpected_error_asks_to_be_reported_and_says_where(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("polysci.tune.search.choice.key_of", lambda *_, **__: {}["lost"])
    with pytest.raises(UnexpectedError) as caught:
        polysci.compile(SPEC, "estimate")
    text = str(caught.value)
    assert "KeyError in _records (search.py:" in text and "report it" in text and "'lost'" in text
    assert isinstance(caught.value.__cause__, KeyError)


def test_the_command_line_reports_it_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("polysci.cli.layers.problems", fail)
    monkeypatch.setattr("polysci.cli.optimize.problems", fail, raising=False)
    assert main(["optimize", SPEC]) == 1
    said = capsys.readouterr().err
    assert said.startswith("polysci: error: unexpected KeyError") and "report it" in said
    with pytest.raises(KeyError):
        main(["--traceback", "optimize", SPEC])


class Callback:
    def __call__(self, *_: object) -> None:
        fail()


@pytest.mark.parametrize("callback", [fail, functools.partial(fail, 1), Callback()])
def test_errors_of_a_callback_are_the_callers(callback: object) -> None:
    with pytest.raises(KeyError, match="mine"):
        polysci.compile(SPEC, "estimate", progress=callback)
    options = polysci.SearchOptions("estimate", progress=callback)  # type: ignore[arg-type]
    with pytest.raises(KeyError, match="mine"):
        polysci.optimize(polysci.parse_problem(SPEC), options)


@guard
def convert(text: str, step: object = None) -> int:
    """A function of a package that is not ours."""
    return int(text)


def test_an_accidental_value_error_is_unexpected() -> None:
    assert convert("3") == 3
    with pytest.raises(UnexpectedError, match="ValueError"):
        convert("three")
    with pytest.raises(TypeError, match="argument"):
        convert()  # type: ignore[call-arg]


ARGUMENTS = {
    "isa": (5, "isa: expected str or None, got 5"),
    "target": (2, "target: expected Target or None, got 2"),
    "time_limit": ("x", "time_limit: expected int or float or None, got 'x'"),
    "level": (3, "level: expected str, got 3"),
    "threads": (1.5, "threads: expected int, got 1.5"),
    "algorithm": (3, "algorithm: expected str, got 3"),
    "wisdom": (3, "wisdom: expected Wisdom or None, got 3"),
}


@pytest.mark.parametrize("name", ARGUMENTS)
@pytest.mark.parametrize("function", [polysci.compile, polysci.compile_network])
def test_arguments_of_another_type(name: str, function: object) -> None:
    value, words = ARGUMENTS[name]
    with pytest.raises(TypeError) as caught:
        function("none.onnx" if function is polysci.compile_network else SPEC, **{name: value})
    assert str(caught.value) == words


def test_more_arguments_of_another_type() -> None:
    for name in ("ranker", "layout", "dtype"):
        with pytest.raises(TypeError, match=f"{name}: expected str"):
            polysci.compile(SPEC, **{name: 3})
    for name in ("dims", "name", "flags"):
        with pytest.raises(TypeError, match=f"{name}: expected"):
            polysci.compile_network("none.onnx", **{name: 3})
    with pytest.raises(TypeError, match="progress: expected a function or None, got 3"):
        polysci.compile(SPEC, progress=3)
    with pytest.raises(TypeError, match="isa: expected"):
        polysci.detect(isa=5)
    with pytest.raises(TypeError, match="threads: expected int, got True"):
        polysci.compile(SPEC, threads=True, wisdom=Wisdom())


def test_a_time_limit_is_positive() -> None:
    for function in (polysci.compile, polysci.compile_network):
        with pytest.raises(SpecError, match="time_limit=-1: expected a positive number"):
            function(SPEC, time_limit=-1)
