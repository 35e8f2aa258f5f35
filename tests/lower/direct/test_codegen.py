"""Generated C as text: golden files, the same bytes always, what is refused, strict compilers."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from polysci.cost.shortlist import choices
from polysci.errors import SpecError, UnsupportedError
from polysci.ops import parse_problem
from polysci.ops.convolutions import Conv2d
from polysci.ops.layer_lists import load
from polysci.printers import interface
from polysci.runtime.source import Source, assemble
from polysci.space.resolve import resolve
from polysci.space.schedule import parse
from polysci.tune import EmitOptions, emit
from tests.support.samples import fixed_context

ROOT = Path(__file__).resolve().parents[3]
COMPILERS = [name for name in ("gcc", "clang") if shutil.which(name)]
STRICT = ("-std=c11", "-O2", "-Wall", "-Wextra", "-Wpedantic", "-Werror")

# Problem, layout, schedule and threads of code of every form; its precision, if it is not f32.
SCHEDULES = {
    "conv3x3": ("mb1ic16ih8oc20kh3ph1", "nhwc", "p k:16 > brgemm_avx512_f32_8x16", 1),
    "strided": ("mb1ic64ih9oc64kh1sh2", "nhwc", "p* pack(A)+16 k:32 > brgemm_avx512_f32_5x32", 2),
    "blocked": ("mb2ic48ih7oc24kh3ph1", "nchw", "n c:20 k:8 p:2 > brgemm_avx2_f32_14x8", 1),
    "gradient": ("bwd_d mb1ic20ih8oc16kh3ph1", "nhwc", "h c:16 > brgemm_avx512_f32_8x16", 1),
    "residues": ("bwd_d mb2ic20ih9oc16kh3sh2ph1", "nhwc",
                 "n* residues(2,2) h c:16 > brgemm_avx512_f32_5x16", 2),
    "stem": ("mb1ic3ih19oc24kh7sh2ph3", "nhwc", "pack(A) p k:16 > brgemm_avx512_f32_10x16", 1),
    "streamed": ("mb1ic24ih8oc64kh1", "nhwc", "p* k:32 stream(C) > brgemm_avx512_f32_8x32", 2),
    "ahead": ("mb1ic16ih6oc72kh3ph1", "nhwc", "k:32 p:2 ahead(B) > brgemm_avx512_f32_12x32", 1),
    "swapped": ("mb2ic40ih5oc11kh1", "nchw", "swap(A,B) n* c:20 k:4 > brgemm_avx512_f32_4x32", 2),
    "gathered": ("mb1ic8ih9oc9kh1sh2", "nchw", "swap(A,B) pack(A) k > brgemm_avx512_f32_1x32", 1),
    "taps": ("mb2ic6ih9oc7kh3ph1", "nchw",
             "swap(A,B) n* q:32 pack(A) k:4 q:16 > brgemm_avx512_f32_4x16", 2),
    "groups": ("g4mb1ic16ih6oc48kh3ph1", "nhwc", "g* p:4 k:8 p > brgemm_avx2_f32_6x8", 3),
    "grouped": ("g6mb1ic24ih6oc24kh3ph1", "nhwc", "p g:4 q:3 > grouped4_avx512_f32_3x16", 1),
    "winograd": ("mb1ic16ih8oc20kh3ph1", "nhwc", "t:3* winograd(4) k:16 > brgemm_avx2_f32_3x16", 2),
    "filters": ("mb1ic16ih8oc40kh3ph1", "nhwc",
                "winograd(2) k:16 ahead(B) > brgemm_avx512_f32_4x16", 1),
    "domain": ("mb1ic5ih7oc9kh3ph1", "nchw", "winograd(2) k:8* t:6 > brgemm_avx2_f32_4x8", 2),
    "depthwise": ("g9mb1ic9ih6oc9kh3ph1", "nchw", "p:3 pack(A) p > depthwise_avx2_f32_6x16", 1),
    "stencil": ("mb2g3ic3ih11oc3kh3ph1", "nchw", "n* g p:5 > stencil_avx512_f32_5x16", 2),
    "stencil2": ("mb1g3ic3ih13oc6kh5sh2ph2", "nchw", "g k p:4 > stencil2_avx2_f32_4x8", 1),
    "words": ("mb1ic19ih8oc20kh3ph1", "nhwc", "p k:16 > brgemm_avx512bf16_bf16_8x16", 1, "bf16"),
    "widened": ("mb1ic9ih7oc16kh1", "nchw", "p:4* pack(A) p k:8 > brgemm_avx2_f32_7x8", 2,
                "bf16:bf16:f32"),
    "halves": ("mb1ic8ih6oc24kh3ph1", "nhwc", "p:2 k:16 p > brgemm_avx512_f32_6x16", 1, "f16"),
    "scaled": ("mb1ic10ih6oc24kh3ph1", "nhwc", "p k:16 > brgemm_avx512vnni_i8_6x16", 1, "int8"),
    "sums": ("mb1ic64ih6oc16kh1", "nhwc", "c:32 p k:8 > brgemm_avx2_i16_6x8", 1, "s8:s8:s32"),
}  # fmt: skip


GOLDEN = ("conv3x3", "strided", "swapped", "stencil", "winograd", "words")  # that are read
MATRIX, BY_ROWS = Conv2d(N=1, C=8, H=4, W=4, K=16, R=1, S=1), parse("p > brgemm_avx512_f32_4x16")


def source_of(name: str) -> Source:
    words, layout, schedule, threads, *dtype = SCHEDULES[name]
    problem = parse_problem(words, layout, *dtype)
    return emit(problem, parse(schedule), threads, EmitOptions(name))


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_file(name: str, golden: Callable[[str, str], None]) -> None:
    golden(f"{name}.c", source_of(name).text)


@pytest.mark.exhaustive
def test_schedules_chosen_for_resnet50(golden: Callable[[str, str], None]) -> None:
    """The model's choice for every layer, on a machine that never changes."""
    chosen = [
        f"{layer.name} {choices(fixed_context(layer), 1)[0].schedule}\n"
        for layer in load("resnet50")
    ]
    golden("resnet50.txt", "".join(chosen))


