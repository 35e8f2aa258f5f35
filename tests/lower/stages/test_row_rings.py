"""How much room the rings of a row fusion have, and how seldom they move for it."""

from polysci.lower.stages.row_fusion import capacities
from polysci.program.passes.operands import RowWindow
from polysci.program.passes.row_turns import RowRead, RowTurns

# The first layers of MobileNetV2: a copy, 3x3, depthwise, two 1x1, depthwise, 1x1.
HEIGHTS = (224, 112, 112, 112, 112, 56, 56)
SIZES = [2688, 14336, 14336, 7168, 43008, 21504]  # bytes a row
WINDOWS = ((2, -1, 1), (1, -1, 1), (1, 0, 0), (1, 0, 0), (2, -1, 1), (1, 0, 0))
SPARE = 6 << 16


def first_layers() -> RowTurns:
    reads = (
        RowRead(at, at + 1, RowWindow(*window, HEIGHTS[at])) for at, window in enumerate(WINDOWS)
    )
    return RowTurns(HEIGHTS, (1,) * 7, (*reads,))


def moved(turns: RowTurns, rows: tuple[int, ...]) -> int:
    """Count the bytes that move, of readers that take turns as soon as they can."""
    total = 0
    for at, ((step, low, high), size, room) in enumerate(zip(WINDOWS, SIZES, rows, strict=True)):
        base = 0
        for made in range(turns.heights[at]):
            done = max(0, (made - high - 1) // step + 1)  # rows of the reader
            if made + 1 - base > room:
                base = min(made, max(0, done * step + low))
                total += (made - base) * size
    return total


def test_spare_room_is_where_rows_stay() -> None:
    """Rings whose readers leave no row are as small as can be; others move little."""
    turns = first_layers()
    rows, held = capacities(turns, SIZES, SPARE), turns.held()
    assert [held[at] for at in (2, 3, 5)] == [rows[at] for at in (2, 3, 5)] == [1, 1, 1]
    spare = sum((a - b) * size for a, b, size in zip(rows, held, SIZES, strict=True))
    assert 0.8 * SPARE < spare <= SPARE
    equal = tuple(a + SPARE // 6 // size for a, size in zip(held, SIZES, strict=True))
    assert moved(turns, rows) < 0.5 * moved(turns, equal)


def test_rings_are_no_larger_than_tensors() -> None:
    turns = first_layers()
    assert capacities(turns, SIZES, 1 << 30)[0] == HEIGHTS[0]
    assert list(capacities(turns, SIZES, 0)) == turns.held()
