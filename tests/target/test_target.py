"""Targets: detection from real and made-up machines, caps, shared caches."""

import itertools
import os
import platform
from dataclasses import replace
from pathlib import Path

import pytest

from polysci.cli import diagnosis
from polysci.errors import SpecError
from polysci.printers.headers import attribute
from polysci.target import host, riscv
from polysci.target.host import detect
from polysci.target.isa import Isa
from polysci.target.isas import ISAS, read_streaming_bits, read_vector_bits
from polysci.target.target import KIB, MIB, Memory, Target, size_text

AVX512 = "fpu sse2 avx avx2 f16c fma avx512f avx512bw avx512dq avx512vl"


@pytest.fixture(autouse=True)
def no_cap(monkeypatch):
    monkeypatch.delenv("POLYSCI_ISA", raising=False)


@pytest.fixture
def machine(tmp_path):
    """A file tree like the kernel's, for a CPU with the given flags and L3."""

    def make(flags, *, cpus=2, l3="32768K", caches=True, name="machine"):
        root = tmp_path / name
        (root / "proc").mkdir(parents=True)
        one = f"processor\t: 0\nmodel name\t: Some CPU\nflags\t\t: {flags}\n\n"
        (root / "proc/cpuinfo").write_text(one * cpus)
        rows = (("1", "Data", "48K"), ("1", "Instruction", "64K"), ("2", "Unified", "2M"))
        for i, row in enumerate((*rows, ("3", "Unified", l3)) if caches else ()):
            index = root / f"sys/devices/system/cpu/cpu0/cache/index{i}"
            index.mkdir(parents=True)
            for file, text in zip(("level", "type", "size"), row, strict=True):
                (index / file).write_text(text + "\n")
        return root

    return make


def test_isas_get_better_down_the_table():
    assert next(iter(ISAS)) == "scalar"
    assert ISAS["portable"].features == () and attribute(ISAS["portable"]) == ""
    for machine in ("x86_64", "aarch64", "riscv64"):
        rows = [isa for isa in ISAS.values() if isa.machine in ("", machine)]
        rows = rows[1:]  # registers of scalar hold a number each
        for worse, better in itertools.pairwise(rows):
            assert worse.lanes_f32 <= better.lanes_f32 and worse.registers <= better.registers
            assert not set(better.features) <= set(worse.features)  # the later one is better


def test_an_isa_has_what_it_extends():
    for isa in ISAS.values():
        assert isa.chain[0] == isa.name and len(set(isa.chain)) == len(isa.chain)
        for base in map(ISAS.get, isa.chain[1:]):
            assert set(base.features) < set(isa.features)
            assert (base.lanes_f32, base.registers) == (isa.lanes_f32, isa.registers)
    assert ISAS["avx512bf16"].chain == ("avx512bf16", "avx512vnni", "avx512")
    assert ISAS["avx2vnni"].chain == ("avx2vnni", "avx2")


def test_attributes_name_all_features():
    assert attribute(ISAS["avx2"]) == '__attribute__((target("avx2,fma,f16c")))'
    assert attribute(ISAS["avx512bf16"]).endswith(',avx512vl,avx512vnni,avx512bf16")))')
    assert attribute(ISAS["avx2vnni"]).endswith(',avxvnni")))')
    assert attribute(ISAS["neon"]) == ""  # every aarch64 has it
    dot = Isa("dot", ("asimd", "asimddp", "bf16"), 4, 32, own_options=("dotprod", "bf16"))
    assert attribute(dot) == '__attribute__((target("arch=armv8.2-a+dotprod+bf16")))'


def test_this_host():
    found = detect()
    assert found.isa == found.runnable[-1]
    assert 8 * KIB <= found.memory("L1").size <= found.memory("L2").size <= found.memory("L3").size
    assert found.cores == len(os.sched_getaffinity(0))
    assert 1 <= found.sharing("L1", 99) <= found.sharing("L3", 99) <= found.cores
    assert "\n" not in str(found)


