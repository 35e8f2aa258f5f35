"""CUDA C++ from loop IR: what it spells otherwise than C, and kernels behind their launches."""

import pytest

from polysci.errors import UnsupportedError
from polysci.loop_ir.kernels import Launch
from polysci.ops import parse_problem
from polysci.printers.dialect import CUDA, dialect_of
from polysci.printers.launches import read_launches
from polysci.runtime.source import emit
from polysci.space.schedule import parse

LAYER = "mb1ic8ih6oc16kh3ph1"
TILES = "npq:16@by k:16@bx c:4 copy(A,B)x2+4 npq:4@ty k:4@tx > fma_cuda4_f32_4x4"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("static const float t[2] = {0};", "static __device__ const float t[2] = {0};"),
        ("    static const ps_tile t = {0};", "    const ps_tile t = {0};"),
        ("static PS_KERNEL void f(float *restrict x)",
         "static __device__ PS_KERNEL void f(float *__restrict__ x)"),
        ("f(acc, (ps_stack){3, 1})", "f(acc, ps_stack{3, 1})"),
        ("/* not new */ new + this", "/* not new */ new_ + this_"),
        ("    PS_LOCAL ps_shared rows[8];", "    alignas(16) __shared__ ps_shared rows[8];"),
        ("const PS_LOCAL ps_shared *a", "const PS_LOCAL ps_shared *a"),
    ],
)  # fmt: skip
def test_c_has_other_words_in_cuda(text: str, expected: str) -> None:
    assert CUDA.translate(text) == expected


@pytest.mark.exhaustive
def test_a_layer_is_kernels_of_one_thread_a_block() -> None:
    source = emit(parse_problem(LAYER), parse("p* > brgemm_cuda4_f32_6x16"), threads=3)
    (step,) = read_launches(source.file)["primitive"].steps
    assert isinstance(step, Launch) and (step.items, step.group) == (3, 1)
    assert 'extern "C" __global__ void primitive_k0(' in source.file
    assert "item = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;" in source.file
    assert "static __device__ PS_KERNEL void primitive_t0(" in source.file
    for word in ("__kernel", "__global ", "get_global_id", " restrict ", "#include"):
        assert word not in source.file


def test_tiles_of_groups_are_blocks_that_share_memory() -> None:
    source = emit(parse_problem(LAYER), parse(TILES))
    (step,) = read_launches(source.file)["primitive"].steps
    assert isinstance(step, Launch) and (step.items, step.group) == (3, 16)
    assert 'extern "C" __global__ PS_GROUP(16) void primitive_k0(' in source.file
    assert "#define PS_BARRIER() __syncthreads()" in source.file
    assert "    alignas(16) __shared__ ps_shared rows[160];" in source.file
    assert "at = threadIdx.x;" in source.file and "item = blockIdx.x;" in source.file


def test_other_languages_have_no_printer() -> None:
    with pytest.raises(UnsupportedError, match="no printer of metal; known: c, opencl, cuda"):
        dialect_of("metal")
