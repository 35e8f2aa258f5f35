"""Generated convolutions against exact integers, float64 bounds and the textbook nest, as run."""

import ctypes
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from polysci.cost.shortlist import choices
from polysci.measure.integer_reference import Arrays
from polysci.ops.convolutions import Conv2d
from polysci.runtime.build import cache
from polysci.runtime.build.compiler import default_flags
from polysci.runtime.build.library import load
from polysci.runtime.primitive import Primitive
from polysci.runtime.source import Source, assemble
from polysci.space.schedule import parse
from polysci.target.host import detect
from polysci.target.microkernels import ways
from polysci.tune import EmitOptions, emit
from tests.support import samples
from tests.support.exhaustive import selected
from tests.support.flags import QUICK, compiler_at
from tests.support.judge import Judge, build
from tests.support.nests import textbook_c

# Of every group of features a small one, and the model's choice for it.
PROBLEMS = {
    "3x3": Conv2d(N=1, C=16, H=8, W=8, K=20, R=3, S=3, pad=1),
    "3x3 without padding": Conv2d(N=1, C=8, H=7, W=9, K=17, R=3, S=3),
    "1x1": Conv2d(N=1, C=24, H=7, W=7, K=40, R=1, S=1),
    "1x1 with padding": Conv2d(N=1, C=5, H=6, W=6, K=12, R=1, S=1, pad=1),
    "1x1 with stride 2": Conv2d(N=1, C=64, H=9, W=9, K=70, R=1, S=1, stride=2),
    "unequal strides": Conv2d(N=1, C=7, H=9, W=12, K=18, R=3, S=3, stride=(2, 3), pad=(1, 0)),
    "strides beyond the filter": Conv2d(N=1, C=6, H=11, W=10, K=9, R=2, S=2, stride=3),
    "stem": Conv2d(N=1, C=3, H=13, W=13, K=24, R=7, S=7, stride=2, pad=3),
    "more padding at the end": Conv2d(N=1, C=4, H=9, W=9, K=8, R=3, S=3, pad=1, P=12, Q=11),
    "cropped output": Conv2d(N=1, C=4, H=12, W=12, K=10, R=3, S=3, pad=1, P=5, Q=7),
    "dilated": Conv2d(N=1, C=5, H=10, W=11, K=12, R=3, S=3, dilation=(2, 3), pad=(2, 3)),
    "dilated and strided": Conv2d(N=1, C=8, H=11, W=9, K=16, R=3, S=2, dilation=2, stride=2, pad=1),
    "groups": Conv2d(N=2, C=12, H=7, W=6, K=60, R=3, S=3, pad=1, groups=3),
    "narrow groups": Conv2d(N=1, C=16, H=6, W=6, K=16, R=3, S=3, pad=1, groups=8),
    "groups of four": Conv2d(N=1, C=32, H=5, W=7, K=32, R=3, S=3, stride=2, pad=1, groups=8),
    "groups of eight": Conv2d(N=1, C=40, H=6, W=9, K=40, R=3, S=3, dilation=2, pad=2, groups=5),
    "groups beside a tail": Conv2d(N=2, C=24, H=7, W=8, K=24, R=5, S=3, pad=2, groups=6),
    "pairs": Conv2d(N=1, C=38, H=7, W=5, K=38, R=3, S=3, stride=(1, 2), pad=1, groups=19),
    "depthwise": Conv2d(N=1, C=20, H=8, W=9, K=20, R=3, S=3, pad=1, groups=20),
    "depthwise without neighbours": Conv2d(N=1, C=20, H=8, W=9, K=20, R=1, S=1, groups=20),
    "strided depthwise": Conv2d(N=1, C=33, H=9, W=9, K=33, R=5, S=5, stride=2, pad=2, groups=33),
    "depth multiplier": Conv2d(N=1, C=5, H=7, W=7, K=15, R=3, S=3, pad=1, groups=5),
    "wide depth multiplier": Conv2d(N=1, C=3, H=6, W=6, K=57, R=3, S=3, groups=3),
    "one input channel": Conv2d(N=1, C=1, H=9, W=9, K=19, R=3, S=3, pad=1),
    "one output channel": Conv2d(N=1, C=40, H=7, W=7, K=1, R=3, S=3, pad=1),
    "filter beyond the image": Conv2d(N=1, C=6, H=2, W=3, K=11, R=5, S=5, pad=2),
    "rows of nothing but padding": Conv2d(N=1, C=3, H=3, W=3, K=7, R=2, S=2, pad=2, P=7, Q=7),
    "row filter": Conv2d(N=1, C=9, H=5, W=12, K=16, R=1, S=7, pad=(0, 3)),
    "column filter": Conv2d(N=1, C=9, H=12, W=5, K=16, R=7, S=1, pad=(3, 0)),
    "rows merged into one call": Conv2d(N=1, C=34, H=7, W=7, K=50, R=3, S=3, pad=1),
    "batch": Conv2d(N=3, C=10, H=4, W=5, K=14, R=3, S=3, pad=1),
    "matrix product": Conv2d(N=5, C=70, H=1, W=1, K=33, R=1, S=1),
    "deep": Conv2d(N=1, C=130, H=4, W=4, K=36, R=1, S=1),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Case:
    """A problem and the model's choice of schedule for it."""

    name: str
    layout: str

    def __str__(self) -> str:
        return f"{self.name}, {self.layout}"

    @property
    def problem(self) -> Conv2d:
        return PROBLEMS[self.name].with_(layout=self.layout)

    def source(self) -> Source:
        """For one thread or for two."""
        threads = 1 + list(PROBLEMS).index(self.name) % 2
        context = samples.fixed_context(self.problem, threads, detect())
        return emit(self.problem, choices(context, 1)[0].schedule, threads, EmitOptions("chosen"))


def chosen_cases() -> list[Case]:
    """The model's choice for every problem, in alternating layouts."""
    layouts = ("nchw", "nhwc", "nhwc")
    return [Case(name, layouts[index % 3]) for index, name in enumerate(PROBLEMS)]


Built = tuple[Source, Future[Path]]


@pytest.fixture(scope="module")
def built(request: pytest.FixtureRequest) -> Iterator[dict[Case, Built | Exception]]:
    """The sources of all cases that will run, built as users' are, two compilers at work."""
    found: dict[Case, Built | Exception] = {}
    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(2) as pool:
        patch.setenv("CC", compiler_at("-O3"))
        for case in selected(request.session, "case", Case):
            try:
                source = case.source()
            except Exception as error:  # the fault of one case is for its own test
                found[case] = error
            else:
                found[case] = source, pool.submit(build, [source], default_flags())
    yield found


@pytest.mark.sampled(every=14)
@pytest.mark.parametrize("case", chosen_cases(), ids=str)
def test_the_choice_of_the_model_is_right(
    built: dict[Case, Built | Exception], judge: Judge, case: Case
) -> None:
    made = built[case]
    if isinstance(made, Exception):
        raise made
    source, path = made
    judge.judge(case.problem, path.result(), source.symbol)


@pytest.mark.sampled
@pytest.mark.parametrize("isa", [isa.name for isa in detect().allowed])
def test_streamed_output(judge: Judge, isa: str) -> None:
    """Wherever the output starts: the judge puts its end, too, against a guard page."""
    problem = Conv2d(N=2, C=5, H=6, W=5, K=48, R=3, S=3, pad=1)
    lanes = detect(isa).isa.lanes_f32
    kernel = f"brgemm_{ways('brgemm', isa, 'f32')[0][0].isa}_f32_5x{lanes}"
    texts = [f"n p k:{lanes} stream(C)", f"n* p:4* pack(A) k:{lanes} p stream(C)"]
    sources = [
        emit(problem, parse(f"{text} > {kernel}"), 2, EmitOptions(f"line_{index}"))
        for index, text in enumerate(texts)
    ]
    path = build(sources)
    for source in sources:
        judge.judge(problem, path, source.symbol)


@pytest.mark.exhaustive
def test_every_number_of_output_channels_up_to_40(judge: Judge) -> None:
    problems = [Conv2d(N=1, C=3, H=4, W=5, K=k, R=2, S=2) for k in range(1, 41)]
    sources = []
    for seed, problem in enumerate(problems):
        context = samples.fixed_context(problem, 1, detect())
        sources.append(
            emit(problem, samples.members(context, 1, seed)[0], 1, EmitOptions(f"with_{problem.K}"))
        )
    parts = [sources[start::4] for start in range(4)]
    paths = cache.build_many([assemble(part) for part in parts], flags=QUICK)
    for index, (problem, source) in enumerate(zip(problems, sources, strict=True)):
        judge.judge(problem, paths[index % 4], source.symbol)


# Packing everywhere, blocks that do not divide, merged rows, loops shared by three threads.
BY_HAND = """
n p k:4 > brgemm_portable_f32_7x4
n c:5 p k:4 > brgemm_portable_f32_7x4
c:7 n k:16 p:3 p k:8 q:4 > brgemm_portable_f32_4x8
pack(A) n p k:4 > brgemm_portable_f32_7x4
n pack(A)+16 p k:4 > brgemm_portable_f32_7x4
n p:5 pack(A) p k:4 q:3 > brgemm_portable_f32_3x4
n c:4 pack(A)+1 k:4 p > brgemm_portable_f32_7x4
n p c:6 pack(A) k:8 q:6 > brgemm_portable_f32_6x8
p:4 n c:6 c:3 pack(A) p:2 k:4 > brgemm_portable_f32_14x4
n k:4 p:2 > brgemm_portable_f32_14x4
n* p* k:4 > brgemm_portable_f32_7x4
n* k:8* pack(A) p k:4 > brgemm_portable_f32_7x4
pack(A)+16 n* p:3* c:5 p k:4 > brgemm_portable_f32_7x4
k:16* p:2* n c:6 pack(A) k:4 p q:5 > brgemm_portable_f32_5x4
"""


@pytest.mark.exhaustive
@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
@pytest.mark.parametrize(
    "problem",
    [
        Conv2d(N=2, C=12, H=7, W=7, K=20, R=3, S=3, pad=1),
        Conv2d(
            N=2, C=12, H=14, W=16, K=20, R=3, S=3, stride=2, pad=(1, 2), dilation=(1, 2), P=7, Q=7
        ),
    ],
    ids=str,
)
def test_schedules_written_by_hand(judge: Judge, problem: Conv2d, layout: str) -> None:
    problem = problem.with_(layout=layout)
    plans = [parse(line) for line in BY_HAND.strip().splitlines()]
    sources = [
        emit(problem, plan, 3, EmitOptions(f"line_{index}")) for index, plan in enumerate(plans)
    ]
    paths = cache.build_many([assemble(sources[at::2]) for at in range(2)], flags=QUICK)
    for index, source in enumerate(sources):
        judge.judge(problem, paths[index % 2], source.symbol)


@pytest.mark.exhaustive
@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
@pytest.mark.parametrize(("width", "taps"), [(6, 3), (1, 1)])
def test_packing_where_axes_have_one_position(
    judge: Judge, width: int, taps: int, layout: str
) -> None:
    """Strides of axes tie there, and do not tell their order any more."""
    problem = Conv2d(N=2, C=1, H=8, W=width, K=9, R=3, S=taps, pad=(1, taps // 2), layout=layout)
    tail = f"k:4 > brgemm_portable_f32_{width}x4"
    texts = [f"pack(A) n p {tail}", f"n pack(A)+16 p:3 p {tail}", f"p n pack(A) {tail}"]
    sources = [
        emit(problem, parse(text), 1, EmitOptions(f"line_{index}"))
        for index, text in enumerate(texts)
    ]
    path = build(sources)
    for source in sources:
        judge.judge(problem, path, source.symbol)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["3x3", "dilated and strided", "groups", "depth multiplier"])
@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
def test_the_textbook_nest_gives_the_same(name: str, layout: str) -> None:
    """The very nest that the schedule was derived from, compiled as it stands."""
    problem = PROBLEMS[name].with_(layout=layout)
    (plan,) = samples.members(samples.fixed_context(problem, 1, detect()), 1, seed=7)
    source = emit(problem, plan)
    nest = textbook_c(problem, "textbook")
    flags = [*QUICK, "-Wno-unknown-pragmas"]
    ours, theirs = cache.build_many([source.file, nest], flags=flags)
    inputs = Arrays.of(problem, 3).inputs
    library = load(ours, source.declarations)
    primitive = Primitive(problem, plan, source, library, source.symbol)
    got = primitive(inputs["x"], primitive.pack_weights(inputs["w"]))
    assert np.array_equal(logical(problem, got), textbook(problem, theirs, inputs))


def logical(problem: Conv2d, array: np.ndarray) -> np.ndarray:
    """In the order N, C, H, W, contiguous."""
    swapped = array if problem.layout == "nchw" else array.transpose(0, 3, 1, 2)
    return np.ascontiguousarray(swapped)


def textbook(problem: Conv2d, path: Path, inputs: dict[str, np.ndarray]) -> np.ndarray:
    run = ctypes.CDLL(str(path)).textbook
    result = np.zeros((problem.N, problem.K, problem.P, problem.Q), np.float32)
    operands = [result, logical(problem, inputs["x"]), np.ascontiguousarray(inputs["w"])]
    run(*(ctypes.c_void_p(array.ctypes.data) for array in operands))
    return result


@pytest.mark.sampled
@pytest.mark.parametrize("isa", [isa.name for isa in detect().allowed])
def test_a_nan_is_not_clamped_away(isa: str) -> None:
    """As with numpy.clip and everyone's ReLU: garbage in stays visible."""
    problem = Conv2d(N=1, C=3, H=4, W=4, K=7, R=1, S=1)
    (plan,) = samples.members(samples.fixed_context(problem, 1, detect(isa)), 1)
    source = emit(problem, plan)
    library = load(build([source]), source.declarations)
    primitive = Primitive(problem, plan, source, library, source.symbol)
    x, w = np.ones(problem.x_shape, np.float32), np.ones(problem.w_shape, np.float32)
    x[0, 1, 2, 0] = np.nan
    y = primitive(x, primitive.pack_weights(w), activation="relu")
    assert np.isnan(y[0, 1, 2]).all() and np.count_nonzero(np.isnan(y)) == problem.K
    assert y[0, 0, 0].tolist() == [3.0] * problem.K


@pytest.mark.exhaustive
def test_a_fault_in_the_code_is_noticed(judge: Judge) -> None:
    """The judge is no rubber stamp: one wrong constant in the loops, one in the packing."""
    problem = PROBLEMS["3x3"].with_(layout="nhwc")
    plan = parse("pack(A) p k:4 > brgemm_portable_f32_8x4")
    source = emit(problem, plan, 1, EmitOptions("sound"))
    judge.judge(problem, build([source]), "sound")
    for right, wrong in [(".rows = 8", ".rows = 7"), (".step = 1", ".step = 2")]:
        assert right in source.text
        text = assemble([source]).replace(right, wrong)
        with pytest.raises(AssertionError, match="wrong result"):
            judge.judge(problem, cache.build(text, flags=QUICK), "sound")
