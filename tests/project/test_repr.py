"""The repr of what users hold is one short line, however large the thing is."""

from dataclasses import replace

import pytest

import polysci
from polysci.target.host import detect
from tests.support.networks import network_of, read
from tests.support.onnxmodels import model, node, reals

MOST = 300  # characters
TINY = "mb1ic8ih5oc8kh3ph1"
LONG = "a" * 400


def compiled(problem: str) -> polysci.Result:
    return polysci.optimize(polysci.parse_problem(problem), "estimate", target=detect("portable"))


@pytest.mark.sampled
@pytest.mark.parametrize("name", ["", LONG])
def test_results_sources_primitives_and_weights(name: str) -> None:
    result = compiled(f'{TINY}n"{name}"' if name else TINY)
    primitive = result.primitive()
    packed = primitive.pack_weights(reals(8, 8, 3, 3))
    for thing in (result, result.source, primitive, packed):
        text = repr(thing)
        assert len(text) <= MOST and text.startswith(f"{type(thing).__name__}("), text
        assert "brgemm_portable" in text
    assert TINY[:8] in repr(result) and "not measured" in repr(result)


def test_long_schedules_are_cut() -> None:
    result = compiled(TINY)
    long = replace(result.schedule, kernel=LONG)
    source = replace(result.source, schedule=long)
    result = replace(result, schedule=long, source=source)
    for thing in (result, replace(source, symbol=LONG), result.primitive()):
        assert len(repr(thing)) <= MOST and "aaa..." in repr(thing)


def test_networks() -> None:
    inputs = {f"{LONG}{i}": [1, 2] for i in range(20)}
    add = node("Sum", " ".join(inputs), "y")
    text = repr(network_of(read(model([add], inputs, {"y": None}))))
    assert len(text) <= MOST
    assert text.startswith("Network('small', 1 stages, inputs='aaa")
