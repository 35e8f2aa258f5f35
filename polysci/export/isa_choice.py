"""One library of a network for several instruction sets: it calls the best code for the CPU."""

from __future__ import annotations

from dataclasses import dataclass, replace

from polysci.errors import PolysciError
from polysci.export.files import fill_template
from polysci.export.layer_project import compiles_where
from polysci.network.code import arguments_of
from polysci.network.compiled import PlannedNetwork
from polysci.printers.network import TEMPLATES as NETWORK_TEMPLATES
from polysci.printers.network import RunEntry, pool_values, run_values, size_constants
from polysci.text import templates


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
        values = {"CONDITION": self._condition(plan), "CODE": text, "UNIT": path.removesuffix(".c")}
        return fill_template("isa_choice_unit.c", values)

    def _condition(self, plan: PlannedNetwork) -> str:
        """Return where the code of a plan compiles."""
        code = "\n".join(plan.code.files.values())
        return compiles_where(code, self.name, self.key(plan))

    def _choosing(self) -> str:
        """Return the C that asks the CPU."""
        code = self.plans[0].code
        arguments = arguments_of(code.placed.program)
        words = [argument.parameter.split()[-1].lstrip("*") for argument in arguments]
        values = {
            "NAME": self.name,
            "POOL": "1" if code.pool == "callback" else "",
            "PARAMETERS": "".join(f", {argument.parameter}" for argument in arguments),
            "ARGUMENTS": "".join(f", {word}" for word in words),
        }
        plans = [
            {
                "PLAN": plan.name, "ISA": self.key(plan), "KEY": self.key(plan).upper(),
                "CONDITION": self._condition(plan),
            }
            for plan in self.plans
        ]  # fmt: skip
        rows = {"PLANS": plans, "ARGUMENTS": [{"ARGUMENT": word} for word in words]}
        return fill_template("isa_choice.c", values, rows)
