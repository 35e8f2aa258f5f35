"""Layers -> a C project: one .c and one .h for all, a self-test, a Makefile and a CMakeLists."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from pathlib import Path
from textwrap import wrap

from polysci.export import elements, folder, selftest, units
from polysci.export.build_texts import file_flags, wait_policy
from polysci.export.candidates import with_isas
from polysci.export.project import Entry, Project, TunedProblem, fill_template, project, title

_TEMPLATES = {
    "{0}.h": "header.h",
    "Makefile": "makefile.mk",
    "CMakeLists.txt": "cmakelists.txt",
    "README.md": "c_readme.md",
}
_SELFTEST = "selftest.c"
_ACTIVATION = [
    " * packed is w as it lies, at any multiple of the size of its elements: w changes from call",
    " * to call, and every call packs it in workspace. LAYER_pack_weights only copies w.",
]


def export_c(
    results: Sequence[TunedProblem],
    out: Path,
    *,
    name: str | None = None,
    force: bool = False,
    isas: Sequence[str] = (),
    level: str = "measure",
) -> list[Path]:
    """Write a C project of ``results`` (``tune.Result`` or ``Layer``) into the directory ``out``.

    NAME.c, NAME.h, selftest.c, Makefile, CMakeLists.txt and README.md need nothing but a C
    compiler; the same layers give the same bytes. ``name`` (default: the directory's) begins all
    symbols and is made an identifier where it is none. Returns the paths written.

    ``isas`` are the instruction sets to hold code of, the results' own among them; for the others
    a schedule is searched at ``level``, or estimated where this machine does not run them. Code of
    several (also where a ``Layer`` has ``others``) goes into a NAME_ISA.c each; the functions of
    NAME.h then take, at run time, the best that the CPU has.

    Raises SpecError for no layers, ``isas`` that do not fit, or a directory that holds other files
    (unless ``force``, which replaces what has the same name and leaves the rest); PolysciError if
    ``out`` cannot be written; and what ``optimize`` raises.
    """
    if isas:  # before the search
        check_c(out, name=name, force=force, isas=isas)
        results = with_isas(results, isas, level)
    whole = project(results, title(out, name))
    return folder.write(out, files(whole), leftovers=_leftovers(whole.name), force=force)


def check_c(
    out: Path, *, name: str | None = None, force: bool = False, isas: Sequence[str] = ()
) -> None:
    """Raise what ``export_c`` would find wrong with ``out``, before there are any results."""
    called = title(out, name)
    paths = [f"{called}.c", *(path.format(called) for path in _TEMPLATES), _SELFTEST]
    paths += units.patterns(called, isas)
    folder.check(out, paths, leftovers=_leftovers(called), force=force)


def _leftovers(name: str) -> tuple[str, ...]:
    """Return what building an earlier export leaves behind."""
    return (f"lib{name}.a", f"{name}.o", f"{name}_*.o", "selftest.o", "selftest", "build")


def files(whole: Project) -> dict[str, str]:
    """The text of every file of the project."""
    example = whole.entries[0]
    values = {
        "NAME": whole.name,
        "UPPER": whole.name.upper(),
        "SIZE": whole.size,
        "EXAMPLE": example.symbol,
        "EXAMPLE_ZERO": ", x_zero" * example.precision.integer,
        "EXAMPLE_TO": " &to," * example.precision.scaled,
        "LAYERS": "\n".join(map(_documented, whole.entries)),
        **elements.holes(whole),
        **_openmp(whole),
        "WAITING": wait_policy(whole.threads, " * ", " * "),
        **(_one(whole) if len(whole.units) == 1 else _several(whole)),
    }
    several = len(whole.units) > 1
    sources = units.files(whole, values) if several else {f"{whole.name}.c": _source(whole, values)}
    values |= file_flags(sources)
    made = {
        path.format(whole.name): fill_template(name, values) for path, name in _TEMPLATES.items()
    }
    return sources | made | {_SELFTEST: selftest.text(whole, values)}


def _source(whole: Project, values: dict[str, str]) -> str:
    return fill_template("source.c", values | {"CODE": whole.code()})


def _one(whole: Project) -> dict[str, str]:
    """Return the values of templates for a project whose code is in NAME.c."""
    name = whole.name
    return {
        "CPUS": f"these features: {whole.units[0].features}",
        "CHOICE": "",
        "HOLDS": f"`{name}.c` holds everything",
        "FILES": "both files",
        "SOURCES": f"{name}.c",
        "OBJECTS": f"{name}.o",
        "HEADERS": f"{name}.h",
    }


def _several(whole: Project) -> dict[str, str]:
    """Return the values of templates for a project in which every unit has a file."""
    name = whole.name
    stems = [name, *(f"{name}_{unit.key}" for unit in whole.units)]
    width = max(len(unit.key) for unit in whole.units)
    codes = "\n".join(
        "\n".join(wrap(
            f"{unit.key:<{width}}   {unit.features}", 98,
            initial_indent=" *   ", subsequent_indent=f" *   {'':<{width}}   ",
        ))
        for unit in whole.units
    )  # fmt: skip
    keys = ", ".join(unit.key for unit in whole.units)
    features = dict.fromkeys(" ".join(unit.features for unit in whole.units).split())
    choice = {
        "CPUS": f"one of these: {keys}",
        "CHOICE": fill_template("choice.txt", {"CODES": codes, "UPPER": name.upper()}),
        "HOLDS": f"`{name}.c` chooses among the others",
        "WHICH": fill_template("which.txt", {}).rstrip(),
    }
    no_choice = {
        "CPUS": f"these features: {' '.join([f for f in features if f != 'none']) or 'none'}",
        "CHOICE": "",
        "HOLDS": f"the files `{name}_*.c` hold everything else",
        "WHICH": fill_template("all.txt", {}).rstrip(),
    }
    return {
        **(choice if any(map(units.alternatives, whole.entries)) else no_choice),
        "FILES": "all but selftest.c",
        "SOURCES": " ".join(f"{stem}.c" for stem in stems),
        "OBJECTS": " ".join(f"{stem}.o" for stem in stems),
        "HEADERS": f"{name}.h {name}_units.h",
    }


def _openmp(whole: Project) -> dict[str, str]:
    """Return the values about OpenMP of build files and README; empty where no layer uses it."""
    if whole.threads == 1:
        return {"OPENMP": "OPENMP =", "FIND_OPENMP": "", "WITH_OPENMP": ""}
    return {
        "OPENMP": fill_template("openmp.mk", {}),
        "FIND_OPENMP": fill_template("openmp.cmake", {"NAME": whole.name}),
        "WITH_OPENMP": " -fopenmp",
    }


def _documented(entry: Entry) -> str:
    """Comment and declarations of one layer."""
    problem, threads = entry.layer.problem, entry.layer.threads
    axes, layout = problem.axes, f"{problem.layout.upper()}, " if problem.layout else ""
    label = f" ({entry.label})" if entry.label else ""
    types = entry.precision
    rows = [
        ("x", types.x, (problem.x_shape, axes["x"])),
        ("w", types.w, (problem.w_shape, axes["w"])),
        ("y, residual", types.y, (problem.y_shape, axes["y"])),
        ("bias", types.sum, ((problem.y_shape[problem.bias_axis],), axes["bias"])),
    ]
    lines = [
        f"/* {entry.identifier}{label}: {entry.words}",
        f" * {layout}{entry.precision}, {threads} thread{'s' * (threads > 1)}",
        *(f" *   {which:<12} {kind!s:<4} {_extents(*of)}" for which, kind, of in rows),
    ]
    lines += _ACTIVATION * entry.activation
    return "\n".join(lines) + " */\n" + _sizes(entry) + units.document_isas(entry)


def _sizes(entry: Entry) -> str:
    """Constants of a layer in bytes: of memory that a call takes, the most of any code it has."""
    problem, types = entry.layer.problem, entry.precision
    sizes = {
        "X": types.x.bytes * prod(problem.x_shape),
        "W": types.w.bytes * prod(problem.w_shape),
        "Y": types.y.bytes * prod(problem.y_shape),
        "PACKED": max(source.packed for source in entry.sources),
        "WORKSPACE": max(source.workspace for source in entry.sources),
    }
    return "".join(f"#define {entry.symbol}_{name}_SIZE {size}\n" for name, size in sizes.items())


def _extents(shape: tuple[int, ...], axes: str) -> str:
    """``1 x 56 x 56 x 64 (N H W C), strides 200704 3584 64 1``."""
    strides = [1]
    for extent in reversed(shape[1:]):
        strides.insert(0, strides[0] * extent)
    return f"{' x '.join(map(str, shape))} ({axes}), strides {' '.join(map(str, strides))}"
