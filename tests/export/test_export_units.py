"""Exported C of several instruction sets: the choice at run time, and each of them on its own."""

import hashlib
import os
import re
import shutil
from pathlib import Path

import pytest

from polysci.errors import SpecError, UnsupportedError
from polysci.export import ExportedLayer, candidates, export_c, export_python
from polysci.ops.convolutions import Conv2d
from polysci.target.host import detect
from polysci.target.isas import ISAS
from polysci.target.machine import assume_rates
from polysci.target.target import Target
from polysci.text import names
from tests.support.exported import WARNINGS, edited, layers, run
from tests.support.samples import FIXED

STRICT = ("-std=c11", *WARNINGS)
UNITS = ("avx512", "avx2", "portable")
COMPILERS = [cc for cc in ("gcc", "clang") if shutil.which(cc)]
# Programs ask the CPU, which POLYSCI_ISA does not change.
RUNS = [isa.name for isa in detect().runnable if isa.name in UNITS]
BEST = RUNS[-1]
C_FILES = ("net.c", "net_avx512.c", "net_avx2.c", "net_portable.c")
LEFT_OUT = '#define NET_WITHOUT_{}\n#include "net_units.h"'
Names = tuple[str, ...]
CALL = """
#include "net_units.h"
#include <stdio.h>
static float x[480], w[1024], y[480], packed[65536];
int main(void)
{
    y[0] = 3;
    net_layer_class_pack_weights(w, packed);
    int status = net_layer_class(x, packed, y, 0, 0, 0, packed + 32768);
    printf("%d '%s' %d %d %g\\n", net_supported(), net_layer_class_isa(), status,
           net_layer_class_packed_size() == SIZE, (double)y[0]);
    return 0;
}
"""


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("several") / "net"
    paths = export_c(layers(*UNITS), out, name="net")
    assert {path.name for path in paths} == {
        *C_FILES, "net.h", "net_units.h", "selftest.c", "Makefile", "CMakeLists.txt", "README.md",
    }  # fmt: skip
    return out


@pytest.fixture
def project(exported: Path, tmp_path: Path) -> Path:
    """A copy to work in."""
    return Path(shutil.copytree(exported, tmp_path / "net"))


def built(folder: Path, main: str, cc: str = "gcc", *flags: str, files: Names = C_FILES) -> str:
    """Compile everything without one warning, link, run, and return what it said.

    The first word is the exit status. Files that did not change keep their objects.
    """
    objects = [compiled(folder, name, cc, *flags) for name in (*files, main)]
    linked = run(cc, *flags, *objects, "-o", "program", "-lm", cwd=folder)
    assert (linked.returncode, linked.stdout) == (0, "")
    ran = run(folder / "program", cwd=folder)
    return f"{ran.returncode}\n{ran.stdout}"


def compiled(folder: Path, name: str, cc: str, *flags: str) -> Path:
    """The object of one file."""
    texts = [(folder / each).read_bytes() for each in (name, "net.h", "net_units.h")]
    digest = hashlib.sha256(b"".join([*texts, f"{cc} {flags}".encode()])).hexdigest()
    made = Path(os.environ["POLYSCI_CACHE_DIR"], f"{digest}.o")
    if not made.exists():
        done = run(cc, *STRICT, "-O1", *flags, "-c", name, "-o", made, cwd=folder)
        assert (done.returncode, done.stdout) == (0, "")
    return made


def counts(*able: str) -> str:
    """What the self-test says where these units run: 7 layers, of which 5 have code of their own.

    Of those it looks at the choice as well.
    """
    lines = ["choice: 19 passed, 0 failed"]
    for unit in UNITS:
        lacks = f"skipped: this CPU lacks one of these features: {' '.join(ISAS[unit].features)}"
        lines.append(f"{unit}: {'10 passed, 0 failed' if unit in able else lacks}")
    return "\n".join(["0", *lines, f"{19 + 10 * len(able)} passed, 0 failed\n"])


