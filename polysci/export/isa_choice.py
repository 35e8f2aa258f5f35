"""One library of a network for several instruction sets: it calls the best code for the CPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from polysci.errors import PolysciError
from polysci.export.files import fill_template
from polysci.export.layer_project import compiles_where
from polysci.network.code import arguments_of
from polysci.network.compiled import PlannedNetwork
from polysci.printers.network import TEMPLATES as NETWORK_TEMPLATES
from polysci.printers.network import RunEntry, pool_values, run_values, size_constants
from polysci.text import templates

# Functions of the library: result, arguments' types and names; @M and @C are its two structs.
_FUNCTIONS: Mapping[str, tuple[str, tuple[str, ...]]] = MappingProxyType(
    {
        "load": ("@M *", ("const char *path", "const char **why")),
        "load_memory": ("@M *", ("const void *weights", "size_t bytes", "const char **why")),
        "load_parts": ("@M *", ("const void *const *parts", "const char **why")),
        "unload": ("void ", ("@M *model",)),
        "model_data": ("const void *", ("const @M *model",)),
        "model_size": ("size_t ", ()),
        "new": ("@C *", ("const @M *model",)),
        "free": ("void ", ("@C *context",)),
        "context_size": ("size_t ", ()),
    }
)


@dataclass(frozen=True, slots=True)
class IsaChoice:
    """Plans of the same network for several instruction sets, the best first, and their name."""

    name: str
    plans: tuple[PlannedNetwork, ...]

    @property
    def first(self) -> PlannedNetwork:
        """The best plan under the name of all: it has the inputs, outputs and weights of each."""
        plan = self.plans[0]
        return replace(plan, code=replace(plan.code, name=self.name))

    def key(self, plan: PlannedNetwork) -> str:
        """Return the word of a plan's instruction set in symbols and files."""
        return plan.name.removeprefix(f"{self.name}_")

    def files(self) -> dict[str, str]:
        """Return all C files. Raises PolysciError where plans differ in their weights."""
        if len({plan.code.weights_file.digest for plan in self.plans}) > 1:
            raise PolysciError(f"{self.name}: its plans need other weights, one from another")
        texts_by_path = {f"{self.name}.h": self._header(), f"{self.name}.c": self._choosing()}
        for plan in self.plans:
            texts = plan.code.files.items()
            texts_by_path |= {path: self._guard(plan, path, text) for path, text in texts}
        return texts_by_path

    def _header(self) -> str:
        """Return the first plan's, with the names of all and the sizes that suffice for each."""
        plan = self.plans[0]
        entry = RunEntry(self.name, arguments_of(plan.code.placed.program))
        files = [other.code.weights_file for other in self.plans]
        sizes = {
            "CONTEXT": max(other.code.arena.size for other in self.plans),
            "MODEL": max(file.constants_size + file.packed_size for file in files),
        }
        return templates.fill(
            NETWORK_TEMPLATES / "network.h",
            {
                **plan.code.values,
                **run_values([entry], self.name),
                **pool_values(plan.code.pool, plan.threads, self.name),
                "NAME": self.name,
                "UPPER": self.name.upper(),
                "FEATURES": "those of one of " + ", ".join(map(self.key, self.plans)),
                "SIZES": size_constants([entry], self.name, sizes),
                "LOADING": fill_template("isa_choice.h", {"NAME": self.name}),
            },
        )

    def _guard(self, plan: PlannedNetwork, path: str, text: str) -> str:
        """Return a file that other processors compile to nothing."""
        if path.endswith(".h"):
            return text
        return (
            f"#if {self._condition(plan)}\n{text}"
            f"#else\ntypedef int {path.removesuffix('.c')}_is_for_other_cpus;\n#endif\n"
        )

    def _condition(self, plan: PlannedNetwork) -> str:
        """Return where the code of a plan compiles."""
        code = "\n".join(plan.code.files.values())
        return compiles_where(code, self.name, self.key(plan))

    def _choosing(self) -> str:
        """Return the C that asks the CPU."""
        includes = "".join(
            f'#if {self._condition(plan)}\n#define HAS_{self.key(plan).upper()}\n'
            f'#include "{plan.name}.h"\n#endif\n'
            for plan in self.plans
        )  # fmt: skip
        arguments = arguments_of(self.plans[0].code.placed.program)
        run = ("void ", ("@C *context", *(argument.parameter for argument in arguments)))
        rows = {**_FUNCTIONS, "run": run}
        if self.plans[0].code.pool == "callback":
            pool = ("@C *context", f"{self.name}_parallel *parallel", "void *pool")
            rows["use_pool"] = ("void ", pool)
        functions = [self._function(name, *row) for name, row in rows.items()]
        values = {"NAME": self.name, "INCLUDES": includes, "FUNCTIONS": "\n".join(functions)}
        values["SUPPORTED"] = "".join(self._test(plan, "return 1;") for plan in self.plans)
        isas = [self._test(plan, f'return "{self.key(plan)}";') for plan in self.plans]
        values["ISA"] = "".join(isas)
        return fill_template("isa_choice.c", values)

    def _test(self, plan: PlannedNetwork, statement: str) -> str:
        """C that executes a statement where a plan's code is there and the CPU runs it."""
        return (
            f"#ifdef HAS_{self.key(plan).upper()}\n    if ({plan.name}_supported())\n"
            f"        {statement}\n#endif\n"
        )

    def _function(self, name: str, result: str, parameters: Sequence[str]) -> str:
        """Return a public function, which calls that of a plan."""
        names = [parameter.split()[-1].lstrip("*") for parameter in parameters]
        body = "".join(
            self._test(plan, self._call(plan, name, result, parameters)) for plan in self.plans
        )
        ends = [f"    (void){word};\n" for word in names]
        if "why" in names:
            ends.append('    if (why)\n        *why = "this CPU runs none of the code";\n')
        if result != "void ":
            ends.append("    return 0;\n")
        head = _insert_structs(
            f"{result}{self.name}_{name}({', '.join(parameters) or 'void'})", self.name
        )
        return f"{head}\n{{\n{body}{''.join(ends)}}}\n"

    def _call(self, plan: PlannedNetwork, name: str, result: str, parameters: Sequence[str]) -> str:
        """Return a call with pointers to the plan's own structs."""
        arguments = []
        for parameter in parameters:
            kind, word = parameter[: parameter.rindex(" ") + 1], parameter.split()[-1]
            stars = word[: len(word) - len(word.lstrip("*"))]
            cast = f"({_insert_structs(kind, plan.name)}{stars})" if "@" in kind else ""
            arguments.append(f"{cast}{word.lstrip('*')}")
        call = f"{plan.name}_{name}({', '.join(arguments)});"
        if result == "void ":
            return f"{{\n            {call}\n            return;\n        }}"
        return f"return {f'({_insert_structs(result, self.name)})' if '@' in result else ''}{call}"


def _insert_structs(text: str, name: str) -> str:
    """C text with the structs of a library."""
    return text.replace("@M", f"{name}_model").replace("@C", f"{name}_context")
