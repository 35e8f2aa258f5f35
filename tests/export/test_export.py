"""The exported C: no warnings under both compilers, its self-test, safe names, nobody's files."""

import keyword
import os
import re
import shutil
import subprocess
from math import prod
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polysci.errors import PolysciError, SpecError, UnsupportedError
from polysci.export import ExportedLayer, check_c, check_python, export_c, export_python
from polysci.target import microkernels
from polysci.target.host import detect
from polysci.target.isas import ISAS
from polysci.text import names
from polysci.tune import Result, emit
from tests.support.exported import IDENTIFIERS, WARNINGS, edited, layers, run
from tests.support.samples import COMPILED

STRICT = ("-std=c11", *WARNINGS)
COMPILERS = [cc for cc in ("gcc", "clang") if shutil.which(cc)]
KINDS = [  # the layers have parts of vectors
    isa for isa in COMPILED if microkernels.family("brgemm", isa, "f32") and ISAS[isa].lanes_f32 > 1
]
RUNS = [isa.name for isa in detect().allowed if isa.name in KINDS]
C_FILES = {"net.c", "net.h", "selftest.c", "Makefile", "CMakeLists.txt", "README.md"}


def links(cc: str, *flags: str) -> bool:
    """Whether the compiler has the libraries that the flags need."""
    cmd = [cc, *flags, "-x", "c", "-o", os.devnull, "-"]
    text = "int main(void) { return 0; }\n"
    return subprocess.run(cmd, input=text, text=True, capture_output=True).returncode == 0


