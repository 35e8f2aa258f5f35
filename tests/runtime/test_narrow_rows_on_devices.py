"""Row fusions in groups on devices, of rows of 16 and of 8 bits: results are those of C."""

from itertools import product

import numpy as np
import onnx
import pytest

from polysci.ops import parse_problem
from polysci.program.passes.held_rows import held_bytes, held_elements, hold_rows
from polysci.space.schedule import parse
from tests.support.cuda_emulation import check_schedule, emulated
from tests.support.device_cases import check_device_layer
from tests.support.fusion_cases import CASES
from tests.support.narrow_fusions import (
    PLACES,
    check_narrow,
    halves,
    images,
    of_case,
    products,
)
from tests.support.rates import fuse_rows_everywhere

# Tiles of groups whose items read words of four 8-bit numbers: layer, layout, types, schedule.
READ = (
    ("mb1ic16ih7oc20oh7kh3ph1", "nhwc", "u8:s8:u8",
     "npq:16@by k:16@bx c:8 npq:4@ty k:4@tx > fma_{}4_i8_4x4"),
    ("mb2ic6ih7oc16oh4kh3ph1sh2", "nchw", "s8:s8:s8",
     "npq:8@bx k:16@by c:4 npq:2@tx k:8@ty > fma_{}4_i8_2x8"),
    ("mm:13x21x17 b=constant", "nhwc", "s8:s8:s32",
     "i:8@by j:8@bx k:8 i:4@ty j:4@tx > fma_{}4_i8_4x4"),
    ("g2mb1ic8ih6oc40kh1", "nhwc", "u8:s8:s8",
     "npq:4@by k:16@bx c:4 npq:2@ty k:8@tx > fma_{}4_i8_2x8"),
)  # fmt: skip


@pytest.fixture(autouse=True)
def everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stages run together wherever they may."""
    fuse_rows_everywhere(monkeypatch)


@pytest.mark.exhaustive
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("case", CASES)
def test_rows_of_bf16(case: str, place: str) -> None:
    """Sums of f32 are rounded where the layers apart round them; the last one may give f32."""
    network, fusion = check_narrow(of_case(case), place, "bf16", OF_BF16.get(case, MIXED))
    rows = hold_rows(network.code.placed, fusion.members, fusion.height)
    elements = held_elements(rows)
    assert {*elements} == {"bf16", *(["float32"] if case in WIDE else [])}
    least = 2 * elements["bf16"] + 4 * elements.get("float32", 0)
    assert least <= held_bytes(rows) < least + 32


QUICK = products, np.uint8, "cuda"
MIXED = {"bf16", "bf16:bf16:f32"}
OF_BF16 = {
    **{case: {"bf16"} for case in ("tokens", "halo", "strides", "bottleneck")},
    "several readers": {"bf16:bf16:f32"},
}
WIDE = {"several readers", "residuals"}  # some rows are results of f32 that loops read


@pytest.mark.exhaustive
@pytest.mark.parametrize("place", PLACES)
def test_ports_of_f16(place: str) -> None:
    """Layers between compute in f32."""
    check_narrow(halves(), place, "f32", {"f32"})


@pytest.mark.parametrize(
    ("make", "kind", "place"),
    [pytest.param(*case, marks=[pytest.mark.exhaustive] * (case != QUICK))
     for case in product((products, images), (np.uint8, np.int8), PLACES)],
)  # fmt: skip
def test_rows_of_8_bits(make: type, kind: type[np.generic], place: str) -> None:
    """Layers whose results have 8 bits, 32 bits, or are of f32 share a kernel."""
    sign = "u8" if kind is np.uint8 else "s8"
    types = {f"{sign}:s8:{sign}", *([f"{sign}:s8:s32"] if make is products else ["f32"])}
    if kind is np.int8:  # its Relu is no bound of 8 bits
        types |= {"s8:s8:s32"}
    made: onnx.ModelProto = make(kind)
    check_narrow(made, place, "f32", types)


@pytest.mark.exhaustive
@pytest.mark.parametrize("case", READ)
def test_items_read_words_on_cuda(case: tuple[str, str, str, str]) -> None:
    text, layout, dtype, words = case
    with emulated() as backend:
        check_schedule(parse_problem(text, layout, dtype), parse(words.format("cuda")), backend)


@pytest.mark.exhaustive
@pytest.mark.parametrize("case", READ)
def test_items_read_words_on_opencl(case: tuple[str, str, str, str]) -> None:
    text, layout, dtype, words = case
    check_device_layer(parse_problem(text, layout, dtype), words.format("opencl"), "opencl:0")