def test_a_server(machine):
    found = detect(root=machine(AVX512))
    assert (found.isa.name, found.memory("L1").size, found.memory("L2").size) == (
        "avx512",
        48 * KIB,
        2 * MIB,
    )
    assert found.memory("L3").size == 32 * MIB
    assert found.model_name == "Some CPU"
    assert found.assumed == ()
    assert str(found).startswith("avx512 L1=48K L2=2M L3=32M cores=")
    assert found.has("fma") and not found.has("amx_tile")


@pytest.mark.parametrize(("cpus", "l3"), [(1, 4 * MIB), (2, 8 * MIB), (200, 480 * MIB)])
def test_a_guest_hopes_for_its_share_of_the_host_cache(machine, cpus, l3):
    root = machine(f"{AVX512} hypervisor", cpus=cpus, l3="491520K")
    assert detect(root=root).memory("L3").size == l3


@pytest.mark.parametrize(
    ("claim", "l3", "assumed"),
    [
        ("266240K", 8 * MIB, ("L3",)),  # 260 MiB for two: what a guest may hope for
        ("1073741824K", 8 * MIB, ("L3",)),
        ("9" * 15, 8 * MIB, ("L3",)),
        ("9" * 5000, 2 * MIB, ("L3",)),
        ("0", 2 * MIB, ("L3",)),
        ("0K", 2 * MIB, ("L3",)),
        ("-1", 2 * MIB, ("L3",)),
        ("", 2 * MIB, ("L3",)),
        ("16K", 2 * MIB, ()),  # not below L2
        ("98304K", 96 * MIB, ()),  # two cores of a part with stacked caches
    ],
)
def test_an_l3_that_no_cpu_has_is_not_believed(machine, claim, l3, assumed):
    found = detect(root=machine(AVX512, l3=claim))
    assert (found.memory("L3").size, found.assumed) == (l3, assumed)
    assert diagnosis._caches(found).ok is not bool(assumed)
    guest = machine(f"{AVX512} hypervisor", l3=claim, name="guest")
    assert detect(root=guest).memory("L3").size == min(l3, 8 * MIB)


def test_absurd_inner_caches_are_assumed(machine):
    root = machine(AVX512)
    caches = root / "sys/devices/system/cpu/cpu0/cache"
    (caches / "index0/size").write_text("1024M\n")
    (caches / "index2/size").write_text("1024M\n")
    found = detect(root=root)
    assert (found.memory("L1").size, found.memory("L2").size, found.assumed) == (
        32 * KIB,
        256 * KIB,
        ("L1", "L2"),
    )


def test_few_cpus_share_the_l3_of_a_large_machine(machine):
    """96 MiB for each eight of 128 CPUs is true; for each one of them, it is not."""
    root = machine(AVX512, cpus=128, l3="98304K")
    shared = root / "sys/devices/system/cpu/cpu0/cache/index3/shared_cpu_list"
    shared.write_text("0-7\n")
    assert detect(root=root).memory("L3").size == 96 * MIB
    shared.write_text("0\n")
    assert detect(root=root).assumed == ("L3",)


@pytest.mark.parametrize(
    ("limit", "allowed", "cores"),
    [
        ("max 100000", 4, 4), ("50000 100000", 4, 1), ("100000 100000", 4, 1),
        ("250000 100000", 4, 2), ("800000 100000", 4, 4), ("800000 100000", 1, 1),
        ("400000 0", 2, 2), ("garbage", 2, 2),
    ],
)  # fmt: skip
def test_cores_are_those_of_affinity_and_quota(machine, monkeypatch, limit, allowed, cores):
    root = machine(AVX512, cpus=8)
    (root / "proc/self").mkdir()
    (root / "proc/self/cgroup").write_text("0::/a/b\n")
    (root / "sys/fs/cgroup/a/b").mkdir(parents=True)
    (root / "sys/fs/cgroup/a/cpu.max").write_text(f"{limit}\n")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {*range(allowed)})
    found = detect(root=root)
    assert found.cores == cores
    assert all(1 <= found.sharing(level, 8) <= cores for level in ("L1", "L2", "L3"))


