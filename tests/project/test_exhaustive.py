"""Cases that make test leaves to make test-all, and shares of them."""

import pytest

from tests.support.exhaustive import mark, share


class Case(pytest.Item):
    """A case of the test ``test_numbers``."""

    originalname = "test_numbers"

    def runtest(self) -> None:
        raise AssertionError("collected only")


@pytest.mark.parametrize(
    ("marker", "kept"),
    [
        (pytest.mark.sampled, [0]),
        (pytest.mark.sampled(every=3), [0, 3, 6]),
        (pytest.mark.sampled(every=8), [0]),
        (pytest.mark.slow, [*range(7)]),
    ],
)
def test_sampled_tests_keep_some_cases(
    request: pytest.FixtureRequest, marker: pytest.MarkDecorator, kept: list[int]
) -> None:
    cases = [Case.from_parent(request.node.parent, name=f"case-{at}") for at in range(7)]
    for case in cases:
        case.add_marker(marker)
    mark(cases)
    assert [n for n, c in enumerate(cases) if not c.get_closest_marker("exhaustive")] == kept


def test_shares_are_all_of_it_once(request: pytest.FixtureRequest) -> None:
    items = request.session.items
    shares = [share(items, f"{number}/3") for number in range(3)]
    assert sorted(map(id, items)) == sorted(id(item) for part in shares for item in part)
    assert all(map(len, shares)) or len(items) < 20


@pytest.mark.parametrize("text", ["", "1", "3/3", "a/b", "-1/3", "0/0"])
def test_other_shares_are_refused(text: str) -> None:
    with pytest.raises(pytest.UsageError, match="--share"):
        share([], text)
