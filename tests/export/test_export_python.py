"""The exported Python package: imported where only NumPy is, with and without a compiler."""

import hashlib
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from polysci.errors import BuildError
from polysci.export import export_python
from polysci.measure.integer_reference import Arrays
from polysci.target import microkernels
from polysci.target.host import detect
from polysci.target.isas import ISAS
from tests.support.exported import IDENTIFIERS, edited, layers, run

RUNS = [isa.name for isa in detect().allowed if microkernels.family("brgemm", isa.name, "f32")]
DATA = Path(__file__).parents[1] / "data"


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("python") / "net"
    paths = export_python(layers(RUNS[-1]), out)
    assert {str(path.relative_to(out)) for path in paths} == {
        "pyproject.toml", "README.md", "net/__init__.py", "net/_layers.py", "net/_library.py",
        "net/_native.c", "net/_native.so", "net/_values.py", "net/py.typed",
    }  # fmt: skip
    return out


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """One of a single layer, to damage."""
    export_python(layers(RUNS[-1])[3:4], tmp_path / "net")
    return tmp_path / "net"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of packages that holds NumPy and nothing else."""
    site = tmp_path_factory.mktemp("site")
    home = Path(np.__file__).parent
    for path in (home, home.with_name("numpy.libs")):
        if path.exists():
            (site / path.name).symlink_to(path)
    return site


def python(
    site: Path, package: Path, code: str, *arguments: str, **env: str
) -> subprocess.CompletedProcess[str]:
    """Run code with the package and NumPy on the path, nothing else and no site-packages."""
    head = f"import sys; sys.path += [{str(site)!r}, {str(package)!r}]\n"
    return run(sys.executable, "-ISW", "error", "-c", head + code, *arguments, cwd=package, **env)


def test_results_without_polysci_or_a_compiler(exported: Path, site: Path, tmp_path: Path) -> None:
    inputs, expected = {}, {}
    for identifier, layer in zip(IDENTIFIERS, layers(RUNS[-1]), strict=True):
        arrays = Arrays.of(layer.problem, 3)
        inputs |= {f"{identifier}/{name}": array for name, array in arrays.inputs.items()}
        expected |= {f"{identifier}/plain": arrays.plain, f"{identifier}/fused": arrays.fused}
    files = tmp_path / "inputs.npz", tmp_path / "found.npz"
    np.savez(files[0], **inputs)
    script = (DATA / "exported_results.py").read_text()
    done = python(site, exported, script, *map(str, files), PATH="/nonexistent")
    assert (done.returncode, done.stdout) == (0, "")
    found = np.load(files[1])
    assert sorted(found) == sorted(expected)
    assert [
        name for name, array in expected.items() if not np.array_equal(found[name], array)
    ] == []


@pytest.mark.exhaustive
def test_arguments_and_threads(exported: Path, site: Path) -> None:
    done = python(site, exported, (DATA / "exported_arguments.py").read_text())
    assert (done.returncode, done.stdout) == (0, "")


CALL = """
import numpy as np, net
layer = net.layer_class
y = layer(np.ones(layer.x_shape, "f4"), layer.pack_weights(np.ones(layer.w_shape, "f4")))
print(y.max())
"""


@pytest.mark.exhaustive
@pytest.mark.parametrize("damage", ["truncated", "absent", "foreign"])
def test_compiles_what_does_not_load(
    package: Path, site: Path, tmp_path: Path, damage: str
) -> None:
    native = package / "net" / "_native.so"
    home = tmp_path / "home"
    if damage == "truncated":
        native.write_bytes(native.read_bytes()[:5000])
    elif damage == "absent":
        native.unlink()
    else:  # an intact file for another machine
        edited(
            package / "net" / "__init__.py",
            hashlib.sha256(native.read_bytes()).hexdigest(),
            hashlib.sha256(b"\x7fELF other").hexdigest(),
        )
        native.write_bytes(b"\x7fELF other")
    done = python(site, package, CALL, XDG_CACHE_HOME=str(home))
    assert (done.returncode, done.stdout) == (0, "72.0\n")
    (kept,) = (home / "net").iterdir()
    assert (home / "net").stat().st_mode & 0o777 == 0o700
    stamp = kept.stat().st_mtime_ns
    again = python(site, package, CALL, XDG_CACHE_HOME=str(home))
    assert again.stdout == "72.0\n" and kept.stat().st_mtime_ns == stamp


@pytest.mark.exhaustive
def test_survives_a_damaged_or_shared_cache(package: Path, site: Path, tmp_path: Path) -> None:
    (package / "net" / "_native.so").unlink()
    home = tmp_path / "home"
    assert python(site, package, CALL, XDG_CACHE_HOME=str(home)).stdout == "72.0\n"
    (kept,) = (home / "net").iterdir()
    kept.write_bytes(kept.read_bytes()[:3000])
    assert python(site, package, CALL, XDG_CACHE_HOME=str(home)).stdout == "72.0\n"
    (home / "net").chmod(0o777)  # others could put code there
    before = sorted((home / "net").iterdir())
    assert python(site, package, CALL, XDG_CACHE_HOME=str(home)).stdout == "72.0\n"
    assert sorted((home / "net").iterdir()) == before


def given_away(folder: Path) -> None:
    """A link of another user to a directory of ours."""
    folder.rename(folder.with_name("real"))
    folder.symlink_to(folder.with_name("real"))
    try:
        os.chown(folder, 54321, -1, follow_symlinks=False)
    except OSError:
        pytest.skip("only root may give links away")


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("change", "used"),
    [
        (lambda folder: None, True),
        (lambda folder: folder.parent.chmod(0o1777), True),  # as /tmp: the owner alone renames
        (lambda folder: folder.parent.chmod(0o777), False),
        (given_away, False),
    ],
    ids=["private", "below-sticky", "below-writable", "link-of-another"],
)
def test_never_loads_from_a_cache_that_another_can_replace(
    package: Path, site: Path, tmp_path: Path, change: Callable[[Path], None], used: bool
) -> None:
    (package / "net" / "_native.so").unlink()
    home = tmp_path / "home"
    (home / "net").mkdir(parents=True)
    (home / "net").chmod(0o700)
    change(home / "net")
    assert python(site, package, CALL, XDG_CACHE_HOME=str(home)).stdout == "72.0\n"
    assert bool([*(home / "net").iterdir()]) is used


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("env", "reason"),
    [
        ({"PATH": "/nonexistent", "CC": ""}, r"no C compiler \(cc, gcc, clang\) in PATH"),
        ({"CC": "false"}, "false failed"),
        ({"CC": "/nonexistent/cc"}, "No such file or directory: '/nonexistent/cc'"),
        ({"CC": "'"}, "No closing quotation"),
    ],
)
def test_says_why_it_cannot_load(
    package: Path, site: Path, env: dict[str, str], reason: str
) -> None:
    native = package / "net" / "_native.so"
    native.write_bytes(native.read_bytes()[:100])
    done = python(site, package, "import net", XDG_CACHE_HOME=str(package / "cache"), **env)
    assert done.returncode == 1
    last = done.stdout.strip().splitlines()[-1]
    assert re.search(r"ImportError: net: .*_native.so cannot be used: it is not the file", last)
    assert re.search(reason, last) and "or the environment variable CC" in last


@pytest.mark.exhaustive
def test_on_a_cpu_without_the_features(package: Path, site: Path, tmp_path: Path) -> None:
    source = package / "net" / "_native.c"
    source.write_text(re.sub(r"!PS_CPU_OK\(\)", "1", source.read_text()))
    (package / "net" / "_native.so").unlink()
    done = python(site, package, CALL, XDG_CACHE_HOME=str(tmp_path / "home"))
    assert done.returncode == 1
    assert "RuntimeError: <net layer 'class': nhwc" in done.stdout
    needed = re.search(r"features that the code needs: (.*)", done.stdout)
    assert needed and needed[1] in {" ".join(ISAS[name].features) or "none" for name in RUNS}


def installed(out: Path) -> list[str]:
    return sorted(str(path.relative_to(out)) for path in out.rglob("*") if path.is_file())


@pytest.mark.exhaustive
def test_package_can_be_installed(package: Path, site: Path, tmp_path: Path) -> None:
    pytest.importorskip("hatchling")
    wheels = tmp_path / "wheels"
    done = run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", wheels, cwd=package)
    assert done.returncode == 0, done.stdout
    (wheel,) = wheels.iterdir()
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "installed")
    assert {"net/_native.so", "net/_native.c", "net/py.typed"} <= {
        *installed(tmp_path / "installed")
    }
    done = python(site, tmp_path / "installed", CALL, PATH="/nonexistent")
    assert (done.returncode, done.stdout) == (0, "72.0\n")


def test_text_is_clean_and_the_same_each_time(exported: Path, tmp_path: Path) -> None:
    again = tmp_path / "net"
    for path in export_python(layers(RUNS[-1]), again):
        other = exported / path.relative_to(again)
        assert path.read_bytes() == other.read_bytes()
        assert str(tmp_path.parent).encode() not in path.read_bytes()
    package = (again / "net" / "__init__.py").read_text(encoding="ascii")
    assert "name='\\u5377\\u79ef'" in package and "import os" not in package
    export_python(layers(RUNS[-1]), again)  # over itself, with __pycache__ beside


def test_needs_a_compiler_at_export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "/nonexistent/cc")
    with pytest.raises(BuildError, match="/nonexistent/cc"):
        export_python(layers("portable")[4:5], tmp_path / "net")
    assert not [*tmp_path.iterdir()]
