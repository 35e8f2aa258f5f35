"""Layers -> a C project: one .c and one .h for all, a self-test, a Makefile and a CMakeLists."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from polysci.export import folder, selftest
from polysci.export.project import Planned, Project, Unit, filled, project, title

_DECLARATIONS = """\
int64_t {0}_workspace_size(void);
int64_t {0}_packed_size(void);
void {0}_pack_weights(const float *w, float *packed);
int {0}(const float *x, const float *packed, float *y, const float *bias,
        const float *residual, const float *clamp, void *workspace);
"""
_TEMPLATES = {
    "{0}.c": "source.c",
    "{0}.h": "header.h",
    "Makefile": "makefile.mk",
    "CMakeLists.txt": "cmakelists.txt",
    "README.md": "c_readme.md",
}
_SELFTEST = "selftest.c"


def export_c(
    results: Sequence[Planned], out: Path, *, name: str | None = None, force: bool = False
) -> list[Path]:
    """Write a C project of ``results`` (``tune.Result`` or ``Layer``) into the directory ``out``.

    NAME.c, NAME.h, selftest.c, Makefile, CMakeLists.txt and README.md need nothing but a C
    compiler; the same layers give the same bytes. ``name`` (default: the directory's) begins all
    symbols and is made an identifier where it is none. Returns the paths written.

    Raises SpecError for no layers or a directory that holds other files (unless ``force``, which
    replaces the six and leaves the rest), UnsupportedError for layers of several instruction sets,
    PolysciError if ``out`` cannot be written.
    """
    check_c(out, name=name, force=force)
    whole = project(results, title(out, name))
    return folder.write(out, files(whole), leftovers=_leftovers(whole.name), force=force)


def check_c(out: Path, *, name: str | None = None, force: bool = False) -> None:
    """Raise what ``export_c`` would find wrong with ``out``, before there are any results."""
    called = title(out, name)
    paths = [*(path.format(called) for path in _TEMPLATES), _SELFTEST]
    folder.check(out, paths, leftovers=_leftovers(called), force=force)


def _leftovers(name: str) -> tuple[str, ...]:
    """What building an earlier export leaves behind."""
    return (f"lib{name}.a", f"{name}.o", "selftest.o", "selftest", "build")


def files(whole: Project) -> dict[str, str]:
    """The text of every file of the project."""
    example = whole.units[0].symbol
    values = {
        "NAME": whole.name,
        "UPPER": whole.name.upper(),
        "SIZE": whole.size,
        "ISA": whole.isa,
        "FEATURES": whole.features,
        "EXAMPLE": example,
        "LAYERS": "\n".join(map(_documented, whole.units)),
        "CODE": whole.code(),
        **_openmp(whole),
    }
    made = {path.format(whole.name): filled(name, values) for path, name in _TEMPLATES.items()}
    return made | {_SELFTEST: selftest.text(whole.units, values)}


def _openmp(whole: Project) -> dict[str, str]:
    """What the build files and the README say about OpenMP; nothing where no layer uses it."""
    if whole.threads == 1:
        return {"OPENMP": "OPENMP =", "FIND_OPENMP": "", "WITH_OPENMP": ""}
    return {
        "OPENMP": filled("openmp.mk", {}),
        "FIND_OPENMP": filled("openmp.cmake", {"NAME": whole.name}),
        "WITH_OPENMP": " -fopenmp",
    }


def _documented(unit: Unit) -> str:
    """Comment and declarations of one layer."""
    problem, threads = unit.layer.problem, unit.layer.threads
    axes, layout = problem.axes, f"{problem.layout.upper()}, " if problem.layout else ""
    label = f" ({unit.label})" if unit.label else ""
    rows = [
        ("x", problem.x_shape, axes["x"]),
        ("w", problem.w_shape, axes["w"]),
        ("y, residual", problem.y_shape, axes["y"]),
        ("bias", (problem.y_shape[problem.bias_axis],), axes["bias"]),
    ]
    lines = [
        f"/* {unit.identifier}{label}: {unit.words}",
        f" * {layout}{threads} thread{'s' * (threads > 1)}",
        *(f" *   {which:<12} {_extents(shape, names)}" for which, shape, names in rows),
    ]
    return "\n".join(lines) + " */\n" + _DECLARATIONS.format(unit.symbol)


def _extents(shape: tuple[int, ...], axes: str) -> str:
    """``1 x 56 x 56 x 64 (N H W C), strides 200704 3584 64 1``."""
    strides = [1]
    for extent in reversed(shape[1:]):
        strides.insert(0, strides[0] * extent)
    return f"{' x '.join(map(str, shape))} ({axes}), strides {' '.join(map(str, strides))}"
