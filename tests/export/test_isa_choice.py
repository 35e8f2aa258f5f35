"""A network for several instruction sets, and for machines that are not this one."""

import os
import platform
import re
from pathlib import Path

import numpy as np
import pytest

from polysci.network.compiled import compile_network
from polysci.target.host import detect
from tests.support import aarch64, riscv
from tests.support.command import done, polysci
from tests.support.compiling import saved, tiny
from tests.support.exported import all_passed, run
from tests.support.onnxmodels import reals

pytestmark = [
    pytest.mark.skipif(
        "POLYSCI_ISA" in os.environ, reason="code above a cap is refused, and the C knows none"
    ),
    pytest.mark.sampled,
]
QUICK = "CFLAGS=-O1 -Werror"
X86 = platform.machine() == "x86_64"
KEYS = [isa for isa in ("avx512", "avx2", "portable") if isa in map(str, detect().runnable)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tiny(), tmp_path_factory.mktemp("models") / "tiny.onnx")


@pytest.fixture(scope="module")
def project(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For all instruction sets of x86-64, whatever runs here."""
    out = tmp_path_factory.mktemp("isas") / "net"
    words = ["--level", "estimate", "--isas", "avx512,avx2,portable", "-o", str(out)]
    assert "tiny_avx2.c" in done("compile", str(model), *words)
    return out


@pytest.mark.exhaustive
@pytest.mark.skipif(not X86, reason="these are instruction sets of x86-64")
def test_the_best_that_the_cpu_has_runs(project: Path, tmp_path: Path, model: Path) -> None:
    x = reals(1, 4, 8, 8, seed=5)
    x.tofile(tmp_path / "x.bin")
    y = compile_network(model, "estimate", isa="portable")(x)
    for without, key in enumerate(KEYS):
        flags = " ".join(f"-DTINY_WITHOUT_{word.upper()}" for word in KEYS[:without])
        built = run("make", "clean", "check", "example", f"{QUICK} {flags}", cwd=project)
        assert built.returncode == 0 and all_passed(built.stdout, 11), built.stdout
        (tmp_path / "which.c").write_text(
            '#include <stdio.h>\n#include "tiny.h"\n'
            "int main(void) { puts(tiny_isa()); return 0; }\n"
        )
        words = ["-std=c11", f"-I{project}", str(tmp_path / "which.c"), "libtiny.a", "-lm"]
        assert run("gcc", *words, "-o", str(tmp_path / "which"), cwd=project).returncode == 0
        assert run(str(tmp_path / "which"), cwd=project).stdout == f"{key}\n"
        told = run("./example", str(tmp_path / "x.bin"), cwd=project).stdout
        values = {int(at): float(v) for at, v in re.findall(r"y0\[(\d)\] = (\S+)", told)}
        np.testing.assert_allclose([y[0, at] for at in values], [*values.values()], rtol=1e-4)


@pytest.mark.exhaustive
@pytest.mark.skipif(not X86, reason="these are instruction sets of x86-64")
def test_no_code_for_the_cpu(project: Path) -> None:
    flags = " ".join(f"-DTINY_WITHOUT_{word}" for word in ("AVX512", "AVX2", "PORTABLE"))
    built = run("make", "clean", "selftest", "example", f"{QUICK} {flags}", cwd=project)
    assert built.returncode == 0, built.stdout
    assert run("./selftest", ".", cwd=project).returncode == 77
    assert "this CPU runs none of the code" in run("./example", cwd=project).stdout


@pytest.mark.exhaustive
def test_another_kind_of_cpu(model: Path, tmp_path: Path) -> None:
    """The whole network for it, and the self-test under an emulator where there is one."""
    other = "neon" if X86 else "avx2"
    told = done("compile", str(model), "--isa", other, "-o", str(tmp_path / "net"))
    assert "tiny.c" in told
    text = (tmp_path / "net" / "tiny.c").read_text()
    assert ("arm_neon.h" if X86 else "immintrin.h") in text
    if X86:
        aarch64.need()
        sources = [path for path in (tmp_path / "net").glob("*.c") if path.name != "main.c"]
        flags = ("-O1", "-fopenmp-simd", f"-I{tmp_path / 'net'}", "-pthread", *aarch64.INCLUDES)
        program = aarch64.build(tmp_path / "selftest", sources, *flags)
        ran = aarch64.run(program, tmp_path / "net")
        assert ran.returncode == 0 and " 0 failed" in ran.stdout, ran.stdout


@pytest.mark.exhaustive
@pytest.mark.parametrize("isas", ["neon,sve128,sve256,sve512", "sve256"])
def test_the_length_of_vectors_chooses(model: Path, tmp_path: Path, isas: str) -> None:
    """By the project's own Makefile, on emulated CPUs of several lengths and on one without SVE."""
    aarch64.need()
    names, net = isas.split(","), tmp_path / "net"
    word = "--isas" if len(names) > 1 else "--isa"
    done("compile", str(model), "--level", "estimate", word, isas, "-o", str(net))
    built = run("make", "selftest", f"CC={aarch64.COMPILER}", QUICK, cwd=net)
    assert built.returncode == 0, built.stdout
    if word == "--isas":
        build_which(net, aarch64.COMPILER)
    for cpu in ("sve128", "sve256", "sve512", "neon"):
        model_of = "cortex-a72" if cpu == "neon" else aarch64.cpu_of(cpu)
        ran = aarch64.run(net / "selftest", net, cpu=model_of)
        if cpu not in names:
            assert ran.returncode == 77, ran.stdout
            continue
        assert ran.returncode == 0 and " 0 failed" in ran.stdout, ran.stdout
        if word == "--isas":
            assert aarch64.run(net / "which", cpu=model_of).stdout == f"{cpu}\n"


def build_which(net: Path, *compiler: str) -> None:
    """Build a program in a project that says which instruction set is chosen."""
    (net / "which.c").write_text(
        '#include <stdio.h>\n#include "tiny.h"\nint main(void) { puts(tiny_isa()); return 0; }\n'
    )
    words = ("-std=c11", "which.c", "libtiny.a", "-lm", "-pthread", "-o", "which")
    assert run(*compiler, *words, cwd=net).returncode == 0


@pytest.mark.exhaustive
@pytest.mark.parametrize("isas", ["neon,sme", "sme"])
def test_the_length_of_streaming_mode_chooses(model: Path, tmp_path: Path, isas: str) -> None:
    """As clang compiles it, on emulated CPUs of two lengths and on one without SME."""
    aarch64.need(aarch64.CLANG)
    names, net, compiler = isas.split(","), tmp_path / "net", aarch64.clang()
    word = "--isas" if len(names) > 1 else "--isa"
    done("compile", str(model), "--level", "estimate", word, isas, "-o", str(net))
    assert any("fmopa" in path.read_text() for path in net.glob("*.c"))
    built = run("make", "selftest", f"CC={' '.join(compiler)}", QUICK, cwd=net)
    assert built.returncode == 0, built.stdout
    if word == "--isas":
        build_which(net, *compiler)
    shorter = "max,sme-default-vector-length=32"
    for cpu, isa in {aarch64.cpu_of("sme"): "sme", shorter: "neon", "cortex-a72": "neon"}.items():
        ran = aarch64.run(net / "selftest", net, cpu=cpu)
        if isa not in names:
            assert ran.returncode == 77 and "sme_512_bits" in ran.stdout, ran.stdout
            continue
        assert ran.returncode == 0 and " 0 failed" in ran.stdout, ran.stdout
        if word == "--isas":
            assert aarch64.run(net / "which", cpu=cpu).stdout == f"{isa}\n"


@pytest.mark.exhaustive
@pytest.mark.skipif(not X86, reason="other compilers and emulators run beside that of x86-64")
def test_one_project_serves_several_kinds_of_processors(model: Path, tmp_path: Path) -> None:
    """Files of other kinds are empty, and their flags are not for the compiler."""
    aarch64.need()
    riscv.need()
    net = tmp_path / "net"
    words = ["--level", "estimate", "--isas", "avx2,neon,sve256,rvv256,portable", "-o", str(net)]
    done("compile", str(model), *words)
    kinds = {
        "gcc": lambda: run("./selftest", ".", cwd=net),
        aarch64.COMPILER: lambda: aarch64.run(net / "selftest", net),
        " ".join(riscv.compiler()): lambda: riscv.run(net / "selftest", net, bits=256),
    }
    for compiler, test in kinds.items():
        flags = (f"{QUICK} -Wno-pass-failed", "OPENMP=") if "clang" in compiler else (QUICK,)
        built = run("make", "clean", "selftest", f"CC={compiler}", *flags, cwd=net)
        assert built.returncode == 0, built.stdout
        ran = test()
        assert ran.returncode == 0 and " 0 failed" in ran.stdout, ran.stdout


@pytest.mark.exhaustive
def test_a_described_machine(model: Path, tmp_path: Path) -> None:
    done("machine", "-o", str(tmp_path / "it.toml"))
    words = [str(model), "--machine", str(tmp_path / "it.toml"), "-o", str(tmp_path / "net")]
    done("compile", *words)
    checked = run("make", "check", QUICK, cwd=tmp_path / "net")
    assert checked.returncode == 0 and " 0 failed" in checked.stdout, checked.stdout
    told = polysci("compile", *words, "--level", "patient")
    assert told.returncode == 2 and "--level patient: nothing runs on a described" in told.stderr


@pytest.mark.parametrize(
    "words",
    [("compile", "mlp:4x16x8"), ("export", "mb1ic3ih4oc8kh3"), ("optimize", "mb1ic3ih4oc8kh3")],
    ids=lambda words: words[0],
)
def test_commands_say_that_nothing_is_measured(words: tuple[str, ...], tmp_path: Path) -> None:
    """Where the CPU does not run the code; elsewhere the level does what it says."""
    other = "neon" if X86 else "avx2"
    there, here = (
        () if words[0] == "optimize" else ("-o", tmp_path / name) for name in ("there", "here")
    )
    told = polysci(*words, "--isa", other, "--level", "measure", *there)
    note = f"{other}: this CPU does not run it: the model chooses unmeasured"
    assert told.returncode == 0 and told.stderr.splitlines().count(note) == 1, told.stderr
    own = polysci(*words, "--isa", "portable", "--level", "estimate", *here)
    assert own.returncode == 0 and "unmeasured" not in own.stderr, own.stderr


def test_what_makes_no_sense_is_refused(model: Path, tmp_path: Path) -> None:
    out = ["-o", str(tmp_path / "net")]
    other = "neon" if X86 else "avx2"
    for words, reason in (
        (["--isas", "portable"], "--isas: says what to write"),
        (["--isa", other], "it needs -o DIR"),
        (["--isas", "portable", "--python", *out], "of one instruction set"),
        (["--isas", "portable", "--packed-weights", *out], "each instruction set has its own way"),
        (["--isa", other, "--packed-weights", *out], "packed ahead by code that runs here"),
        (["--isas", "portable", "--json", *out], "runs here"),
    ):
        told = polysci("compile", str(model), "--level", "estimate", *words)
        assert told.returncode == 2 and reason in told.stderr, told.stderr
    assert not (tmp_path / "net").exists()
