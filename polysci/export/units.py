"""The C files of a project of several units: one a unit, what declares them, what chooses."""

from __future__ import annotations

import re
from collections.abc import Sequence

from polysci.export.project import Entry, Project, ProjectFile, fill_template
from polysci.lower.lowering import assemble
from polysci.printers.interface import declare, dispatch, refuse
from polysci.target.isas import ISAS, isa_named

# Which processors have the intrinsics of a header: elsewhere it does not compile.
_PROCESSORS = {
    "immintrin.h": "defined(__x86_64__)",
    "cpuid.h": "defined(__x86_64__)",
    "arm_neon.h": "defined(__aarch64__)",
}


def files(whole: Project, values: dict[str, str]) -> dict[str, str]:
    """The text of all C files but the header and the self-test; ``values`` fill other holes."""
    units = "\n".join(_declared(whole, unit) for unit in whole.units)
    made = {f"{whole.name}_{unit.key}.c": _unit(whole, unit, values) for unit in whole.units}
    return {
        f"{whole.name}.c": _choosing(whole, values),
        f"{whole.name}_units.h": fill_template("units.h", values | {"UNITS": units}),
        **made,
    }


def compiles_where(code: str, name: str, key: str) -> str:
    """The C condition of code of one kind of CPU: processors that have its headers."""
    headers = set(re.findall(r"^#include <(\w+\.h)>", code, re.MULTILINE))
    conditions = dict.fromkeys(_PROCESSORS[name] for name in _PROCESSORS if name in headers)
    return " && ".join([*conditions, f"!defined({name.upper()}_WITHOUT_{key.upper()})"])


def patterns(name: str, isas: Sequence[str]) -> list[str]:
    """Return patterns of the files beside NAME.c, before the units are known.

    Those depend on precisions and schedules; ``isas`` are the instruction sets chosen, or none.
    """
    chosen = [isa_named(isa, source="isas") for isa in isas] or list(ISAS.values())
    own = dict.fromkeys([*(link for isa in chosen for link in isa.chain), *isas, "portable"])
    return [f"{name}_units.h", *(f"{name}_{isa}{end}.c" for isa in own for end in ("", "_*"))]


def alternatives(entry: Entry) -> bool:
    """Whether there is a choice to make."""
    return len(entry.sources) > 1


def isa_supported(whole: Project, key: str) -> str:
    """The call that asks whether this CPU runs a unit."""
    return f"{whole.name}_{key}_supported()"


def _unit(whole: Project, unit: ProjectFile, values: dict[str, str]) -> str:
    code = assemble(unit.sources)
    condition = compiles_where(code, whole.name, unit.key)
    nothing = [refuse(source.functions, source.symbol) for source in unit.sources]
    count = len(unit.sources)
    return fill_template("unit.c", values | {
        "KEY": unit.key, "COUNT": f"{count} layer{'s' * (count > 1)}", "CODE": code,
        "CONDITION": condition, "EMPTY": "\n".join(nothing),
    })  # fmt: skip


def _declared(whole: Project, unit: ProjectFile) -> str:
    """Declarations of a unit; layers that have no other are in the public header."""
    public = {entry.symbol for entry in whole.entries}
    sources = [source for source in unit.sources if source.symbol not in public]
    head = f"/* {unit.key}: needs these features: {unit.features} */\n"
    question = f"int {whole.name}_{unit.key}_supported(void);\n"
    return head + question + "".join(source.declarations for source in sources)


def _choosing(whole: Project, values: dict[str, str]) -> str:
    first = [entry for entry in whole.entries if entry.symbol == entry.code and alternatives(entry)]
    parts = [_chosen(whole, entry) for entry in first]
    parts += [_isa(whole, entry) for entry in whole.entries if alternatives(entry)]
    parts += [entry.forwarded for entry in whole.shared]
    sets = dict.fromkeys(tuple(source.key for source in entry.sources) for entry in whole.entries)
    tests = [" || ".join(isa_supported(whole, key) for key in keys) for keys in sets]
    told = [f"({test})" for test in tests] if len(tests) > 1 else tests
    return fill_template("choosing.c", values | {
        "CODE": "\n".join(parts), "SUPPORTED": "\n        && ".join(told),
    })  # fmt: skip


def _chosen(whole: Project, entry: Entry) -> str:
    codes = [(isa_supported(whole, source.key), source.symbol) for source in entry.sources]
    return f"/* {entry.symbol} */\n{dispatch(entry.functions, entry.symbol, codes)}\n"


def _isa(whole: Project, entry: Entry) -> str:
    tests = "".join(
        f'{isa_supported(whole, source.key)} ? "{source.key}"\n         : '
        for source in entry.sources
    )
    return f'const char *{entry.symbol}_isa(void)\n{{\n    return {tests}"";\n}}\n'


def isa_declared(entry: Entry) -> str:
    """The declaration of the function that names the choice, where there is one to make."""
    return f"const char *{entry.symbol}_isa(void);\n" if alternatives(entry) else ""


def document_isas(entry: Entry) -> str:
    """All declarations of a layer in the public header."""
    return declare(entry.functions, entry.symbol) + isa_declared(entry)