def test_golden_files_and_tests_agree() -> None:
    found = {path.stem for path in (ROOT / "tests/golden").glob("*.c")}
    found = {name for name in found if not name.startswith("loops_")}  # of networks
    assert found == set(GOLDEN), "a golden file without a test, or a test without its file"


# Emits code of every form and the model's choice for some layers; prints one hash.
ELSEWHERE = """
import hashlib
from tests.support.samples import fixed_context
from tests.lower.direct.test_codegen import SCHEDULES, source_of, load, choices, emit
digest = hashlib.sha256()
for name in SCHEDULES:
    digest.update(source_of(name).file.encode())
for layer in load("resnet50")[:12:5]:
    for choice in choices(fixed_context(layer, 2), 2):
        digest.update(emit(layer, choice.schedule, 2).text.encode())
print(digest.hexdigest())
"""


@pytest.mark.exhaustive
def test_the_same_bytes_in_any_process() -> None:
    found = []
    for seed in ("0", "4711"):
        env = os.environ | {"PYTHONHASHSEED": seed}
        words = [sys.executable, "-c", ELSEWHERE]
        done = subprocess.run(
            words, env=env, cwd=ROOT, capture_output=True, text=True, timeout=120, check=True
        )
        found.append(done.stdout)
    assert found[0] == found[1] and len(found[0]) == 65


@pytest.mark.exhaustive
def test_the_same_bytes_twice() -> None:
    for name in SCHEDULES:
        assert source_of(name).file == source_of(name).file


@pytest.mark.exhaustive
@pytest.mark.parametrize("compiler", COMPILERS)
def test_strict_compilers_are_content(compiler: str, tmp_path: Path) -> None:
    """Without OpenMP too: the pragma is under an #ifdef."""
    running = []
    for name in SCHEDULES:
        source = tmp_path / f"{name}.c"
        source.write_text(source_of(name).file)
        words = [compiler, *STRICT, "-c", source, "-o", source.with_suffix(".o")]
        running.append(subprocess.Popen(words, stderr=subprocess.PIPE, text=True))
        if len(running) % 2 == 0:
            running[-2].wait()
    for process in running:
        _, told = process.communicate(timeout=120)
        assert (process.returncode, told) == (0, "")


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("name", SCHEDULES)
def test_a_source_keeps_to_the_interface(name: str) -> None:
    source = source_of(name)
    words = re.sub(r"\s+", " ", source.declarations).strip()
    told = re.sub(r"\s+", " ", interface.declarations(name, source.precision)).strip()
    assert told.endswith(words) and ("polysci_scales;" in told) == source.precision.scaled
    assert source.file.startswith(f"/* {source.schedule} */\n")
    # No heap, no state: constants and functions only.
    assert not re.search(r"\b(malloc|calloc|alloca|free|getenv|printf)\b", source.file)
    assert not re.search(r"^\s*static (?!const |inline |PS_KERNEL )", source.text, re.MULTILINE)
    assert ("#pragma omp" in source.text) == (SCHEDULES[name][3] > 1)