@pytest.mark.exhaustive
@pytest.mark.parametrize(("cc", "flags"), [*((cc, ()) for cc in COMPILERS), ("gcc", ("-fopenmp",))])
def test_every_instruction_set_passes(project: Path, cc: str, flags: tuple[str, ...]) -> None:
    assert built(project, "selftest.c", cc, *flags) == counts(*RUNS)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("gone", "how"),
    [
        (UNITS[:1], "left out"),
        (UNITS[:2], "left out"),
        (UNITS[:1], "refused by the CPU"),
        (UNITS[1:2], "refused by the CPU"),
    ],
)
def test_the_next_best_is_taken(project: Path, gone: Names, how: str) -> None:
    for unit in gone:
        if how == "left out":
            edited(
                project / f"net_{unit}.c", '#include "net_units.h"', LEFT_OUT.format(unit.upper())
            )
        else:
            edited(project / f"net_{unit}.c", f"PS_CPU_OK ps_has_{unit}\n", "PS_CPU_OK() 0\n")
    able = [unit for unit in UNITS if unit in RUNS and unit not in gone]
    assert built(project, "selftest.c") == counts(*able)
    size = f"#define SIZE net_{able[0]}_layer_class_packed_size()"
    (project / "call.c").write_text(f"{size}\n{CALL}")
    assert built(project, "call.c") == f"0\n1 '{able[0]}' 0 1 0\n"


@pytest.mark.exhaustive
def test_the_compiler_can_leave_one_out(project: Path) -> None:
    whole = (project / "net_avx2.c").read_text()
    done = run("gcc", *STRICT, "-DNET_WITHOUT_AVX2", "-E", "-P", "net_avx2.c", cwd=project)
    assert "int net_avx2_supported(void) { return 0; }" in done.stdout and "_mm256" in whole
    assert "_mm256" not in done.stdout


@pytest.mark.exhaustive
def test_a_replaced_object_changes_the_choice(project: Path) -> None:
    """Another definition of the question, as of a CPU without the feature, linked before ours."""
    if BEST == "portable" or not shutil.which("objcopy"):
        pytest.skip("needs a choice and objcopy")
    weak, no = project / "weak.o", project / "no.c"
    shutil.copy(compiled(project, f"net_{BEST}.c", "gcc"), weak)
    assert not run("objcopy", f"--weaken-symbol=net_{BEST}_supported", weak, cwd=project).stdout
    no.write_text(
        f"int net_{BEST}_supported(void);\nint net_{BEST}_supported(void) {{ return 0; }}\n"
    )
    files = [name for name in (*C_FILES, "no.c", "selftest.c") if name != f"net_{BEST}.c"]
    objects = [compiled(project, name, "gcc") for name in files]
    assert not run("gcc", weak, *objects, "-o", "program", "-lm", cwd=project).stdout
    assert run(project / "program", cwd=project).stdout == counts(*RUNS[:-1])[2:]


@pytest.mark.exhaustive
def test_where_none_runs(tmp_path: Path) -> None:
    export_c(layers(*UNITS[:2])[3:4], tmp_path, name="net")
    for unit in UNITS[:2]:
        edited(tmp_path / f"net_{unit}.c", f"PS_CPU_OK ps_has_{unit}\n", "PS_CPU_OK() 0\n")
    size = "#define SIZE net_avx2_layer_class_packed_size()"
    (tmp_path / "call.c").write_text(f"{size}\n{CALL}")
    assert built(tmp_path, "call.c", files=C_FILES[:3]) == "0\n0 '' 1 1 3\n"
    said = built(tmp_path, "selftest.c", files=C_FILES[:3])
    assert said.startswith("77\nchoice: skipped: this CPU lacks") and "passed" not in said


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        ("net_portable.c", r"return x \* y \+ z;", "return x * y - z;", "of portable (bare): y["),
        (
            "net.c",
            rf'net_{BEST}_supported\(\) \? "{BEST}"',
            f'!net_{BEST}_supported() ? "{BEST}"',
            "of choice (choice): takes '",
        ),
        (
            "net.c",  # weights packed for another unit than the one that runs
            rf"(net_{BEST}_supported\(\) \? net_{BEST}_\w+_pack_weights)",
            r"!\1",
            "of choice (bare): y[",
        ),
    ],
)  # fmt: skip
def test_the_self_test_finds_faults(
    project: Path, file: str, old: str, new: str, said: str
) -> None:
    if len(RUNS) < 2:
        pytest.skip("this CPU has no choice")
    changed, times = re.subn(old, new, (project / file).read_text())
    assert times
    (project / file).write_text(changed)
    assert (
        run("gcc", "-w", "-O1", *C_FILES, "selftest.c", "-o", "t", "-lm", cwd=project).stdout == ""
    )
    done = run(project / "t", cwd=project)
    assert done.returncode == 1 and said in done.stdout


