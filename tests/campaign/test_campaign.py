"""The random campaign: a few cases of a fixed seed, and in ``make test-all`` many of each day."""

from collections.abc import Iterator
from random import Random

import pytest

from tests.support.campaign.axes import Case
from tests.support.campaign.child import KINDS, Campaign

FEW = {"layer": 2, "network": 1}  # cases in ``make test``
MANY = {"layer": 25, "network": 6}  # cases of a part
PARTS = 24


@pytest.fixture(scope="module")
def campaign() -> Iterator[Campaign]:
    made = Campaign()
    yield made
    made.close()


def cases(kind: str, seed: str, count: int) -> list[Case]:
    random = Random(f"{kind} {seed}")
    return [KINDS[kind].draw(random) for _ in range(count)]


def run(campaign: Campaign, chosen: list[Case]) -> None:
    """All of them, whatever is wrong with some."""
    wrong = [told for case in chosen if (told := campaign.wrong(case))]
    assert not wrong, "\n\n".join(wrong)


@pytest.mark.parametrize("kind", KINDS)
def test_a_few_cases(campaign: Campaign, kind: str) -> None:
    run(campaign, cases(kind, "few", FEW[kind]))


@pytest.mark.exhaustive
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("kind", KINDS)
def test_cases_of_the_day(
    campaign: Campaign, kind: str, part: int, request: pytest.FixtureRequest
) -> None:
    seed = request.config.getoption("--campaign-seed")
    run(campaign, cases(kind, f"{seed} {part}", MANY[kind]))


@pytest.mark.parametrize("kind", KINDS)
def test_the_text_of_a_case_is_the_case(kind: str) -> None:
    for case in cases(kind, "text", 20):
        assert KINDS[kind].parse(str(case)) == case


@pytest.mark.sampled
@pytest.mark.parametrize("kind", KINDS)
def test_a_seed_gives_the_same_cases(kind: str) -> None:
    assert cases(kind, "again", 2) == cases(kind, "again", 2)