def test_the_workspace_is_one_box_or_one_a_thread() -> None:
    problem = Conv2d(N=1, C=16, H=8, W=8, K=16, R=1, S=1)
    kernel = "brgemm_avx512_f32_8x16"
    sizes = {
        text: workspace(emit(problem, parse(f"{text} > {kernel}"), 3).text)
        for text in ("p", "pack(A) p", "pack(A) p*", "p:2 pack(A) p", "p:2* pack(A) p")
    }
    image, two_rows = 4 * 8 * 8 * 16, 4 * 2 * 8 * 16
    assert list(sizes.values()) == [0, image, image, two_rows, 3 * two_rows]


def workspace(text: str) -> int:
    found = re.search(r"_workspace_size\(void\)\s*\{\s*return (\d+);", text)
    assert found is not None
    return int(found[1])


def test_names_of_layers_stay_outside() -> None:
    evil = MATRIX.with_(name='x*/ #include "/etc/passwd" \\ ?? %s', multiplicity=7)
    assert emit(evil, BY_ROWS).file == emit(MATRIX, BY_ROWS).file


@pytest.mark.parametrize("symbol", ["", "1st", "a-b", "a b", "x;y", "é", "a" * 300, "x\n"])
def test_symbols_are_identifiers(symbol: str) -> None:
    with pytest.raises(SpecError, match="is not a C identifier"):
        emit(MATRIX, BY_ROWS, 1, EmitOptions(symbol))


def test_no_threads_are_refused() -> None:
    with pytest.raises(SpecError, match="threads=0: at least one thread is needed"):
        emit(MATRIX, BY_ROWS, 0)


def test_a_file_holds_one_unit() -> None:
    message = "one C file holds one ISA and one precision, not "
    with pytest.raises(SpecError, match=f"{message}avx512, avx2$"):
        assemble([source_of("conv3x3"), source_of("blocked")])
    with pytest.raises(SpecError, match=f"{message}avx512, avx512_f32_f16_f16_x$"):
        assemble([source_of("conv3x3"), source_of("halves")])


def test_several_primitives_share_a_file(tmp_path: Path) -> None:
    sources = [source_of(name) for name in ("blocked", "groups", "depthwise")]
    text = assemble(sources)
    assert text.startswith(f"/* {sources[0].schedule} */\n")
    assert text.count("enum { PS_LANES") == 1
    entries = [text.index(f"\nint {source.symbol}(const float *x") for source in sources]
    assert entries == sorted(entries) and entries[-1] < text.index("PS_INLINE void ps_begin(")


CONV = Conv2d(N=2, C=12, H=7, W=7, K=24, R=3, S=3, pad=1)
STREAM = Conv2d(N=1, C=16, H=3, W=3, K=32, R=1, S=1)
DEPTHWISE = Conv2d(N=1, C=16, H=7, W=7, K=16, R=3, S=3, pad=1, groups=16, layout="nchw")


@pytest.mark.parametrize(
    ("problem", "text", "message"),
    [
        (CONV.with_(dtype="bf16"), "n p r > brgemm_avx512_f32_7x32",
         "O holds bf16, which cannot keep partial sums: 'r' must stay inside the call"),
        (DEPTHWISE, "pack(A) p r > depthwise_avx512_f32_7x16", "takes 'r' whole"),
        (CONV, "n p > brgemm_avx512_f32_6x32", "7 rows x 24 columns does not fit"),
        (CONV, "n p > brgemm_avx512_f32_7x16", "7 rows x 24 columns does not fit"),
        (CONV, "n p k:12 > brgemm_avx512_f32_7x16", "k:12 is neither whole vectors of 16 nor all"),
        (CONV, "p:2 k:16 > brgemm_avx512_f32_28x16", "at most two row dimensions, not ('n', 'p'"),
        (CONV, "n p stream(C) > brgemm_avx512_f32_7x32", "not written once in whole aligned"),
        (STREAM, "c:8 stream(C) > brgemm_avx512_f32_9x32", "not written once"),
        (STREAM.with_(layout="nchw"), "stream(C) > brgemm_avx512_f32_9x32", "not written once"),
        (CONV, "n p ahead(B) > brgemm_avx512_f32_7x32", "ahead(B) needs a loop over W"),
        (DEPTHWISE, "g:16 pack(A) p ahead(B) > depthwise_avx512_f32_7x16",
         "ahead(B) needs a brgemm kernel on vector registers, not depthwise_avx512_f32_7x16"),
        (CONV.with_(dtype="bf16"), "n k:16 p ahead(B) > brgemm_amx_bf16_7x16",
         "on vector registers"),
        (CONV, "n p > depthwise_avx512_f32_7x32", "cannot read I with stride 0 along 'k'"),
        (DEPTHWISE, "p > depthwise_avx512_f32_7x16", "cannot read I with stride 49 along 'g'"),
        (DEPTHWISE, "pack(A) p > brgemm_avx512_f32_7x16", "cannot read I with stride 1 along 'g'"),
    ],
)  # fmt: skip
def test_schedules_without_code_are_refused(problem: Conv2d, text: str, message: str) -> None:
    with pytest.raises(UnsupportedError, match=re.escape(message)):
        emit(problem, parse(text))


