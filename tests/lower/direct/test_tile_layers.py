"""Whole layers in generated code for AMX, its tile instructions emulated: exact, between guards."""

from dataclasses import replace

import pytest

from polysci.measure.bench import Bench
from polysci.measure.integer_reference import Arrays
from polysci.ops.convolutions import Conv2d
from polysci.ops.matmul import Matmul
from polysci.runtime.build import cache
from polysci.runtime.build.library import load
from polysci.runtime.primitive import Primitive
from polysci.runtime.source import emit
from polysci.space.schedule import parse
from polysci.target.isas import ISAS
from tests.support import samples, tileunit
from tests.support.flags import QUICK

AMX = replace(samples.FIXED, isa=ISAS["amx"], features=ISAS["amx"].features)

pytestmark = pytest.mark.isa(tileunit.VECTORS)

LAYERS = {
    "padded": Conv2d(N=1, C=32, H=14, W=14, K=40, R=3, S=3, pad=1),
    "small map": Conv2d(N=1, C=64, H=7, W=7, K=24, R=3, S=3, pad=1),
    "pointwise": Conv2d(N=2, C=72, H=9, W=5, K=70, R=1, S=1, pad=0),
    "strided": Conv2d(N=1, C=48, H=15, W=15, K=33, R=1, S=1, stride=2, pad=0),
    "stem": Conv2d(N=1, C=3, H=30, W=30, K=16, R=7, S=7, stride=2, pad=3),
    "odd": Conv2d(N=1, C=5, H=6, W=21, K=17, R=2, S=3, pad=1, dilation=2),
    "grouped": Conv2d(N=1, C=32, H=8, W=8, K=64, R=3, S=3, pad=1, groups=2),
}
PRECISIONS = ["bf16", "bf16:bf16:f32", "u8:s8:u8", "s8:s8:s32", "s8:s8:u8"]


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.parametrize("layer", LAYERS)
def test_schedules_of_whole_layers_are_exact(layer: str, dtype: str) -> None:
    seed = 10 * list(LAYERS).index(layer) + PRECISIONS.index(dtype)
    layout, threads = (("nhwc", 1), ("nhwc", 2), ("nchw", 1))[seed % 3]
    problem = replace(LAYERS[layer], layout=layout, dtype=dtype)
    (plan,) = samples.members(samples.fixed_context(problem, threads, AMX), 1, seed)
    source = emit(problem, plan, threads)
    assert source.isa == "amx"
    path = cache.build(tileunit.emulated_file(source), flags=QUICK)
    with Bench(problem, threads, timeout=60) as bench:
        bench.check(path, source.symbol)


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", ["u8:s8:u8", "s8:s8:s32"])
@pytest.mark.parametrize(("constant", "threads"), [("b", 1), ("a", 2)])
def test_batches_of_integer_products_are_exact(constant: str, threads: int, dtype: str) -> None:
    problem = Matmul(19, 70, 40, 3, constant, dtype)
    (plan,) = samples.members(samples.fixed_context(problem, threads, AMX), 1, threads)
    source = emit(problem, plan, threads)
    assert source.isa == "amx"
    path = cache.build(tileunit.emulated_file(source), flags=QUICK)
    with Bench(problem, threads, timeout=60) as bench:
        bench.check(path, source.symbol)


COUNTERS = "int tiles_held(void); int64_t tiles_configured(void); int64_t tiles_dots(void);"
COUNTED = f"""{COUNTERS}
int tiles_held(void) {{ return ps_tiles_now.palette; }}
int64_t tiles_configured(void) {{ return ps_tiles_configured; }}
int64_t tiles_dots(void) {{ return ps_tiles_dots; }}
"""


def test_tiles_are_configured_once_a_call_and_not_held_after_it() -> None:
    """2 images x 5 panels of the same 45 rows; 72 channels are 3 steps of 12 words."""
    problem = replace(LAYERS["pointwise"], dtype="bf16")
    schedule = parse("k:64 n k:16 > brgemm_amx_bf16_45x16")
    source = emit(problem, schedule)
    path = cache.build(tileunit.emulated_file(source, COUNTED), flags=QUICK)
    library = load(path, source.declarations + COUNTERS)
    primitive = Primitive(problem, schedule, source, library, source.symbol)
    arrays = Arrays.of(problem, 1)
    packed = primitive.pack_weights(arrays.inputs["w"])
    for _ in range(2):
        assert arrays.fault("plain", primitive(arrays.inputs["x"], packed)) is None
    counted = library.lib.tiles_held(), library.lib.tiles_configured(), library.lib.tiles_dots()
    assert counted == (0, 2, 2 * (2 * 5) * 3 * 3)


def test_steps_divide_runs_where_that_takes_hardly_more_of_them() -> None:
    def words(channels: int) -> str:
        problem = Conv2d(N=1, C=channels, H=4, W=4, K=16, R=1, S=1, pad=0, dtype="bf16")
        text = emit(problem, parse("k:16 > brgemm_amx_bf16_16x16")).text
        return text.split(".words = ")[1].split("}")[0] if ".words" in text else "16"

    assert [words(channels) for channels in (8, 32, 48, 72, 144)] == ["4", "16", "12", "12", "12"]
    assert words(2 * 17) == "16"  # seventeen steps of one word would be worse
