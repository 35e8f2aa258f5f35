"""The comments of exported loops: bytes, cache and what stays for the next iteration."""

from polysci.lower.algorithm import EmitOptions
from polysci.ops.convolutions import Conv2d
from polysci.runtime.source import emit
from polysci.space.schedule import parse

PROBLEM = Conv2d(N=1, C=64, H=56, W=56, K=64, R=1, S=1, pad=0, layout="nhwc")
CACHES = (48 << 10, 2 << 20, 16 << 20)


def code(schedule: str, threads: int = 1, caches: tuple[int, ...] = CACHES) -> str:
    return emit(PROBLEM, parse(schedule), threads, EmitOptions("it", caches=caches)).text


def test_each_loop_says_what_it_works_on() -> None:
    text = code("k:32 p q:8 k:4 > brgemm_portable_f32_8x4")
    caches = "caches of a thread: L1 48 KiB, L2 2 MiB, L3 16 MiB"
    whole = f"/* x 784 KiB, w 16 KiB, y 784 KiB, in L2; {caches} */"
    outer = "/* k: 2 times x 784 KiB, w 8 KiB, y 392 KiB, in L2; x stays there for the next */"
    inner = "/* p: 56 times x 14 KiB, w 8 KiB, y 7 KiB, in L1; w stays there for the next */"
    lines = [line.strip() for line in text.splitlines()]
    at = lines.index(whole)
    assert lines[at + 1] == outer and lines[at + 2].startswith("for (int64_t k0 = 0;")
    assert lines[at + 3] == inner and lines[at + 4].startswith("for (int64_t p0 = 0;")


def test_loops_that_threads_share_are_told_together() -> None:
    lines = [
        line.strip() for line in code("k:32* p* q:8 k:4 > brgemm_portable_f32_8x4", 2).splitlines()
    ]
    at = next(i for i, line in enumerate(lines) if line.startswith("/* k: 2 times"))
    assert lines[at + 1].startswith("/* p: 56 times") and "int64_t task" in lines[at + 2]


def test_what_no_cache_holds() -> None:
    assert "y 784 KiB, more than the caches hold;" in code(
        "p q:8 k:4 > brgemm_portable_f32_8x4", caches=(1 << 10, 2 << 10, 4 << 10)
    )


def test_winograd_says_what_a_block_works_on() -> None:
    problem = Conv2d(N=1, C=64, H=28, W=28, K=64, R=3, S=3, pad=1, layout="nhwc")
    plan = parse("winograd(2) k:32 t:28 > brgemm_portable_f32_4x8")
    text = emit(problem, plan, 1, EmitOptions("it", caches=CACHES)).text
    assert "/* A block: transformed x 112 KiB, transformed w 128 KiB, sums" in text


def test_code_to_search_has_no_comments_on_loops() -> None:
    """So that its text, which builds are found by, does not depend on the machine."""
    assert "KiB" not in code("k:32 p q:8 k:4 > brgemm_portable_f32_8x4", caches=())