@pytest.mark.parametrize(
    ("flags", "isa"),
    [
        ("sse2", "portable"),
        ("avx2", "portable"),
        ("avx2 fma", "portable"),
        ("avx2 fma f16c", "avx2"),
        ("avx2 fma f16c avx512f avx512bw", "avx2"),
        ("avx2 fma f16c avx_vnni", "avx2vnni"),
        (AVX512, "avx512"),
        (f"{AVX512} avx512_bf16", "avx512"),
        (f"{AVX512} avx512_vnni", "avx512vnni"),
        (f"{AVX512} avx512_vnni avx512_bf16", "avx512bf16"),
    ],
)
def test_an_isa_needs_all_its_features(machine, flags, isa):
    assert detect(root=machine(flags)).isa.name == isa


ARM = """processor\t: 0
BogoMIPS\t: 243.75
Features\t: fp asimd evtstrm aes crc32 atomics fphp asimdhp cpuid asimdrdm asimddp i8mm bf16
CPU implementer\t: 0x41
CPU part\t: 0xd40

"""


def test_a_server_of_aarch64(machine):
    root = machine("")
    (root / "proc/cpuinfo").write_text(ARM * 4)
    found = detect(root=root)
    arms = [ISAS[name] for name in ("portable", "neon", "neondot", "neonbf16")]
    assert found.runnable == tuple(arms) and found.isa is arms[-1]
    assert found.features == ("asimd", "asimddp", "asimdhp", "asimdrdm", "bf16", "i8mm")
    assert found.model_name == "part 0xd40 of implementer 0x41" and found.assumed == ()
    assert detect("portable", root=root).isa is ISAS["portable"]
    (root / "proc/cpuinfo").write_text(ARM.replace("Features\t: fp asimd ", "Features\t: fp "))
    assert detect(root=root).isa is ISAS["portable"]


@pytest.mark.parametrize(("flags", "length", "isa"), [
    ("asimddp bf16 sve svebf16 svei8mm", 16, "sve128"),
    ("asimddp bf16 sve svebf16 svei8mm", 32, "sve256"),
    ("sve", 64, "sve512"),
    ("asimddp bf16 sve svebf16 svei8mm", 64, "sve512"),  # whoever made it
    ("asimddp sve", 32, "neondot"),
    ("asimddp bf16 sve svebf16 svei8mm", 128, "neonbf16"),  # no kernels of this length
    ("asimddp bf16 sve svebf16 svei8mm", 0, "neonbf16"),  # the kernel does not tell
    ("asimddp", 32, "neondot"),
])  # fmt: skip
def test_the_length_of_vectors_decides(machine, flags, length, isa):
    root = machine("")
    (root / "proc/cpuinfo").write_text(f"processor\t: 0\nFeatures\t: fp asimd {flags}\n")
    if length:
        (root / "proc/sys/abi").mkdir(parents=True)
        (root / "proc/sys/abi/sve_default_vector_length").write_text(f"{length}\n")
    found = detect(root=root)
    assert found.isa is ISAS[isa]
    assert len([row for row in found.runnable if row.name.startswith("sve")]) <= 1
    assert found.has(f"sve_{8 * length}_bits") == ("sve" in flags.split() and length > 0)


def test_a_cpu_without_scalable_vectors_has_no_length():
    default = Path("/proc/sys/abi/sve_default_vector_length")
    assert read_vector_bits() == (8 * int(default.read_text()) if detect().has("sve") else 0)