@pytest.mark.exhaustive
@pytest.mark.skipif(not shutil.which("cmake"), reason="no cmake")
def test_make_and_ctest(project: Path) -> None:
    done = run("make", "check", "CFLAGS=-O1 -Werror", cwd=project)
    assert done.returncode == 0 and done.stdout.endswith(counts(*RUNS)[2:])
    export_c(layers(*UNITS), project, name="net")  # what make left is no obstacle
    run("make", "clean", cwd=project)
    assert not [*project.glob("*.o")]
    assert run("cmake", "-B", "build", cwd=project).returncode == 0
    assert run("cmake", "--build", "build", cwd=project).returncode == 0
    tested = run("ctest", "--test-dir", "build", "--verbose", cwd=project)
    assert tested.returncode == 0 and "choice: 19 passed, 0 failed" in tested.stdout


@pytest.mark.exhaustive
@pytest.mark.skipif(
    not (shutil.which("aarch64-linux-gnu-gcc") and shutil.which("qemu-aarch64")),
    reason="no compiler or emulator for aarch64",
)
def test_another_processor_takes_what_it_can(project: Path) -> None:
    options = (*STRICT, "-O2", "-static", "-o", "program")
    done = run("aarch64-linux-gnu-gcc", *options, *C_FILES, "selftest.c", "-lm", cwd=project)
    assert (done.returncode, done.stdout) == (0, "")
    ran = run("qemu-aarch64", project / "program", cwd=project)
    assert f"{ran.returncode}\n{ran.stdout}" == counts("portable")


