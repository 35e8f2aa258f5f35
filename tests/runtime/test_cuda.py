"""CUDA without a device: what NVRTC compiles, what kernels take of registers, what is refused."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import polysci
from polysci.cost.groups import GroupWork
from polysci.errors import BuildError, UnsupportedError
from polysci.lower.mapped.algorithm import work_of
from polysci.lower.mapped.plan import resolve
from polysci.network.compiled import CompileOptions, compile_network
from polysci.ops import parse_problem
from polysci.ops.model import model_of
from polysci.runtime.backends import backend_named, cuda, nvrtc
from polysci.runtime.backends.cuda import (
    ARCHITECTURES,
    STATIC_SHARED,
    Cuda,
    resources,
    target_of,
)
from polysci.runtime.backends.nvrtc import Resources, parse_resources
from polysci.runtime.backends.occupancy import REGISTERS
from polysci.runtime.primitive import assemble_primitive
from polysci.runtime.source import emit
from polysci.space.schedule import Schedule, parse
from polysci.target.isas import isa_of
from polysci.target.machine import assume_rates
from polysci.target.machine_file import read
from polysci.target.microkernels import Microkernel, find, registry
from tests.support.command import done
from tests.support.command import polysci as command
from tests.support.device_cases import two_layers

MACHINES = Path(__file__).parents[2] / "experiments" / "machines"
LAYER = "mb1ic8ih6oc16kh3ph1"
# More shared memory than a kernel may declare.
LARGE = """\
extern "C" __global__ void f(float *x)
{
    __shared__ float own[1 << 14];
    own[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    x[threadIdx.x] = own[3 - threadIdx.x];
}
"""
OF_WARPS = [
    pytest.param(architecture, kernel, id=f"{architecture} {kernel}")
    for architecture in ARCHITECTURES for kernel in registry().values()
    if (kernel.family, kernel.isa) == ("mma", target_of(architecture).isa.name)
]  # fmt: skip
LOG = """\
ptxas info    : Compiling entry function 'f_k0' for 'sm_80'
ptxas info    : Function properties for f_k0
ptxas         .     8 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 48 registers, used 1 barriers, 3584 bytes smem, 400 bytes cmem[0]
ptxas info    : Compiling entry function 'f_k1' for 'sm_80'
ptxas info    : Function properties for f_k1
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 22 registers, used 0 barriers, 368 bytes cmem[0]
"""


def test_resources_are_read_from_the_log() -> None:
    first, second = parse_resources(LOG)
    assert first == Resources("f_k0", 48, 20, 8, 3584) and second == Resources("f_k1", 22, 0, 0, 0)
    assert str(second) == "f_k1: 22 registers, 0 bytes spilled, 0 bytes of stack, 0 bytes shared"


def test_without_packages_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda.bindings.nvrtc", None)
    with pytest.raises(UnsupportedError, match=r"^CUDA: .*: pip install 'polysci\[cuda\]'$"):
        backend_named("cuda:sm_80").targets()


def test_names_of_places() -> None:
    assert backend_named("cuda") == backend_named("cuda:0") == Cuda("0")
    assert backend_named("cuda:sm_90").name == "cuda:sm_90"
    with pytest.raises(UnsupportedError, match="no backend 'cuda:x'; known: host"):
        backend_named("cuda:x")


@pytest.mark.parametrize(
    ("architecture", "file"), [("sm_75", "t4-40"), ("sm_80", "a100-108"), ("sm_90", "h100-132")]
)
def test_compiled_for_what_the_machine_files_describe(architecture: str, file: str) -> None:
    described = read(MACHINES / f"{file}.toml")
    target, rates = target_of(architecture), assume_rates(target_of(architecture))
    assert (target.unit, target.cores) == (described.target.unit, described.target.cores)
    assert rates.peak == pytest.approx(described.machine.peak, rel=1e-3)
    assert rates.memory_all == pytest.approx(described.machine.memory_all, rel=1e-3)


class TestCompiled:
    """Where the packages of the extra are installed."""

    @pytest.fixture(autouse=True)
    def packages(self) -> None:
        pytest.importorskip("cuda.bindings.nvrtc", reason="CUDA: cuda-bindings is not installed")
        try:
            nvrtc.version()
        except UnsupportedError as error:
            pytest.skip(str(error))

    @pytest.fixture
    def no_driver(self) -> Iterator[None]:
        try:
            cuda.device_count()
        except UnsupportedError:
            yield
        else:
            pytest.skip("CUDA: there is a driver")

    def test_binaries_are_kept_by_content(self) -> None:
        source = emit(parse_problem(LAYER), parse("p* > brgemm_cuda4_f32_6x16"), threads=3)
        backend = Cuda("sm_80")
        path = backend.build(source.file, symbols=source.symbols)
        assert path.with_suffix(".cubin").read_bytes().startswith(b"\x7fELF")
        assert backend.build(source.file) == path != Cuda("sm_90").build(source.file)
        assert {row.kernel for row in resources(path)} == {
            "primitive_k0",
            "primitive_pack_weights_k0",
        }

    def test_assembly_is_machine_code_or_ptx(self, monkeypatch: pytest.MonkeyPatch) -> None:
        source = emit(parse_problem(LAYER), parse("p* > brgemm_cuda4_f32_6x16"), threads=3)
        if cuda.find_disassembler():
            text = assemble_primitive(source, backend="cuda:sm_80")
            assert "FFMA" in text and ".text.primitive_k0" in text
        monkeypatch.setattr(cuda, "find_disassembler", lambda: None)
        text = assemble_primitive(source, backend="cuda:sm_80")
        assert "fma.rn.ftz.f32" in text and ".target sm_80" in text
        kept = assemble_primitive(source, backend="cuda:sm_80", flush_denormals=False)
        assert "fma.rn.f32" in kept and ".ftz" not in kept

    def test_what_is_wrong_has_a_name(self, tmp_path: Path) -> None:
        backend = Cuda("sm_80")
        with pytest.raises(BuildError, match=r"sm_80: NVRTC refuses the code: .*error"):
            backend.build("// launches: []\n__global__ void f( { }\n")
        with pytest.raises(BuildError, match=r"ptxas error *: Entry function .* max\)$") as told:
            backend.build(f"// launches: []\n{LARGE}")
        assert len(str(told.value).splitlines()) == 1
        with pytest.raises(BuildError, match="no function g"):
            backend.build("// launches: []\n__global__ void f() { }\n", symbols=("g",))
        with pytest.raises(UnsupportedError, match="cuda:sm_13: no such architecture"):
            backend_named("cuda:sm_13").targets()
        with pytest.raises(UnsupportedError, match="cuda:sm_80: compiles code, which runs on a"):
            backend.load(tmp_path / "nothing.cu", "")

    def test_an_architecture_runs_nothing(self) -> None:
        (target,) = backend_named("cuda:sm_80").targets()
        assert target.cores == 108 and target.memory("local").size == 48 * 1024
        with pytest.raises(UnsupportedError, match="cuda:sm_80: compiles code"):
            polysci.compile(LAYER, "estimate", target=target)
        network = compile_network(two_layers(), CompileOptions("estimate", target=target))
        assert {row.spilled for row in resources(network.runner.library.path)} == {0}
        for call in (lambda: network({"x": np.zeros((1, 3, 6, 6), np.float32)}), network.report):
            with pytest.raises(UnsupportedError, match="cuda:sm_80: compiles code, which runs on"):
                call()
        ran = command("compile", "mlp:4x8x8", "--device", "cuda:sm_80")
        assert (ran.returncode, ran.stderr) == (
            1,
            "polysci: error: --device cuda:sm_80: compiles code and runs none, which a device "
            "does, such as cuda:0; -o DIR writes a project, --show c prints the code\n",
        )
        shown = done("compile", "mlp:4x8x8", "--device", "cuda:sm_80", "--show", "c")
        assert 'extern "C" __global__' in shown

    @pytest.mark.usefixtures("no_driver")
    def test_a_device_needs_the_driver(self) -> None:
        with pytest.raises(UnsupportedError, match=r"^CUDA: no driver: libcuda.so.1 is missing"):
            backend_named("cuda:0").targets()
        ran = command("optimize", LAYER, "--device", "cuda:0")
        assert ran.returncode == 1 and ran.stderr.startswith("polysci: error: CUDA: no driver: ")
        assert len(ran.stderr.splitlines()) == 1
        assert "CUDA" in done("machine") and "no driver: libcuda.so.1" in done("machine")

    def test_the_command_compiles_and_runs_nothing(self) -> None:
        ran = command("optimize", LAYER, "--device", "cuda:sm_80")
        assert ran.returncode == 0 and "not run" in ran.stderr and "fma_cuda4" in ran.stderr
        shown = done("optimize", LAYER, "--device", "cuda:sm_80", "--show", "c")
        assert 'extern "C" __global__' in shown

    @pytest.mark.parametrize("kernel", ["bf16_64x32", "i8_64x32"])
    def test_a_tile_of_warps_is_instructions_of_matrices(self, kernel: str) -> None:
        check_warps("sm_80", find(f"mma_cuda80_{kernel}"))

    @pytest.mark.exhaustive
    @pytest.mark.parametrize(("architecture", "kernel"), OF_WARPS)
    def test_tiles_of_warps_are_instructions_of_matrices(
        self, architecture: str, kernel: Microkernel
    ) -> None:
        check_warps(architecture, kernel)

    def test_a_layer_of_bf16_takes_tiles_of_warps(self) -> None:
        ran = command("optimize", "mb32ic256ih14oc256kh3ph1", "--dtype", "bf16", "--device",
                      "cuda:sm_80")  # fmt: skip
        assert ran.returncode == 0 and "> mma_cuda80_bf16_" in ran.stderr

    @pytest.mark.exhaustive
    @pytest.mark.parametrize("architecture", ARCHITECTURES)
    @pytest.mark.parametrize(
        "kernel", [it for it in registry().values() if it.isa == "cuda4"], ids=str
    )
    def test_tiles_spill_nothing(self, kernel: Microkernel, architecture: str) -> None:
        layer, schedule = case_of(kernel)
        dtype = "int8" if kernel.compute.startswith("i") else "f32"
        problem = parse_problem(layer, dtype=dtype)
        source = emit(problem, parse(f"{schedule} > {kernel}"), 3)
        assert not spilled(Cuda(architecture), source.file)


def spilled(backend: Cuda, text: str) -> list[Resources]:
    """The kernels of a text whose registers do not hold all."""
    rows = resources(backend.build(text))
    assert rows
    return [row for row in rows if row.spilled]


def check_warps(architecture: str, kernel: Microkernel) -> None:
    """Compile a tile whose group has 4 or 8 warps; read what NVRTC made of it.

    Of 8, unless they are predicted to need more registers than two such groups have.
    """
    whole = kernel.compute == "i8"
    dtype = "int8" if whole else kernel.compute
    problem = parse_problem("mb32ic256ih14oc256kh3ph1", "nhwc", dtype)
    stages = 3 if isa_of(kernel.isa).copies_async else 2
    rows, depth = min(128, kernel.rows * kernel.cols // 16), 64 if whole else 32
    _, roles, strides = model_of(problem)
    target = target_of(architecture)
    rates = assume_rates(target)

    def plan_of(columns: int) -> tuple[Schedule, GroupWork]:
        tile = f"npq:{rows}@by k:{columns}@bx c:{depth} copy(A,B)x{stages}|swizzle"
        schedule = parse(f"{tile} npq:{kernel.rows}@ty k:{kernel.cols}@tx > {kernel}")
        return schedule, work_of(resolve(roles, strides, schedule), rates)

    schedule, work = plan_of(128)
    if work.spills(target.unit, work.registers):
        schedule, work = plan_of(64)
    assert not work.spills(target.unit, work.registers)
    source, backend = emit(problem, schedule, 3), Cuda(architecture)
    assert not spilled(backend, source.file)
    (row,) = (it for it in resources(backend.build(source.file)) if it.kernel == "primitive_k0")
    assert row.stack == 0 and row.shared <= STATIC_SHARED
    budget = REGISTERS // (REGISTERS // (work.registers * work.items) * work.items)
    assert row.registers <= budget  # as many groups at a time as are predicted
    if cuda.find_disassembler():
        text = assemble_primitive(source, backend=backend.name)
        older, newer = {
            "bf16": ("", "HMMA.16816.F32.BF16"), "f16": ("HMMA.1688.F32", "HMMA.16816.F32"),
            "i8": ("IMMA.8816.U8.S8", "IMMA.16832.U8.S8"),
        }[kernel.compute]  # fmt: skip
        assert (older if stages == 2 else newer) in text
        assert "LDSM.16.M88.4" in text and ("LDSM.16.MT88.4" in text) != whole
        assert ("LDGSTS.E.BYPASS.128" if stages == 3 else "STS.128") in text
        assert not re.search(r"STS\.(U|S|64)", text)


def case_of(kernel: Microkernel) -> tuple[str, str]:
    """A layer that a tile fits twice, and a schedule of it."""
    rows, columns, size = kernel.rows, kernel.cols, 2 * kernel.rows
    if kernel.family == "fma":
        loops = f"npq:{16 * rows}@by k:{4 * columns}@bx c:8 copy(A,B)x2+4"
        return "mb1ic64ih56oc128kh3ph1", f"{loops} npq:{rows}@ty k:{columns}@tx"
    if kernel.family == "brgemm":
        return f"mb1ic64ih{size}oc{2 * columns}kh3ph1", f"p* k:{columns} q:{rows}"
    group = kernel.shifts
    layer = f"g16mb1ic{16 * group}ih{size}oc{16 * group}oh{size}kh3ph1"
    return layer, f"p* g:{columns // group} q:{rows}"