def test_an_experimental_set_is_for_those_who_name_it(machine):
    root = machine("")
    flags = "fp asimd asimddp bf16 sme smef32f32 smeb16f32"
    (root / "proc/cpuinfo").write_text(f"processor\t: 0\nFeatures\t: {flags}\n")
    (root / "proc/sys/abi").mkdir(parents=True)
    length = root / "proc/sys/abi/sme_default_vector_length"
    for size, isa in ((64, "sme"), (32, "neonbf16")):
        length.write_text(f"{size}\n")
        found = detect(root=root)
        assert found.isa is ISAS["neonbf16"] and ISAS["sme"] not in found.runnable
        assert detect("sme", root=root).isa is ISAS[isa]
        assert detect("neondot", root=root).isa is ISAS["neondot"]


def test_a_cpu_without_streaming_mode_has_no_length_of_it():
    default = Path("/proc/sys/abi/sme_default_vector_length")
    expected = 8 * int(default.read_text()) if default.exists() else 0
    assert read_streaming_bits() == expected


RISCV = """processor\t: 0
hart\t\t: 0
isa\t\t: rv64imafdcv_zicbom_zicsr_zifencei_zvl256b
mmu\t\t: sv39
uarch\t\t: spacemit,x60

"""


def test_a_board_of_riscv(machine):
    root = machine("")
    (root / "proc/cpuinfo").write_text(RISCV * 8)
    found = detect(root=root)
    runnable = "scalar", "portable", "rvv128", "rvv256"
    assert found.runnable == tuple(ISAS[name] for name in runnable)
    assert found.isa is ISAS["rvv256"] and found.features == ("v", "zvl256b")
    (root / "proc/cpuinfo").write_text(RISCV.replace("_zvl256b", ""))
    assert detect(root=root).isa is ISAS["rvv128"]
    (root / "proc/cpuinfo").write_text(RISCV.replace("fdcv", "fdc"))
    assert detect(root=root).isa is ISAS["portable"]


def test_extensions_of_riscv_are_words():
    assert riscv.extensions("rv64imv_zicsr") == ["i", "m", "v", "zicsr"]
    assert riscv.extensions("rv32imac") == riscv.extensions("") == []
    assert riscv.with_vectors(["i", "v"], 512) == ["i", "v", "zvl128b", "zvl256b", "zvl512b"]
    assert riscv.with_vectors(["i", "v"], 0) == ["i"]  # a draft, or withheld


@pytest.mark.skipif(platform.machine() != "x86_64", reason="this is code of x86-64")
def test_a_few_bytes_of_code_run():
    assert riscv.run_code(bytes.fromhex("b82a000000c3")) == 42


def test_the_sets_of_another_machine_never_run(machine):
    with pytest.raises(
        SpecError, match="--isa neon: for aarch64; this CPU has portable, avx2, avx5"
    ):
        detect("neon", root=machine(AVX512))


def test_a_cpu_of_no_known_set_takes_any_cap(machine):
    assert detect("neon", root=machine("sse2")).isa is ISAS["portable"]


def test_caps(machine, monkeypatch):
    root = machine(AVX512)
    assert detect("avx2", root=root).isa is ISAS["avx2"]
    assert detect(ISAS["portable"], root=root).isa is ISAS["portable"]
    monkeypatch.setenv("POLYSCI_ISA", "avx2")
    assert detect(root=root).isa is ISAS["avx2"]
    assert detect("portable", root=root).isa is ISAS["portable"]
    assert detect("avx512", root=root).isa is ISAS["avx2"]


def test_a_cap_above_the_cpu_is_no_promise(machine):
    assert detect("avx512", root=machine("avx2 fma f16c")).isa is ISAS["avx2"]


def test_an_unknown_cap_is_named(monkeypatch):
    with pytest.raises(
        SpecError, match=r"no instruction set 'avx9'; known: scalar, portable, wasm128, "
    ):
        detect("avx9")
    monkeypatch.setenv("POLYSCI_ISA", "native")
    with pytest.raises(SpecError, match=r"POLYSCI_ISA: no instruction set 'native'"):
        detect()


