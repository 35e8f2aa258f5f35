"""The doctor: a healthy host, and each ailment with its remedy."""

import os
import shutil

import pytest

from polysci.cli import cross_compilers, diagnosis
from polysci.cli.diagnosis import Check, checks
from polysci.errors import UnsupportedError
from polysci.export import web_build
from polysci.target import host as host_module
from polysci.target import isas
from polysci.target.host import cpu_quota, detect
from polysci.target.isas import ISAS


@pytest.fixture(autouse=True)
def host(tmp_path, monkeypatch):
    for name in ("CC", "POLYSCI_ISA", "OMP_THREAD_LIMIT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("POLYSCI_CACHE_DIR", str(tmp_path / "cache"))


def found(name, checked=None):
    return next(check for check in checked or checks() if check.name == name)


def test_this_host_is_examined_completely():
    checked = checks()
    names = [check.name for check in checked]
    assert len(set(names)) == len(names)
    assert {
        "compiler",
        "OpenMP",
        "ISA",
        "caches",
        "cores",
        "cache directory",
        "torch",
        "onednn",
    } <= set(names)
    assert found("compiler", checked).ok
    assert next(check for check in checked if check.name.startswith("builds and runs")).ok
    assert found("cache directory", checked).ok
    assert found("Python packages", checked).ok


def test_onednns_file(monkeypatch, tmp_path):
    path = tmp_path / "libdnnl.so.3"
    monkeypatch.setattr(diagnosis, "find_libraries", lambda: [path])
    assert diagnosis._onednn() == Check("onednn", True, str(path))

    def find_none():
        raise UnsupportedError("oneDNN: no library")

    monkeypatch.setattr(diagnosis, "find_libraries", find_none)
    remedy = "to have it: pip install onednn-cpu-gomp"
    assert diagnosis._onednn() == Check("onednn", True, "not installed", remedy)


def test_whatever_is_bad_has_a_remedy(monkeypatch):
    monkeypatch.setenv("CC", "no-such-cc")
    monkeypatch.setenv("OMP_THREAD_LIMIT", "0")
    for check in checks():
        assert check.ok or check.remedy


@pytest.mark.exhaustive
def test_tiles_that_the_kernel_withholds(monkeypatch):
    monkeypatch.setattr(
        host_module, "_cpuinfo", lambda _: ({"flags": " ".join(ISAS["amx"].features)}, 1)
    )
    monkeypatch.setattr(isas, "read_components", lambda: 1 << 18)
    assert detect().isa.name == "amx" and not detect().withheld
    assert found("AMX", checks(detect())).ok
    monkeypatch.setattr(isas, "read_components", lambda: 0)
    assert detect().isa.name == "avx512fp16"
    assert detect().withheld == ("amx_bf16", "amx_int8", "amx_tile")
    assert found("AMX").detail == "the CPU has tiles, the kernel withholds them: unused"


def test_the_text_of_a_check():
    assert str(Check("disk", True, "fine")) == "ok  disk: fine"
    assert str(Check("disk", False, "full", "make room")) == "BAD disk: full\n    -> make room"


def test_no_compiler(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    check = found("compiler")
    assert not check.ok and "apt install gcc" in check.remedy


def test_a_compiler_that_compiles_nothing(monkeypatch, tmp_path):
    script = tmp_path / "cc"
    script.write_text('#!/bin/sh\ncase "$*" in -*version | -dump*) echo x; exit;; esac; exit 9\n')
    script.chmod(0o700)
    monkeypatch.setenv("CC", str(script))
    bad = [check for check in checks() if not check.ok]
    assert [check.name.split()[0] for check in bad[:2]] == ["builds", "OpenMP"]
    assert "exited with status 9" in bad[0].detail


def test_a_compiler_without_openmp(monkeypatch, tmp_path):
    script = tmp_path / "cc"
    real = shutil.which("cc")
    script.write_text(f'#!/bin/sh\ncase "$*" in *-fopenmp*) exit 1;; esac; exec {real} "$@"\n')
    script.chmod(0o700)
    monkeypatch.setenv("CC", str(script))
    check = found("OpenMP")
    assert not check.ok and "libomp-dev" in check.remedy


def test_a_description_that_claims_too_much(monkeypatch):
    """The last instruction set traps, as one that the CPU lacks does where vectors are wider."""
    target, function = detect(), diagnosis.fused_product
    machine = target.runnable[-1].machine
    claims = [isa for isa in ISAS.values() if isa.machine == machine and isa not in target.runnable]
    if not claims:
        pytest.skip("this host runs every instruction set")
    features = tuple({*target.features, *claims[-1].features})
    liar = type(target)(claims[-1], features, target.memories, 1, "liar")
    trap = "__builtin_trap();\nreturn"
    monkeypatch.setattr(
        diagnosis, "fused_product",
        lambda isa: function(isa).replace("return", trap if isa == claims[-1] else "return"),
    )  # fmt: skip
    check = next(check for check in checks(liar) if check.name.startswith("builds and runs"))
    assert not check.ok and "SIGILL" in check.detail and "POLYSCI_ISA" in check.remedy


def test_code_that_this_cpu_refuses(monkeypatch):
    monkeypatch.setenv("CC", "cc '-Dreturn=__builtin_trap();return'")
    check = next(check for check in checks() if check.name.startswith("builds and runs"))
    assert not check.ok and "scalar: crashed with SIG" in check.detail


def test_a_cap_is_mentioned(monkeypatch):
    if len(detect().runnable) == 1:
        pytest.skip("this host has one instruction set")
    monkeypatch.setenv("POLYSCI_ISA", "portable")
    assert "capped" in found("ISA").detail
    monkeypatch.setenv("POLYSCI_ISA", "native")
    assert [check.name for check in checks()] == ["ISA"]
    assert not checks()[0].ok


def test_assumed_caches_are_said_to_be(tmp_path):
    target = detect(root=tmp_path)
    assert not diagnosis._isa(target).ok
    assert "assumed: L1 L2 L3" in diagnosis._caches(target).detail


def test_an_untrusted_cache_directory(tmp_path):
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(0o777)
    check = diagnosis._cache_directory()
    assert not check.ok and "0777" in check.detail and "chmod 700" in check.remedy


def test_a_thread_limit(monkeypatch):
    monkeypatch.setenv("OMP_THREAD_LIMIT", "0")
    check = diagnosis._cores(detect())
    assert not check.ok and "OMP_THREAD_LIMIT=0" in check.detail


def groups(root, own, files):
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(own)
    for name, text in files.items():
        path = root / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    ("own", "files", "quota"),
    [
        ("0::/\n", {}, None),
        ("0::/\n", {"cpu.max": "150000 100000\n"}, 1.5),
        ("0::/\n", {"cpu.max": "max 100000\n"}, None),
        ("0::/a/b\n", {"a/cpu.max": "200000 100000\n", "a/b/cpu.max": "max 100000\n"}, 2.0),
        ("1:cpu:/x\n", {"cpu/cpu.cfs_quota_us": "50000\n", "cpu/cpu.cfs_period_us": "100000"}, 0.5),
        ("1:cpu:/x\n", {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000"}, None),
        ("0::/\n", {"cpu.max": "garbage\n"}, None),
        ("0::/../..\n", {"cpu.max": "50000 100000\n"}, 0.5),
        ("no group\n", {"cpu.max": "50000 100000\n"}, 0.5),
        (
            "4:cpu,cpuacct:/a/b\n1:name=systemd:/a/b\n",
            {"cpu,cpuacct/a/cpu.cfs_quota_us": "300000", "cpu,cpuacct/a/cpu.cfs_period_us": "1e5"}
            | {"cpu,cpuacct/a/b/cpu.cfs_quota_us": "75000"}
            | {"cpu,cpuacct/a/b/cpu.cfs_period_us": "50000"},
            1.5,
        ),
    ],
)
def test_quotas(tmp_path, own, files, quota):
    assert cpu_quota(groups(tmp_path, own, files)) == quota


@pytest.mark.parametrize(
    ("quota", "ok", "said"),
    [
        (None, True, "4 of 8 CPUs: affinity allows 4"),
        (2.5, True, "2 of 8 CPUs: affinity allows 4, a control group allows 2.5"),
        (0.5, False, "1 of 8 CPUs: affinity allows 4, a control group allows 0.5"),
    ],
)
def test_cores_and_why(monkeypatch, quota, ok, said):
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {*range(4)})
    monkeypatch.setattr(host_module, "cpu_quota", lambda *root: quota)
    check = diagnosis._cores(detect())
    assert (check.ok, check.detail) == (ok, said)


def test_no_quota_without_control_groups(tmp_path):
    assert cpu_quota(tmp_path) is None


def test_a_full_disk_is_noticed(monkeypatch):
    monkeypatch.setattr(diagnosis, "LOW_SPACE", 1 << 80)
    check = diagnosis._free_space()
    assert not check.ok and check.remedy.startswith("make room in")


@pytest.mark.parametrize(
    ("version", "found_at"), [("17.0.6", 'CC="/bin/clang --target=riscv64-linux-gnu"'), ("14", "")]
)
def test_compilers_for_other_cpus(monkeypatch, version, found_at):
    """Where one is missing, or too old, it is said how to get it."""
    monkeypatch.setattr(cross_compilers.shutil, "which", {"clang": "/bin/clang"}.get)
    monkeypatch.setattr(
        cross_compilers, "identified", lambda path, options: f"{path} | clang version {version}"
    )
    monkeypatch.setattr(cross_compilers.platform, "machine", lambda: "x86_64")
    monkeypatch.setenv(web_build.VARIABLE, "no-such-clang")
    aarch64, arm, riscv, wasm = cross_compilers.cross_compilers()
    assert aarch64.found == "no aarch64-linux-gnu-gcc" and "gcc-aarch64" in aarch64.remedy
    assert arm.cpu == "Cortex-M" and "apt install gcc-arm-none-eabi" in arm.remedy
    assert riscv.found == (found_at or "no clang 17 or newer; gcc does not do")
    assert bool(riscv.remedy) is not bool(found_at)
    assert "no-such-clang" in wasm.found and wasm.remedy == web_build.HOW_TO_INSTALL
    monkeypatch.setattr(cross_compilers.platform, "machine", lambda: "aarch64")
    assert "aarch64" not in [own.cpu for own in cross_compilers.cross_compilers()]
