"""The wheel away from its checkout; the Makefile where something that it needs is missing."""

import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

from polysci import __version__

ROOT = Path(__file__).parents[2]
LAYER = "mb1ic8ih5oc16kh3ph1"
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT, BUILD = SETTINGS["project"], SETTINGS["build-system"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy of what belongs to the package, so that nothing else can slip in."""
    source, out = (tmp_path_factory.mktemp(name) for name in ("source", "dist"))
    for folder in ("polysci", "models", "microkernels"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / folder, source / folder, ignore=ignored)
    for file in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, source)
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, cwd=source)
    (path,) = out.glob("*.whl")
    return path


def test_all_extras_are_those_of_users() -> None:
    extras = dict(PROJECT["optional-dependencies"])
    (every,) = extras.pop("all")
    named = every.removeprefix("polysci[").removesuffix("]").split(",")
    assert {*named} == {*extras} - {"dev", "docs", "peers"}


def test_the_recipe_for_conda_is_of_this_project() -> None:
    """Name, version, entry point and requirements; conda adds a compiler and the system."""
    yaml = pytest.importorskip("yaml", reason="distributed brings it")
    recipe = yaml.safe_load((ROOT / "docs/packaging/recipe.yaml").read_text(encoding="utf-8"))
    python = f"python{PROJECT['requires-python']}"
    run, host = (
        {text.replace(" ", "") for text in recipe["requirements"][when]} for when in ("run", "host")
    )
    assert run == {"__linux", "c-compiler", python, *PROJECT["dependencies"]}
    assert host == {"pip", python, *BUILD["requires"]}
    (script,) = PROJECT["scripts"].items()
    assert recipe["build"]["python"]["entry_points"] == [" = ".join(script)]
    assert recipe["context"]["version"] == __version__
    about = recipe["about"]
    assert (about["summary"], about["license"]) == (PROJECT["description"], PROJECT["license"])
    assert (ROOT / about["license_file"]).exists()


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """bin/ of a new environment that holds the wheel; its dependencies are borrowed from here."""
    home = tmp_path_factory.mktemp("venv")
    venv.create(home, symlinks=True)
    paths = sysconfig.get_paths(vars={"base": str(home), "platbase": str(home)})
    # A line of a .pth file comes after the environment's own packages, and its .pth files rest.
    site = Path(paths["purelib"], "borrowed.pth")
    ours = {sysconfig.get_path(name): None for name in ("purelib", "platlib")}
    site.write_text("\n".join(ours), encoding="utf-8")
    binaries = Path(paths["scripts"])
    pip = [sys.executable, "-m", "pip", "--python", binaries / "python", "--quiet"]
    run(*pip, "install", "--no-deps", "--no-index", wheel, cwd=home)
    return binaries


def run(*command: object, cwd: Path, **environment: str) -> str:
    """Standard output of a command that succeeds."""
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, env=os.environ | environment,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{command}: {done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.exhaustive
def test_the_wheel_carries_the_package_and_its_data_and_nothing_else(wheel: Path) -> None:
    assert wheel.name.endswith("-py3-none-any.whl")
    names = zipfile.ZipFile(wheel).namelist()
    data = "polysci/_data/"
    for wanted in (
        "polysci/py.typed",
        f"{data}models/resnet50.txt",
        f"{data}microkernels/brgemm.h",
    ):
        assert wanted in names
    shipped = {path.name for path in (ROOT / "microkernels").iterdir()}
    assert shipped == {Path(name).name for name in names if name.startswith(f"{data}microkernels/")}
    assert not [name for name in names if not name.startswith(("polysci/", "polysci-"))]


@pytest.mark.exhaustive
def test_installed_it_finds_its_data(installed: Path, tmp_path: Path) -> None:
    code = (
        "from polysci.ops.layer_lists import load, names, resource\n"
        "print(resource('models'), len(names()), len(load('resnet50')))"
    )
    found = run(installed / "python", "-P", "-c", code, cwd=tmp_path, PYTHONPATH="")
    path, networks, layers = found.split()
    assert Path(path).is_relative_to(installed.parent)
    assert int(networks) >= 12 and int(layers) > 15


@pytest.mark.exhaustive
def test_installed_it_optimises_outside_the_checkout(installed: Path, tmp_path: Path) -> None:
    polysci = installed / "polysci"
    version = run(polysci, "--version", cwd=tmp_path, PYTHONPATH="")
    assert version.split() == ["polysci", __version__]
    command = [polysci, "optimize", LAYER, "--level", "estimate"]
    assert "brgemm_" in run(*command, cwd=tmp_path, PYTHONPATH="")


def make(*arguments: str, path: str = os.environ["PATH"]) -> str:
    """What make says on its way to failing."""
    make = shutil.which("make")
    if make is None:
        pytest.skip("make is not installed")
    done = subprocess.run(
        [make, *arguments], cwd=ROOT, env=os.environ | {"PATH": path, "CC": ""},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode
    return done.stderr


def test_make_says_how_to_get_python() -> None:
    said = make("tools", "PYTHON=no-such-python")
    assert "polysci needs Python 3.11" in said and "apt install python3-venv" in said


def test_make_says_how_to_get_a_compiler(tmp_path: Path) -> None:
    (tmp_path / "sh").symlink_to(shutil.which("sh") or "/bin/sh")
    said = make("tools", f"PYTHON={sys.executable}", path=str(tmp_path))
    assert "polysci needs a C compiler" in said and "apt install gcc" in said
