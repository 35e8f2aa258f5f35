"""The lines of kernels.def: what they mean, and what is refused."""

import pytest

from polysci.errors import SpecError
from polysci.target.extensions import resource
from polysci.target.isas import DEVICE_ISAS, ISAS
from polysci.target.packages import KernelRange, parse_ranges

LINE = "KERNELS(brgemm, avx512, f32, rows 1..28, vectors 1)"


def test_a_line_is_a_range_of_register_tiles() -> None:
    (tiles,) = parse_ranges(f"# a comment\n\n{LINE}\n", "a list", ISAS)
    assert tiles == KernelRange("brgemm", "avx512", "f32", 1, 28, 1)
    assert str(tiles) == LINE


def test_the_list_is_short_and_is_read_whole() -> None:
    lists = {"kernels.def": 380, "kernels_cuda.def": 42, "kernels_opencl.def": 48}
    for name, count in lists.items():
        isas = ISAS if name == "kernels.def" else DEVICE_ISAS
        text = resource("microkernels", name).read_text(encoding="utf-8")
        lines = [line for line in text.splitlines() if not line.startswith("#")]
        assert list(map(str, parse_ranges(text, name, isas))) == lines
        assert len(lines) == count


def test_neighbouring_ranges_do_not_overlap() -> None:
    text = (
        LINE
        + "\n"
        + LINE.replace("1..28", "29..30")
        + "\n"
        + LINE.replace("vectors 1", "vectors 2")
    )
    assert len(parse_ranges(text, "a list", ISAS)) == 3


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("KERNEL(brgemm, avx512, f32, 9, 48)",
         r"expected KERNELS\(.*, rows FIRST\.\.LAST, vectors COUNT\), got 'KERNEL\("),
        (f"  {LINE}", "expected KERNELS"),
        (LINE.replace("avx512", "mmx"), "isa: no instruction set 'mmx'"),
        (LINE.replace("brgemm", "grouped"), "family: expected brgemm, fma, mma, depth"),
        (LINE.replace("f32", "f64"), "compute: expected one of f32, .*got 'f64'"),
        (LINE.replace("1..28", "3..2"), r"rows: expected 1 <= FIRST <= LAST <= 64, got 3\.\.2"),
        (LINE.replace("1..28", "1..65"), r"got 1\.\.65"),
        (LINE.replace("vectors 1", "vectors 0"), "vectors: expected 1 to 16, got 0"),
        (LINE.replace("1..28", "28..30"), r"rows 28\.\.30, vectors 1\) overlaps KERNELS.* 1\.\.28"),
    ],
)  # fmt: skip
def test_what_is_no_range_is_refused(line: str, message: str) -> None:
    with pytest.raises(SpecError, match=f"^my.def(, line 3)?: .*{message}"):
        parse_ranges(f"{LINE}\n# two\n{line}\n", "my.def", ISAS)
