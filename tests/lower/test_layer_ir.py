"""Layers as loop IR, run by the interpreter in several orders, without a compiler."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

import pytest

from polysci.errors import PolysciError
from polysci.loop_ir.memory import MemoryFaultError
from polysci.loop_ir.nodes import Address, For, Invoke, LoopStatement, Mask, Point
from polysci.numerics.dtypes import PRECISIONS
from polysci.ops import parse_problem
from polysci.space.schedule import parse
from polysci.target.isas import ISAS
from tests.lower.direct.test_codegen import SCHEDULES
from tests.support import samples
from tests.support.interpreted import Change
from tests.support.interpreted_layers import InterpretedLayer, check


@dataclass(frozen=True)
class Case:
    """A layer with a schedule; several threads run it by themselves, or as a team."""

    words: str
    schedule: str
    layout: str = "nhwc"
    dtype: str = "f32"
    threads: int = 1
    team: bool = False

    @property
    def layer(self) -> InterpretedLayer:
        layout = "" if self.words.startswith("mm:") else self.layout
        problem = parse_problem(self.words, layout, self.dtype)
        return InterpretedLayer.of(problem, parse(self.schedule), self.threads, team=self.team)


LAYOUTS = ("nhwc", "nchw")
F4, F8, F16 = ("> brgemm_portable_f32_", "> brgemm_avx2_f32_", "> brgemm_avx512_f32_")
CASES = {
    # Register tiles, ragged and in the padding; loops around them.
    "conv3x3": Case("mb1ic3ih6oc10kh3ph1", f"p k:8 {F8}6x8"),
    "blocked": Case("mb2ic8ih5oc6kh3ph1", f"n c:4 k:4 p:2 {F4}10x4", "nchw"),
    "strided": Case("mb1ic8ih9oc8kh1sh2", f"p* pack(A)+8 k:4 {F4}5x4", threads=2),
    "stem": Case("mb1ic3ih11oc8kh5sh2ph2", f"pack(A) p k:4 {F4}6x4"),
    "dilated": Case("mb1ic3ih5oc5kh3ph2dh1", f"p:2 k:4 {F4}10x4", "nchw"),
    "grouped": Case("g2mb1ic8ih5oc12kh3ph1", f"g* p k:4 {F4}5x4", threads=2),
    "groups side by side": Case("g4mb1ic8ih5oc8kh3ph1", "p g:2 > grouped2_portable_f32_5x4"),
    "one map": Case("mb1ic4ih3oc9kh3ph1", f"k:8 {F8}9x8", "nchw"),
    "conv1d": Case("conv1d mb2ic4iw15oc6kw3sw2pw1", f"n k:4 q {F4}6x4"),
    # Threads.
    "rows of threads": Case("mb2ic4ih6oc8kh3ph1", f"n* p:2* k:4 {F4}12x4", threads=3),
    "a team": Case("mb2ic4ih6oc8kh3ph1", f"n* p:2* k:4 {F4}12x4", threads=3, team=True),
    "shared copy": Case("mb1ic4ih6oc8kh3ph1", f"pack(A) p* k:4 {F4}6x4", threads=2, team=True),
    "copies of threads": Case("mb1ic4ih6oc8kh3ph1", f"p:2* pack(A) p k:4 {F4}6x4", threads=2),
    # Directives.
    "streamed": Case("mb1ic8ih4oc8kh1", f"p* k:4 stream(C) {F4}4x4", threads=2),
    "ahead": Case("mb1ic3ih4oc12kh3ph1", f"k:8 p ahead(B) {F4}4x8"),
    "swapped": Case("mb2ic8ih5oc7kh1", f"swap(A,B) n* c:4 k:4 {F16}4x32", "nchw", threads=2),
    "gathered": Case("mb1ic5ih7oc6kh1sh2", f"swap(A,B) pack(A) k {F8}1x16", "nchw"),
    "taps": Case("mb1ic3ih6oc5kh3ph1", f"swap(A,B) pack(A) k:4 q:8 {F4}4x8", "nchw"),
    "plain": Case("mm:6x9x10", f"plain(B) i:3 j:8 {F4}3x8"),
    # Private sums.
    "private": Case("bwd_w mb4ic3ih3oc5kh3ph1", f"private(C) n:2* k:4 c:2 r s {F4}2x4", threads=2,
                    team=True),
    "private parts": Case("mm:6x24x8", f"private(C) k:8* i:4 j:4 {F4}4x4", threads=3, team=True),
    # Products.
    "product": Case("mm:7x12x10", f"i:4 k:6 j:4 {F4}4x4"),
    "bf16 weights": Case("mm:5x12x9 tb b=constant", f"i:4 j:4 {F4}4x4", dtype="f32:bf16:f32"),
    **{
        f"blocks of {w}": Case(
            "mm:5x64x9 tb b=constant", f"i:4 k:2 j:4 {F4}4x4", dtype=f"f32:{w}:f32"
        )
        for w in ("s4x16", "u4x32", "s8x32", "u8x16")
    },
    "rounded rows": Case("mm:5x64x9 tb b=constant", "i:4 k:2 j:4 > brgemm_portable_a8_4x4",
                         dtype="f32:u4a8x16:f32"),
    "rounded copies": Case("mm:5x64x9 tb b=constant",
                           "i:4* pack(A)+4 j:4 k:2 > brgemm_portable_a8_4x4",
                           dtype="f32:s8a8x32:f32", threads=2),
    "packed in the call": Case("mm:2:7x12x10", f"t* i:4 j:4 {F4}4x4", threads=2),
    # Gradients.
    "data": Case("bwd_d mb1ic5ih6oc6kh3ph1", f"h c:4 {F4}6x4"),
    "weights": Case("bwd_w mb2ic5ih3oc6kh3ph1", f"k:4 c:4 r s {F4}4x4"),
    # Depthwise.
    "depthwise": Case("g7mb1ic7ih6oc7kh3ph1", "p:3 pack(A) p > depthwise_portable_f32_6x8", "nchw"),
    "depthwise, channels": Case("g6mb1ic6ih6oc6kh3ph1", "p > depthwise_portable_f32_6x8"),
    "stencil": Case("mb2g3ic3ih7oc3kh3ph1", "n* g p:4 > stencil_portable_f32_4x8", "nchw",
                    threads=2),
    "stencil2": Case("mb1g3ic3ih9oc6kh5sh2ph2", "g k p:3 > stencil2_portable_f32_3x8", "nchw"),
    # Narrow types.
    "bf16": Case("mb1ic7ih5oc6kh3ph1", "p > brgemm_neonbf16_bf16_5x8", dtype="bf16"),
    "bf16 widened": Case("mb1ic5ih5oc6kh1", f"p:2 pack(A) p k:4 {F4}5x4", "nchw", "bf16:bf16:f32"),
    "bf16 depthwise": Case("g19mb1ic19ih5oc19kh3ph1", "p g:16 > depthwise_avx2_f32_5x16",
                           dtype="bf16"),
    "f16": Case("mb1ic4ih5oc10kh3ph1", "p k:8 > brgemm_avx2_f32_5x8", dtype="f16"),
    "u8": Case("mb1ic6ih5oc10kh3ph1", "p k:8 > brgemm_avx2vnni_i8_5x8", dtype="int8"),
    "s8": Case("mb1ic6ih5oc5kh3ph1", "p k:4 > brgemm_neondot_i8_5x4", dtype="s8:s8:s8"),
    "s8 flipped": Case("mb1ic6ih5oc5kh3ph1", "p > brgemm_avx2vnni_i8_5x8", dtype="s8:s8:s32"),
    "s32 in parts": Case("mb1ic12ih4oc6kh1", "c:4 p k:4 > brgemm_portable_i16_4x4",
                         dtype="s8:s8:s32"),
    "u8 packed": Case("mb1ic6ih5oc5kh3ph1", "pack(A) p > brgemm_portable_i16_5x8", "nchw", "int8"),
    "u8 depthwise": Case("g9mb1ic9ih5oc9kh3ph1", "p g:8 > depthwise_portable_i16_5x8",
                         dtype="int8"),
    "u8 stacked": Case("g9mb1ic9ih5oc9kh3ph1", "p > stacked_avx512vnni_i8_5x16", dtype="int8"),
    "bf16 words of groups": Case("g10mb1ic40ih5oc40kh3ph1",
                                 "p g:8 q:3 > grouped4_avx512bf16_bf16_3x32", dtype="bf16"),
    "u8 words of groups": Case("g9mb1ic72ih5oc72kh3ph1",
                               "p g:8 q:2 > grouped8_avx512vnni_i8_2x64", dtype="int8"),
    "s8 words of groups": Case("g5mb1ic20ih5oc20kh3ph1",
                               "pack(A) p q:2 > grouped4_avx2vnni_i8_2x32", "nchw", "s8:s8:s32"),
    "u8 groups": Case("g4mb1ic8ih4oc8kh3ph1", "p g:2 > grouped2_portable_i16_4x4", dtype="int8"),
    # Other algorithms.
    "winograd(2)": Case("mb1ic3ih6oc9kh3ph1", f"winograd(2) k:8 ahead(B) {F4}4x8"),
    "winograd(4)": Case("mb1ic3ih8oc10kh3ph1", f"t:3* winograd(4) k:8 {F4}3x8", threads=2,
                        team=True),
    "winograd_f16(4)": Case("mb1ic3ih8oc10kh3ph1", f"t:3* winograd_f16(4) k:8 ahead(B) {F4}3x8",
                             threads=2),
    "winograd, planes": Case("mb2ic3ih5oc6kh3ph1 act=relu", f"winograd(2) k:4* t:6 {F4}4x4", "nchw",
                             threads=2, team=True),
    "winograd(2,4)": Case("mb1ic3ih5iw9oc6kh3kw3ph1pw1", f"winograd(2,4) k:4 {F4}4x4", "nchw"),
    "winograd, 5x5": Case("mb1ic3ih6oc5kh5ph2", f"winograd(4) k:4 {F4}4x4"),
    "winograd, 7x3": Case("mb1ic2ih7iw6oc5kh7kw3ph3pw1", f"winograd(2,4) {F4}4x8", "nchw"),
    "winograd, groups": Case("g2mb1ic16ih5oc16kh3ph1", f"t:3 winograd(4) k:4 ahead(B) {F4}3x4"),
    "winograd, dilated": Case("mb1ic3ih7iw5oc5kh3kw3ph2pw3dh1dw2", f"t:4 winograd(2) {F4}4x8"),
    "winograd, planes of 3 axes": Case("conv3d mb2ic3id3ih5iw6oc5kd3kh3kw3pd1ph1pw1 act=relu",
                                       f"winograd(4) k:4* t:3 {F4}3x4", "nchw", threads=2,
                                       team=True),
    "winograd, strides of planes": Case("conv3d mb1ic5id5ih4iw6oc5kd2kh3kw3sd2sh1sw1pd1ph1pw1",
                                        f"t:3 winograd(2) {F4}3x8"),
    "winograd, a column": Case("mb1ic3ih9iw5oc5kh3kw1ph1pw0", f"t:3 winograd(4) {F4}3x8"),
    "winograd, a line": Case("conv1d mb2ic3iw13oc6kw3pw1", f"winograd(4) k:4* t:3 {F4}3x4", "nchw",
                             threads=2, team=True),
    "winograd, stride 2": Case("mb2ic3ih7iw9oc6kh3kw3sh2sw2ph1pw1", f"t:3* winograd(4) k:4 {F4}3x4",
                               threads=2, team=True),
    "winograd, stride 2 of 5x4": Case("mb1ic3ih8iw9oc6kh5kw4sh2sw2ph2pw1", f"winograd(2,4) {F4}2x8",
                                      "nchw"),
    "winograd, strides 2 and 1": Case("mb1ic3ih9iw6oc5kh7kw3sh2sw1ph3pw1", f"winograd(2) {F4}3x8"),
    "winograd, a line of stride 2": Case("conv1d mb2ic3iw14oc6kw6sw2pw2",
                                         f"winograd(4) t:2 {F4}2x8", "nchw"),
    "winograd, fused": Case("mb1ic5ih5oc5kh3ph1", f"t:4* winograd(2) k:4 {F4}4x4", threads=3),
    "residues": Case("bwd_d mb2ic5ih5oc4kh3sh2ph1", f"n* residues(2,2) h c:4 {F4}3x4", threads=2),
    "residues, planes": Case("bwd_d mb1ic3ih6oc4kh3sh2ph1", f"n residues(2,2) h {F4}3x4", "nchw"),
    "residues, a team": Case("bwd_d mb2ic5ih5oc4kh3sh2ph1", f"residues(2,2) n* h* c:4 {F4}3x4",
                             threads=2, team=True),
    "bilinear": Case("mm:13x11x21 b=constant", f"i:4 j:8 bilinear(2,2,2) i:2 k:3 j:4 {F4}2x4"),
    "bilinear in parts": Case("mm:21x9x37 tb alpha=0.5 beta=2 act=relu",
                              f"j:4* i:3 bilinear(4,4,4) pack(A) {F4}3x4", threads=2, team=True),
    "bilinear, 1x1": Case("mb2ic9ih3oc18kh1 act=relu", f"q:4* bilinear(2,2,2) c:3 k:4 {F4}4x4",
                          threads=2),
    "bilinear bands": Case("mm:9x18x40 tb b=constant",
                           f"i:3* j:8* bilinear(2,2,2) j:4 ahead(B) stream(C) {F4}3x4", threads=3),
    "amx": Case("mb1ic12ih4oc16kh3ph1", "p > brgemm_amx_i8_4x16", dtype="int8"),
}  # fmt: skip


BASIC = CASES["conv3x3"].words
# Activations behind epilogues of every kind.
CASES |= {
    "hard_swish": Case(f"{BASIC} act=hard_swish", f"p k:8 {F8}6x8"),
    "relu, swapped": Case("mb1ic8ih5oc7kh1 act=relu", f"swap(A,B) k:4 {F16}4x32", "nchw"),
    "silu, copies": Case("mm:6x24x8 act=silu", f"private(C) k:8* i:4 j:4 {F4}4x4", threads=2),
    "tanh, stencil": Case(f"{CASES['stencil'].words} act=tanh", "n g p:4 > stencil_avx2_f32_4x8",
                          "nchw"),
    "factors": Case("mm:6x9x10 alpha=3 beta=2", f"i:3 j:8 {F4}3x8"),
}  # fmt: skip


@pytest.mark.sampled
@pytest.mark.parametrize("name", CASES)
def test_layers_are_exact(name: str) -> None:
    check(CASES[name].layer)


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.threads > 1])
def test_turns_of_threads_come_in_any_order(name: str, seed: int) -> None:
    case = CASES[name]
    check(case.layer, seed)
    check(replace(case, team=not case.team).layer, seed)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", SCHEDULES)
def test_code_of_every_form_is_exact(name: str) -> None:
    """The schedules whose C other tests read and compile."""
    words, layout, schedule, threads, *dtype = SCHEDULES[name]
    check(Case(words, schedule, layout, *dtype, threads=threads).layer)


WORDS = (
    *("mb1ic3ih6oc10kh3ph1", "mb2ic8ih4oc12kh1", "g2mb1ic8ih5oc8kh3ph1", "g8mb1ic8ih5oc8kh3ph1"),
    *("mb1ic4ih7oc5kh3sh2ph1", "g8mb1ic8ih7oc8kh5sh2ph2", "mb1ic6ih5oc7kh3ph2dh1"),
    *("mm:7x12x10", "mm:5x9x18 ta b=constant", "mm:2:5x9x6 a=constant to"),
    *("bwd_d mb1ic5ih6oc6kh3ph1", "bwd_w mb2ic5ih4oc6kh3ph1", "bwd_w mb1ic3ih7oc4kh3sh2ph1"),
    "conv1d mb2ic4iw15oc6kw3sw2pw1",
)


@pytest.mark.exhaustive
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("words", WORDS)
def test_random_schedules_are_exact(words: str, isa: str) -> None:
    """Members of the space of every instruction set, in every precision, for threads and teams."""
    draw, target = Random(f"{words} {isa}"), replace(samples.FIXED, isa=ISAS[isa],
                                                      features=ISAS[isa].features)  # fmt: skip
    for seed, dtype in enumerate(draw.sample([*PRECISIONS], 5)):
        threads, layout = draw.randrange(1, 4), "" if words[:3] == "mm:" else draw.choice(LAYOUTS)
        try:
            problem = parse_problem(words, layout, dtype)
            context = samples.fixed_context(problem, threads, target)
            schedules = samples.members(context, 2, seed)
        except PolysciError:  # no gradients of whole numbers
            continue
        for schedule in schedules:
            team = bool(schedule.parallel) and draw.random() < 0.5
            check(InterpretedLayer.of(problem, schedule, threads, team=team), seed)


def without(name: str) -> Change:
    """Leave out calls of a routine."""
    return lambda part: None if isinstance(part, Invoke) and part.function == name else part


def without_waiting(part: LoopStatement) -> LoopStatement:
    """Let threads go on behind shared turns."""
    return replace(part, wait=False) if isinstance(part, For) else part


def move_a(part: LoopStatement) -> LoopStatement:
    """Read A from the element behind the first one on."""
    if not (isinstance(part, Point) and part.buffer.name == "A"):
        return part
    assert isinstance(part.address, Address)
    return replace(part, address=replace(part.address, at=part.address.at + 1))


def take_all_rows(part: LoopStatement) -> LoopStatement:
    """Let rows in the padding take part."""
    if not (isinstance(part, Invoke) and part.function == "ps_run"):
        return part
    acc, tile, mask, *steps = part.operands
    assert isinstance(mask, Mask)
    return replace(part, operands=(acc, tile, Mask((1 << 32) - 1), *steps))


@pytest.mark.parametrize(
    ("name", "change", "fault"),
    [
        ("private", without_waiting, "two threads|before anything wrote"),
        ("shared copy", without_waiting, "two threads|before anything wrote"),
        ("winograd, planes", without_waiting, "two threads|before anything wrote"),
        ("conv3x3", move_a, "lies outside"),
        ("conv3x3", take_all_rows, "lies outside|elements differ"),
        ("conv3x3", without("layer_t1"), "y has elements without values"),
        ("conv3x3", without("ps_begin"), "sums are read before anything wrote them"),
        ("stem", without("ps_pack_row"), "workspace: element .* before anything wrote it"),
        ("u8", without("ps_run_filled"), "elements differ"),
        ("winograd(2)", without("layer_output"), "y has elements without values"),
        ("residues", without("layer_residue2"), "y has elements without values"),
        ("bilinear", without("layer_output"), "y has elements without values"),
        ("bilinear", without("layer_sums"), "workspace: element .* before anything wrote it"),
        ("bilinear in parts", without_waiting, "two threads|before anything wrote"),
        ("amx", without("ps_tiles_configure"), "whose shape its registers do not have"),
        ("amx", without("ps_tiles_release"), "tile registers stay configured"),
    ],
)
def test_faults_are_seen(name: str, change: Change, fault: str) -> None:
    """No order of turns hides a missing barrier, a wrong place or a missing call."""
    layer = CASES[name].layer
    wrong = layer.change(change)
    assert wrong.module != layer.module
    for seed in range(2):
        with pytest.raises((MemoryFaultError, AssertionError), match=fault):
            check(wrong, seed)