@pytest.fixture(scope="module")
def projects(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same layers as a C project for every instruction set."""
    root = tmp_path_factory.mktemp("c")
    for isa in KINDS:
        export_c(layers(isa), root / isa, name="net")
    return {isa: root / isa for isa in KINDS}


@pytest.fixture
def project(projects: dict[str, Path], tmp_path: Path) -> Path:
    """A copy of the portable one to work in."""
    return Path(shutil.copytree(projects["portable"], tmp_path / "portable"))


def selftest(folder: Path, out: Path, cc: str, *flags: str) -> subprocess.CompletedProcess[str]:
    """Compile without one warning, in one command, and run."""
    built = run(
        cc, *STRICT, *flags, folder / "net.c", folder / "selftest.c", "-o", out, "-lm", cwd=folder
    )
    assert (built.returncode, built.stdout) == (0, "")
    return run(out, cwd=folder)


BUILDS = [(cc, isa, flags) for cc in COMPILERS for isa in KINDS for flags in ("-O3", "-O0")]
SPECIAL = [("gcc", "portable", "-O1 -fopenmp"), ("gcc", "portable", "-fsanitize=address,undefined")]


@pytest.mark.sampled
@pytest.mark.parametrize(("cc", "isa", "flags"), BUILDS + SPECIAL)
def test_c_compiles_without_warnings_and_passes_its_own_test(
    projects: dict[str, Path], tmp_path: Path, cc: str, isa: str, flags: str
) -> None:
    if not links(cc, *flags.split()):
        pytest.skip(f"{cc} cannot link {flags}")
    done = selftest(projects[isa], tmp_path / "selftest", cc, *flags.split())
    if isa in RUNS:
        assert (done.returncode, done.stdout) == (0, "14 passed, 0 failed\n")
    else:
        assert done.returncode == 77 and "lacks one of these features: avx2 fma" in done.stdout


@pytest.mark.exhaustive
@pytest.mark.parametrize("cxx", [cxx for cxx in ("g++", "clang++") if shutil.which(cxx)])
@pytest.mark.parametrize("standard", ["c++98", "c++20"])
def test_the_header_is_cpp(project: Path, cxx: str, standard: str) -> None:
    (project / "use.cpp").write_text(
        '#include "net.h"\n#include "net.h"\n'
        "int main() { return net_layer_class_packed_size() > 0 && net_supported() ? NET_OK : 9; }\n"
    )
    long_long = ("-Wno-long-long",) if standard == "c++98" else ()
    flags = (f"-std={standard}", *STRICT[1:], *long_long)
    done = run(cxx, *flags, "-c", "use.cpp", cwd=project)
    assert (done.returncode, done.stdout) == (0, "")
    cc = "clang" if "clang" in cxx else "gcc"
    assert run(cc, "-std=c11", "-O0", "-c", "net.c", cwd=project).returncode == 0
    assert run(cxx, "use.o", "net.o", "-o", "use", cwd=project).returncode == 0
    assert run(project / "use", cwd=project).returncode == 0


@pytest.mark.exhaustive
@pytest.mark.parametrize("cc", COMPILERS)
def test_make_check(project: Path, cc: str) -> None:
    done = run("make", "check", f"CC={cc}", "CFLAGS=-O1 -Werror", cwd=project)
    assert done.returncode == 0 and done.stdout.endswith("14 passed, 0 failed\n")
    assert ("-fopenmp" in done.stdout) == links(cc, "-fopenmp")
    assert (project / "libnet.a").exists()
    export_c(layers("portable"), project, name="net")  # what make left is no obstacle
    assert run("make", "clean", cwd=project).returncode == 0
    assert {path.name for path in project.iterdir()} == C_FILES


@pytest.mark.exhaustive
@pytest.mark.skipif(not shutil.which("cmake"), reason="no cmake")
def test_ctest(project: Path) -> None:
    configured = run("cmake", "-B", "build", "-DCMAKE_BUILD_TYPE=Debug", cwd=project)
    assert configured.returncode == 0, configured.stdout
    built = run("cmake", "--build", "build", cwd=project)
    assert built.returncode == 0 and "warning" not in built.stdout, built.stdout
    tested = run("ctest", "--test-dir", "build", "--verbose", cwd=project)
    assert "14 passed, 0 failed" in tested.stdout and tested.returncode == 0


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("{ return x + y; }", "{ return x - y; }", "(bias, residual, clamp): y["),
        ("if (e->clamp)", "if (0)", "(bias, residual, clamp): y["),
        ("return x * y + z;", "return x * y - z;", "layer_class (bare): y["),
        (
            ".packed = packed, .y = y,",
            ".packed = packed, .y = y + 1,",
            "wrote outside y or workspace",
        ),
        ("\n    return 0;", "\n    return 1;", "res2a_1 (bare): not computed"),
    ],
)
def test_the_self_test_finds_faults(project: Path, old: str, new: str, said: str) -> None:
    edited(project / "net.c", old, new)
    built = run("gcc", "-w", "net.c", "selftest.c", "-o", "selftest", "-lm", cwd=project)
    assert built.returncode == 0, built.stdout
    done = run(project / "selftest", cwd=project)
    assert done.returncode == 1 and said in done.stdout
    counts = re.search(r"^(\d+) passed, (\d+) failed$", done.stdout, re.MULTILINE)
    assert counts and int(counts[2]) > 0 and int(counts[1]) + int(counts[2]) == 14


@pytest.mark.exhaustive
def test_a_cpu_without_the_features_is_told_so(project: Path) -> None:
    edited(project / "net.c", "#define PS_CPU_OK() 1", "#define PS_CPU_OK() 0")
    done = selftest(project, project / "selftest", "gcc", "-O0")
    assert done.returncode == 77 and done.stdout.startswith("skipped: this CPU lacks")
    (project / "call.c").write_text(
        '#include "net.h"\nint main(void) { float y = 3;\n'
        "int status = net_layer_class(0, 0, &y, 0, 0, 0, 0);\n"
        "return status == NET_NO_ISA && y == 3 && !net_supported() ? 0 : 1; }\n"
    )
    assert run("gcc", "call.c", "net.c", "-o", "call", cwd=project).returncode == 0
    assert run(project / "call", cwd=project).returncode == 0


def test_the_same_layers_give_the_same_bytes(projects: dict[str, Path], tmp_path: Path) -> None:
    for isa, folder in projects.items():
        paths = export_c(layers(isa), tmp_path / isa / "deep", name="net")
        assert {path.name for path in paths} == C_FILES
        for path in paths:
            text = path.read_text(encoding="ascii")
            assert text == (folder / path.name).read_text()
            for leak in (str(tmp_path.parent), str(Path.cwd()), str(Path.home()), "passwd %s"):
                assert leak not in text


def test_results_are_exported_as_layers_are(projects: dict[str, Path], tmp_path: Path) -> None:
    results = [
        Result(
            each.problem, each.schedule, emit(each.problem, each.schedule, each.threads), 1e-6,
            None, (), 0.1, "estimate", each.threads,
        )
        for each in layers("portable")
    ]  # fmt: skip
    for path in export_c(results, tmp_path / "net"):
        assert path.read_bytes() == (projects["portable"] / path.name).read_bytes()


def test_readme_is_short_and_names_openmp_where_it_counts(
    projects: dict[str, Path], tmp_path: Path
) -> None:
    readme = (projects["portable"] / "README.md").read_text()
    assert len(readme.splitlines()) <= 11 and "`-std=c11 -O3 -fopenmp`" in readme
    export_c(layers("portable")[:1], tmp_path / "one")
    for name in ("README.md", "Makefile", "CMakeLists.txt"):
        assert "openmp" not in (tmp_path / "one" / name).read_text()


def test_exports_of_several_threads_state_the_wait_policy(
    projects: dict[str, Path], tmp_path: Path
) -> None:
    header = (projects["portable"] / "net.h").read_text()
    for variable in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"):
        assert variable in header
    export_c(layers("portable")[:1], tmp_path / "one")
    assert "WAIT_POLICY" not in (tmp_path / "one" / "one.h").read_text()


def test_layers_of_one_shape_share_their_code(projects: dict[str, Path]) -> None:
    header = (projects["portable"] / "net.h").read_text()
    source = (projects["portable"] / "net.c").read_text()
    for identifier in IDENTIFIERS:
        assert f"\nint net_{identifier}(const float *x" in header
        assert f"\nint64_t net_{identifier}_workspace_size(void);" in header
    bodies = re.findall(r"^int net_(\w+)\([^)]*\)\n\{\n(.*?)^\}", source, re.MULTILINE | re.DOTALL)
    shared = [name for name, body in bodies if "return net_error_etc_passwd_s_0_NAME(x," in body]
    assert shared == ["layer_6", "res2a_1_workspace_size_2"]
    assert "malloc" not in source and "alloc" not in source


def test_what_the_header_documents(projects: dict[str, Path]) -> None:
    header = (projects["avx2"] / "net.h").read_text()
    assert "features: avx2 fma f16c." in header and "multiples of 64 bytes" in header
    assert "/* res2a_1 (" not in header and "/* res2a_1_2 (res2a-1): mb1ic3ih9" in header
    assert (
        " NCHW, f32, 2 threads\n *   x            f32  2 x 10 x 6 x 7 (N C H W), strides 420 42 7 1"
        in header
    )
    assert " *   y, residual  f32  1 x 5 x 6 x 12 (N P Q K), strides 360 72 12 1\n" in header


@pytest.mark.exhaustive
def test_sizes_are_constants_and_what_the_functions_return(project: Path) -> None:
    names = re.findall(r"^#define (net_\w+)_PACKED_SIZE", (project / "net.h").read_text(), re.M)
    assert names == [f"net_{identifier}" for identifier in IDENTIFIERS]
    checks = " ".join(
        f"if ({name}_PACKED_SIZE != {name}_packed_size()) return 1;"
        f"if ({name}_WORKSPACE_SIZE != {name}_workspace_size()) return 2;"
        for name in names
    )
    sizes = [4 * prod(getattr(layers("portable")[0].problem, f"{x}_shape")) for x in "xwy"]
    first = "".join(f"_Static_assert({names[0]}_{x}_SIZE == {n}, \"\");\n"
                    for x, n in zip("XWY", sizes, strict=True))  # fmt: skip
    (project / "sizes.c").write_text(
        f'#include "net.h"\n{first}int main(void) {{ {checks} return 0; }}\n'
    )
    built = run("gcc", *STRICT, "-O1", "sizes.c", "net.c", "-o", "sizes", cwd=project)
    assert (built.returncode, built.stdout) == (0, "")
    assert run(project / "sizes", cwd=project).returncode == 0


@pytest.mark.exhaustive
def test_the_stack_is_what_the_header_says(projects: dict[str, Path], tmp_path: Path) -> None:
    """The frames of all functions of a layer together, each layer has few."""
    for isa, folder in projects.items():
        if isa.startswith("neon"):
            continue
        assert "less than 32 KiB of stack" in (folder / "net.h").read_text()
        out = tmp_path / f"{isa}.o"
        built = run("gcc", "-O1", "-fstack-usage", "-c", folder / "net.c", "-o", out, cwd=tmp_path)
        assert built.returncode == 0, built.stdout
        rows = [line.split("\t") for line in out.with_suffix(".su").read_text().splitlines()]
        assert rows and 4 * max(int(row[1]) for row in rows) < 32 << 10


NAMES = st.lists(st.text() | st.sampled_from(["a", "a_t0", "a_pack", "A", "a-", "", "int", "t"]))


@settings(max_examples=20)
@given(NAMES, st.text(), st.sampled_from(["net", "not", "aligned", "int64"]))
def test_identifiers_are_safe_and_distinct(texts: list[str], title: str, prefix: str) -> None:
    for project in (names.project(title), prefix):
        found = names.layers(texts, project)
        assert len({*found}) == len(texts)
        symbols = [f"{project}_{name}" for name in found]
        ends = ("", "_workspace_size", "_packed_size", "_pack_weights", "_pack", "_t0", "_t17")
        derived = [f"{symbol}{end}" for symbol in symbols for end in ends]
        derived += [f"{project}_supported", f"{project}_OK", f"{project}_NO_ISA", f"{project}_H"]
        assert len({*derived}) == len(derived)
        for name in (*found, names.project(title), *derived):
            assert re.fullmatch(r"[A-Za-z]\w{0,120}", name, re.ASCII) and "__" not in name
            assert not keyword.iskeyword(name)
        assert not {*derived} & {"not_eq", "aligned_alloc", "int64_t"}
        assert not {*found} & {"class", "int", "default", "lambda", "nullptr"}


@pytest.mark.parametrize(
    ("given_name", "expected"),
    [
        ("resnet50", "resnet50"),
        ("my-model.v2", "my_model_v2"),
        ("../../etc", "etc"),
        ("été", "ete"),
        ("", "layers"),
        ("卷积", "layers"),
        ("3x3", "layers_3x3"),
        ("class", "class_layers"),
        ("None", "None_layers"),
        ("Numpy", "Numpy_layers"),
        ("string", "string_layers"),
        ("selftest", "selftest_layers"),
        ("ps", "layers_ps"),
        ("PS_vec", "layers_PS_vec"),
        ("a" * 500, "a" * 40),
    ],
)
def test_project_names(given_name: str, expected: str) -> None:
    assert names.project(given_name) == expected


def test_plain_names_keep_theirs_and_long_ones_are_cut() -> None:
    long = "b" * 200
    found = names.layers([f"{long}1", "conv1/3x3", "conv1_3x3", long, "supported", "OK"], "net")
    assert found == [
        "b" * 60, "conv1_3x3_2", "conv1_3x3", f"{'b' * 60}_2", "layer_supported", "layer_OK",
    ]  # fmt: skip
    assert names.layers(["café", "x__y", "_z_", "t"], "net") == ["cafe", "x_y", "z", "t_2"]


def test_the_directory_names_the_project(tmp_path: Path) -> None:
    paths = export_c(layers("portable")[4:5], tmp_path / "my nets")
    assert [path.name for path in paths][:2] == ["my_nets.c", "my_nets.h"]


def refused(out: Path, message: str, kind: type[PolysciError] = SpecError) -> None:
    """Both exports and both checks refuse ``out``, and leave it as it is."""
    before = sorted(out.rglob("*")) if out.is_dir() else None
    one = layers("portable")[4:5]
    for action in (
        lambda: check_c(out, name="net"),
        lambda: check_python(out, name="net"),
        lambda: export_c(one, out, name="net"),
        lambda: export_python(one, out, name="net"),
    ):
        with pytest.raises(kind, match=message):
            action()
    assert (sorted(out.rglob("*")) if out.is_dir() else None) == before


def test_other_peoples_files_are_left_alone(tmp_path: Path) -> None:
    mine = tmp_path / "README.md"
    mine.write_text("my own notes\n")
    refused(tmp_path, r"holds other files \('README.md'\); choose an empty directory, or force")
    for number in range(5):
        (tmp_path / f"{number}.txt").touch()
    refused(tmp_path, r"\('0.txt', '1.txt', '2.txt' and 3 more\)")
    paths = export_c(layers("portable")[4:5], tmp_path, name="net", force=True)
    assert "my own" not in mine.read_text()
    assert len([*tmp_path.iterdir()]) == 5 + len(paths)


def test_an_earlier_export_is_replaced_but_not_another_ones(project: Path) -> None:
    (project / "net.h").write_text("/* Generated by polysci */ old")
    export_c(layers("portable"), project, name="net")
    assert "net_supported" in (project / "net.h").read_text()
    with pytest.raises(SpecError, match=r"holds other files \('net.c', 'net.h'\)"):
        export_c(layers("portable"), project, name="other")
    (project / "net.h").unlink()
    (project / "net.h").symlink_to("/etc/hostname")
    with pytest.raises(SpecError, match=r"holds other files \('net.h'\)"):
        export_c(layers("portable"), project, name="net")


def test_what_is_no_directory_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    refused(file, "a file, expected a directory")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    refused(tmp_path / "link", "a symbolic link to nothing")


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for out in (tmp_path / "file" / "below", Path("/proc/polysci"), tmp_path / ("x" * 300)):
        with pytest.raises(PolysciError, match=r"cannot be written: .*; choose another directory"):
            export_c(layers("portable")[4:5], out, name="net")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_failure_leaves_the_earlier_export(project: Path) -> None:
    before = {path.name: path.read_bytes() for path in project.iterdir()}
    (project / "net.c").unlink()
    (project / "net.c").mkdir()  # a rename over it fails
    with pytest.raises(PolysciError, match="cannot be written: Is a directory"):
        export_c(layers("portable")[:1], project, name="net", force=True)
    (project / "net.c").rmdir()
    after = {path.name: path.read_bytes() for path in project.iterdir()}
    assert after == {name: text for name, text in before.items() if name != "net.c"}


def test_what_cannot_be_exported_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="at least one layer, got none"):
        export_c([], tmp_path / "net")
    one = layers("portable")[0]
    none = ExportedLayer(one.problem.with_(N=0), one.schedule)
    with pytest.raises(UnsupportedError, match="without images"):
        export_c([none], tmp_path / "net")
    assert not [*tmp_path.iterdir()]