DEEP = Conv2d(N=1, C=32, H=4, W=6, K=16, R=1, S=1)


@pytest.mark.parametrize(
    ("problem", "dtype", "text", "message"),
    [
        (DEEP, "f32", "p > brgemm_avx512bf16_bf16_6x16",
         "computes bf16, but products of f32 are computed as f32"),
        (DEEP, "bf16", "p > brgemm_avx512vnni_i8_6x16",
         "computes i8, but products of bf16 are computed as bf16 or f32"),
        (DEEP, "f16", "p > brgemm_avx512bf16_bf16_6x16",
         "computes bf16, but products of f16 are computed as f16 or f32"),
        (DEEP, "int8", "p > brgemm_avx512_f32_6x16",
         "computes f32, but products of u8 are computed as i8 or i16"),
        (DEEP, "s8:s8:s8", "p > brgemm_avx512bf16_bf16_6x16", "products of s8 are computed as i8"),
        (DEEP, "bf16", "c:16 p > brgemm_avx512bf16_bf16_6x16",
         "O holds bf16, which cannot keep partial sums of f32: 'c' must stay inside the call"),
        (DEEP, "f16", "c:16 p > brgemm_avx512_f32_6x16", "O holds f16, which cannot keep partial"),
        (DEEP, "int8", "c:16 p > brgemm_avx512vnni_i8_6x16",
         "O holds u8, which cannot keep partial sums of s32"),
        (DEEP, "bf16:bf16:f32", "c:15 p > brgemm_avx512bf16_bf16_6x16",
         "c:15 is no multiple of the 2 steps that brgemm_avx512bf16_bf16_6x16 takes at once"),
        (DEEP, "s8:s8:s32", "c:6 p > brgemm_avx512vnni_i8_6x16",
         "c:6 is no multiple of the 4 steps"),
        (DEEP, "u8:s8:s32", "c:3 p > brgemm_avx512_i16_6x16", "no multiple of the 2 steps"),
        (DEEP.with_(layout="nchw"), "bf16", "p > brgemm_avx512bf16_bf16_6x16",
         "reads 2 neighbours along 'c', which lie 24 elements apart in I; pack(A)"),
        (DEEP.with_(layout="nchw"), "int8", "p > brgemm_avx512vnni_i8_6x16",
         "reads 4 neighbours along 'c', which lie 24 elements apart"),
        (DEEP, "bf16", "p stream(C) > brgemm_avx512bf16_bf16_6x16", "not written once in whole"),
        (DEEP, "f16", "p stream(C) > brgemm_avx512_f32_6x16", "not written once in whole"),
        (DEEP, "int8", "p stream(C) > brgemm_avx512vnni_i8_6x16", "not written once in whole"),
    ],
)  # fmt: skip
def test_what_a_precision_cannot_do_is_refused(
    problem: Conv2d, dtype: str, text: str, message: str
) -> None:
    with pytest.raises(UnsupportedError, match=re.escape(message)):
        emit(problem.with_(dtype=dtype), parse(text))


def test_an_unknown_kernel_is_refused() -> None:
    with pytest.raises(SpecError, match="'brgemm_vax_f32_7x32' is not in microkernels/kernels"):
        emit(CONV, parse("n p > brgemm_vax_f32_7x32"))


@pytest.mark.sampled(every=6)
@pytest.mark.parametrize(
    ("words", "dtype", "cut"),
    [
        ("mb1ic64ih7oc64kh3ph1", "f32", True),
        ("mb1ic64ih7oc64kh3ph1", "bf16", True),
        ("mb1ic64ih7oc64kh3ph1", "int8", False),  # its zero need not be 0
        ("mb1ic64ih56oc64kh3ph1", "f32", False),  # little would be saved
        ("mb1ic8ih7oc64kh3ph1", "f32", False),  # runs join across taps
        ("g64mb1ic64ih7oc64kh3ph1", "f32", True),
    ],
)
def test_copies_leave_much_padding_out(words: str, dtype: str, cut: bool) -> None:
    problem = Conv2d.parse(words, "nchw", dtype)
    context = fixed_context(problem)
    plans = [one.schedule for one in choices(context, 600) if one.schedule.pack][:60]
    assert plans
    for plan in plans:
        found = resolve(context.contraction, context.strides, plan)
        masked = any(piece.masks for pieces in found.pieces.values() for piece in pieces)
        assert cut == (masked or bool(found.ranges)), plan
