"""Races between items that share memory: what isl finds, against all pairs tried."""

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from polysci.polyhedral.barriers import Race, SharedUse, find_race

ITEMS = 6


def use(
    writes: bool, element: str, epoch: str = "0", turns: int = 1, buffer: str = "b"
) -> SharedUse:
    text = (
        f"{{ [at] -> [epoch, e] : exists i : 0 <= at < {ITEMS} and 0 <= i < {turns} and "
        f"epoch = {epoch} and e = {element} }}"
    )
    return SharedUse(buffer, writes, text)


def test_uses_of_different_epochs_are_in_order() -> None:
    assert find_race([use(True, "at"), use(False, f"{ITEMS - 1} - at", "1")]) is None
    race = find_race([use(True, "at"), use(False, f"{ITEMS - 1} - at", "0")])
    assert race and sum(race.items) == ITEMS - 1
    assert str(Race("b", (0, 5))) == (
        "b: work-items 0 and 5 use an element, one writes it, and no barrier stands between"
    )


def test_items_may_use_their_own_elements_and_all_may_read() -> None:
    assert find_race([use(True, "at"), use(False, "at")]) is None
    assert find_race([use(False, "0"), use(False, "at")]) is None
    assert find_race([use(True, "0")]) == Race("b", (1, 0)) or find_race([use(True, "0")])
    assert find_race([use(True, "at"), use(False, "0", buffer="c")]) is None


def test_two_stages_need_one_barrier_a_step_and_one_stage_two() -> None:
    for stages, passed, legal in ((2, 1, True), (1, 1, False), (1, 2, True), (2, 0, False)):
        place = f"{ITEMS} * (i mod {stages})"
        write = use(True, f"at + {place}", f"{passed} * i", 5)
        read = use(False, f"{ITEMS - 1} - at + {place}", f"{passed} * i + {min(passed, 1)}", 5)
        assert (find_race([write, read]) is None) == legal


coefficients = st.tuples(*[st.integers(0, 3)] * 4)


@given(st.lists(st.tuples(st.booleans(), coefficients), min_size=1, max_size=3))
def test_as_trying_all_pairs_finds(drawn: list[tuple[bool, tuple[int, ...]]]) -> None:
    uses, places = list[SharedUse](), list[tuple[int, bool, int, int]]()
    for writes, (a, b, c, d) in drawn:
        uses.append(use(writes, f"{a} * at + {b} * i", f"{c} * i + {d}", 3))
        places += [(at, writes, c * i + d, a * at + b * i) for at in range(ITEMS) for i in range(3)]
    racing = any(
        one[0] != two[0] and (one[1] or two[1]) and one[2:] == two[2:]
        for one, two in combinations(places, 2)
    )
    assert (find_race(uses) is not None) == racing
