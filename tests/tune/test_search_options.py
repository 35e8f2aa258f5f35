"""The options of a search as one value, or one by one."""

from dataclasses import fields

import pytest

import polysci
from polysci.errors import SpecError
from polysci.tune.search_options import CompileKeywords, SearchKeywords, SearchOptions

LAYER = polysci.parse_problem("mb1ic8ih6oc8kh3ph1")


def test_options_given_as_a_whole_are_those_given_one_by_one() -> None:
    whole = polysci.optimize(LAYER, SearchOptions("estimate", 2, isa="portable", quick=True))
    named = polysci.optimize(LAYER, "estimate", 2, isa="portable", quick=True)
    assert (whole.schedule, whole.threads, whole.level) == (named.schedule, 2, "estimate")


def test_every_field_is_a_keyword() -> None:
    names = {field.name for field in fields(SearchOptions)}
    assert names == {"level", "threads"} | SearchKeywords.__annotations__.keys()
    assert CompileKeywords.__annotations__.keys() < SearchKeywords.__annotations__.keys()


def test_what_is_wrong_is_named() -> None:
    with pytest.raises(TypeError, match=r"^agian: no option of a search; did you mean .again"):
        polysci.optimize(LAYER, "estimate", agian=True)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"^quick: given twice"):
        polysci.optimize(LAYER, SearchOptions(), quick=True)
    with pytest.raises(TypeError, match=r"^threads: given twice"):
        polysci.optimize(LAYER, SearchOptions(), 2)
    with pytest.raises(TypeError, match=r"^again: expected"):
        SearchOptions(again=1)  # type: ignore[arg-type]
    with pytest.raises(SpecError, match=r"^threads=0"):
        SearchOptions(threads=0)
    with pytest.raises(TypeError, match="unexpected keyword argument 'machine'"):
        polysci.compile(LAYER, machine=None)  # type: ignore[call-arg]