@pytest.mark.parametrize("cxx", [cxx for cxx in ("g++", "clang++") if shutil.which(cxx)])
def test_the_headers_are_cpp(exported: Path, tmp_path: Path, cxx: str) -> None:
    (tmp_path / "use.cpp").write_text(
        '#include "net_units.h"\n#include "net.h"\n'
        "int main() { return *net_layer_class_isa() && net_avx2_supported() ? NET_OK : 9; }\n"
    )
    flags = ("-std=c++98", *STRICT[1:], "-Wno-long-long", f"-I{exported}")
    done = run(cxx, *flags, "-c", "use.cpp", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.exhaustive
def test_the_same_bytes_whatever_the_order(exported: Path, tmp_path: Path) -> None:
    for path in export_c(layers(*UNITS), tmp_path / "again", name="net"):
        assert path.read_bytes() == (exported / path.name).read_bytes()
    one = layers("portable")[3:4]
    export_c(one, tmp_path / "a", name="net", isas=("portable", "avx2"), level="estimate")
    export_c(one, tmp_path / "b", name="net", isas=("avx2", "portable"), level="estimate")
    for path in (tmp_path / "a").iterdir():
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes()


def test_one_instruction_set_is_one_file(tmp_path: Path) -> None:
    one = layers("portable")[:2]
    plain = export_c(one, tmp_path / "plain", name="net")
    named = export_c(one, tmp_path / "named", name="net", isas=("portable",))
    assert [path.name for path in plain] == [path.name for path in named]
    for path, other in zip(plain, named, strict=True):
        assert path.read_bytes() == other.read_bytes()


@pytest.mark.exhaustive
def test_layers_of_several_kinds_without_a_choice(tmp_path: Path) -> None:
    mixed = [layers("avx2")[0], *layers("portable")[1:4], layers("avx2", "portable")[4]]
    export_c(mixed, tmp_path, name="net")
    chooser = (tmp_path / "net.c").read_text()
    assert re.findall(r"^int (\w+)\(", chooser, re.MULTILINE) == [
        "net_error_etc_passwd_s_0_NAME", "net_supported",
    ]  # fmt: skip
    assert (
        "return (net_avx2_supported())\n        && (net_portable_supported())\n"
        "        && (net_avx2_supported() || net_portable_supported());" in chooser
    )
    header = (tmp_path / "net.h").read_text()
    assert header.count("_isa(void);") == 1
    files = ("net.c", "net_avx2.c", "net_portable.c", "selftest.c")
    found = built(tmp_path, "selftest.c", files=files[:-1])
    if "avx2" in RUNS:
        assert found.startswith("0\n") and found.endswith("\n15 passed, 0 failed\n")


@pytest.mark.exhaustive
def test_names_leave_room_for_the_units(tmp_path: Path) -> None:
    hostile = ["conv", "avx2_conv", "AVX2_supported", "conv_isa", "without_avx2", "Units_h", "isa"]
    found = names.layers(hostile, "net", ("avx2", "portable"))
    assert found == [
        "conv", "layer_avx2_conv", "layer_AVX2_supported", "conv_isa_2", "layer_without_avx2",
        "layer_Units_h", "isa",
    ]  # fmt: skip
    assert names.layers(hostile[1:3], "net") == hostile[1:3]
    one = layers("avx2", "portable")[4]
    named = [ExportedLayer(one.problem.with_(name=n), one.schedule, 1, one.others) for n in hostile]
    different = [
        ExportedLayer(each.problem.with_(H=4 + at), each.schedule, 1, each.others)
        for at, each in enumerate(named)
    ]
    export_c(different, tmp_path, name="NET")
    files = ("NET.c", "NET_avx2.c", "NET_portable.c", "selftest.c")
    done = run("gcc", *STRICT, "-O0", *files, "-o", "program", "-lm", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize(
    ("isas", "cap", "said"),
    [
        (("avx9",), "", r"isas: no instruction set 'avx9'; known: scalar, portable, "),
        (("avx2", "avx2"), "", "isas: 'avx2' stands there twice"),
        (("avx2", "portable"), "portable", "isas: avx2 is above portable, the cap of POLYSCI_ISA"),
        (("portable",), "", "has a schedule of avx2, which none of portable runs"),
    ],
)
def test_what_does_not_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, isas: tuple[str, ...], cap: str, said: str
) -> None:
    monkeypatch.setenv("POLYSCI_ISA", cap)
    with pytest.raises(SpecError, match=said):
        export_c(layers("avx2")[4:5], tmp_path / "net", isas=isas)
    with pytest.raises(SpecError, match="expected at least one"):
        candidates.check_isas([])
    assert not [*tmp_path.iterdir()]


def test_a_python_package_holds_one(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="one kind, got avx2, portable of error_etc"):
        export_python(layers("avx2", "portable")[4:5], tmp_path / "net")


@pytest.mark.usefixtures("uncapped")
def test_what_does_not_run_here_is_estimated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    features = ISAS["avx2"].features
    here = Target(ISAS["avx2"], features, FIXED.caches, 2, "a lesser one")
    best, own, least = candidates.search_targets(
        [ISAS[name] for name in UNITS], "measure", target=here
    )
    assert (own.machine, own.level, least.machine) == (None, "measure", None)
    assert best.level == "estimate" and best.machine and best.isa.runs_on(best.target.features)
    assert best.machine.peak == 2 * assume_rates(here).peak and not best.machine.measured
    monkeypatch.setattr(candidates, "detect", lambda: here)
    problem = Conv2d(N=1, C=8, H=6, W=6, K=8, R=1, S=1)
    one = ExportedLayer(problem, layers("avx2")[4].schedule)
    export_c([one], tmp_path, name="net", isas=("avx2", "avx512"))
    assert " > brgemm_avx512_f32_" in (tmp_path / "net_avx512.c").read_text()


def test_what_the_header_says_of_the_choice(exported: Path) -> None:
    header = (exported / "net.h").read_text()
    assert "f32, for CPUs with one of these: avx512, avx2, portable.\n" in header
    assert " *   avx2       avx2 fma f16c\n *   portable   none\n" in header
    assert "\nconst char *net_layer_class_isa(void);\n" in header
    readme = (exported / "README.md").read_text()
    assert "add all but selftest.c" in readme and "`net.c` chooses among the others" in readme