@pytest.mark.parametrize(
    ("name", "maker"),
    [("11th Gen Intel(R) Core(TM)", "intel"), ("AMD EPYC", "amd"), ("QEMU", "unknown")],
)
def test_figures_are_kept_by_maker_and_best_instruction_set(machine, name, maker):
    capped = replace(detect("avx2", root=machine(AVX512)), model_name=name)
    assert ("kind", f"{maker}-{capped.runnable[-1]}") in capped.rows()
    assert capped.kind.startswith(f"{maker}-avx512")


def test_without_sysfs_caches_are_assumed_and_said_so(machine):
    found = detect(root=machine(AVX512, caches=False))
    assert found.assumed == ("L1", "L2", "L3")
    assert found.caches == host.ASSUMED_CACHES
    assert ("L1", "32K of each core (assumed)") in found.rows()


def test_lines_and_ways_are_read(machine):
    root = machine(AVX512)
    caches = root / "sys/devices/system/cpu/cpu0/cache"
    for file, text in (("coherency_line_size", "128"), ("ways_of_associativity", "12")):
        (caches / "index0" / file).write_text(text + "\n")
        (caches / "index2" / file).write_text("many\n")
    first, second, _ = detect(root=root).caches
    assert (first.line, first.ways, second.line, second.ways) == (128, 12, 64, 0)
    assert first.lines_apart(4096) == 12 and second.lines_apart(4096) == 512


def test_without_cpuinfo_everything_is_assumed(tmp_path):
    found = detect(root=tmp_path)
    assert found.isa is ISAS["portable"]
    assert found.assumed == ("features", "L1", "L2", "L3")


def test_damaged_sysfs_is_as_good_as_none(machine):
    root = machine(AVX512)
    (root / "sys/devices/system/cpu/cpu0/cache/index0/size").write_text("many\n")
    (root / "sys/devices/system/cpu/cpu0/cache/index2/size").write_text("0K\n")
    assert detect(root=root).assumed == ("L1", "L2")


def test_who_shares_a_cache_is_read(machine, monkeypatch):
    monkeypatch.setattr(host, "available_cores", lambda root: 6)
    root = machine(AVX512)
    caches = root / "sys/devices/system/cpu/cpu0/cache"
    for index, cpus in (
        ("index0", "0,32"),
        ("index1", "0-9"),
        ("index2", "0-1,32-33"),
        ("index3", "0-63"),
    ):
        (caches / index / "shared_cpu_list").write_text(cpus + "\n")
    found = detect(root=root)
    assert [cache.cores for cache in found.caches] == [2, 4, 6]  # of six, not of 64
    assert [value for name, value in found.rows() if name in ("L1", "L3")] == [
        "48K for 2 cores", "32M for 6 cores",
    ]  # fmt: skip


@pytest.mark.parametrize("cpus", ["", "all", "0-", "-3", "3-1", "1" * 30])
def test_a_damaged_list_of_cpus_is_as_good_as_none(machine, cpus):
    root = machine(AVX512)
    (root / "sys/devices/system/cpu/cpu0/cache/index3/shared_cpu_list").write_text(cpus)
    assert detect(root=root).memory("L3").cores == 0


def test_sharing():
    caches = (Memory("L1", 1), Memory("L2", 2, 2), Memory("L3", 3, 8))
    eight = Target(ISAS["avx2"], ISAS["avx2"].features, caches, 64, "")
    assert [eight.sharing(level, 64) for level in ("L1", "L2", "L3")] == [1, 2, 8]
    assert [eight.sharing(level, 4) for level in ("L1", "L2", "L3")] == [1, 2, 4]
    assert eight.sharing("L3") == 1
    alone = Target(ISAS["portable"], (), (Memory("L3", 3, 0),), 64, "")
    assert alone.sharing("L3", 64) == 64  # all cores, where nothing else is said


@pytest.mark.parametrize(
    ("size", "text"), [(32 * KIB, "32K"), (MIB, "1M"), (1500, "1500"), (1536 * KIB, "1536K")]
)
def test_sizes(size, text):
    assert size_text(size) == text
