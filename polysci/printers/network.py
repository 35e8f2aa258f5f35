"""The C around a network's stages: its header, how weights load, its threads, entries by size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Final

from polysci.loop_ir.nodes import Buffer, LoopFunction, LoopModule, Team
from polysci.numerics.dtypes import array_type
from polysci.printers import ctree as c
from polysci.printers import openmp
from polysci.printers.c import CPrinter
from polysci.printers.c_values import c_type
from polysci.printers.definitions import trim
from polysci.printers.headers import (
    FUNCTION_HEADERS,
    ROUTINES,
    header_for,
    target_lines,
    vector_headers,
)
from polysci.printers.interface import SCALES, TEAM
from polysci.target.isa import Isa
from polysci.text import templates
from polysci.text.names import remark

TEMPLATES: Final = Path(__file__).with_name("templates")
OPENMP: Final = "openmp"
TEAM_MEMBER: Final = "m->team"  # in stages, of a team that is no region of OpenMP's
MEMORY: Final = Buffer("m", "ps_memory", const=True)  # the parameter of stages
RINGS: Final = """\
/* Rows that a member makes of a tensor: those from `base` to `done` are there, `product` is that of
 * a stack whose weights are packed. */
typedef struct {
    char *at;
    int64_t base, done, product;
} ps_ring;
"""
_FLUSHED: Final = """\
In a run, and in the weights,
 * numbers below 2^-126 (of double: 2^-1022) count as 0; then the caller has its mode back. Compile
 * with -DPS_KEEP_DENORMALS to have runs compute with them, at tens of cycles each."""


# Arguments of a run.


@dataclass(frozen=True, slots=True)
class RunArgument:
    """An argument of a run: its names in C and in the model, its elements, a remark on it.

    ``varying``: the parameters, by axis, that say how many elements there are, at most ``shape``.
    """

    word: str
    title: str
    dtype: str
    shape: tuple[int, ...]
    note: str = ""
    varying: Mapping[int, str] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """The C type of an element."""
        return c_type(self.dtype)

    @property
    def parameter(self) -> str:
        """The parameter as a prototype lists it."""
        return f"{'const ' * self.word.startswith('x')}{self.kind} *{self.word}"

    @property
    def row(self) -> str:
        """The line of the header about it."""
        extents = (self.varying.get(at, str(size)) for at, size in enumerate(self.shape))
        shape = " x ".join(extents) or "one number"
        return f" *   {self.word}  {self.dtype:<8} {shape} ({remark(self.title)}){self.note}"

    def array(self, name: str) -> str:
        """Return its definition in the header's usage."""
        return f" *     static {self.kind} {self.word}[{name.upper()}_{self.word.upper()}_COUNT];"

    def sizes(self) -> dict[str, int]:
        """Return its elements and bytes, by the ends of the header's constants."""
        count, item = prod(self.shape), array_type(self.dtype).itemsize
        # No array of C has no elements.
        return {f"{self.word.upper()}_COUNT": max(1, count),
                f"{self.word.upper()}_SIZE": count * item}  # fmt: skip


@dataclass(frozen=True, slots=True)
class RunEntry:
    """A program of a library as C calls it: its symbol and arguments.

    ``sizes`` tell it from the others: C names of parameters and what they are, or from where to
    where they are; ``key`` is a word for them. A library of one size has none. ``told`` are the
    sizes that its stages are told, as C text. ``limits`` are conditions in C, true where data asked
    for more than there is room for.
    """

    symbol: str
    arguments: Sequence[RunArgument]
    sizes: Mapping[str, int | range] = field(default_factory=dict)
    key: str = ""
    told: tuple[str, ...] = ()
    limits: tuple[str, ...] = ()

    @property
    def result(self) -> str:
        """The C type of what a run returns: a number where there are limits."""
        return "int" if self.limits else "void"

    def verdict(self, name: str) -> str:
        """Return the C expression of what a run of the library ``name`` returns."""
        ok = f"{name.upper()}_OK"
        return f"{' || '.join(self.limits)} ? {name.upper()}_TOO_LONG : {ok}" if self.limits else ok

    @property
    def condition(self) -> str:
        """C text that is true of its sizes."""
        return " && ".join(
            f"{word} == {size}" if isinstance(size, int)
            else f"{word} >= {size[0]} && {word} <= {size[-1]}"
            for word, size in self.sizes.items()
        )  # fmt: skip

    @property
    def largest(self) -> list[str]:
        """Its sizes, as C text; of several the largest."""
        return [str(size if isinstance(size, int) else size[-1]) for size in self.sizes.values()]


def argument_values(arguments: Sequence[RunArgument], name: str) -> dict[str, str]:
    """Return what the templates say of the arguments of ``NAME_run``."""
    inputs = [argument.word for argument in arguments if argument.word.startswith("x")]
    outputs = [argument.word for argument in arguments if argument.word.startswith("y")]
    return {
        "ARRAYS": "\n".join(argument.array(name) for argument in arguments),
        "ARGUMENTS": ", ".join([*inputs, *outputs]),
        "PARAMETERS": ", ".join(argument.parameter for argument in arguments),
        "TENSORS": "\n".join(argument.row for argument in arguments),
        "INPUTS": str(max(1, len(inputs))),
        "OUTPUTS": str(max(1, len(outputs))),
        "IN": ", ".join(inputs) or "0",
        "OUT": ", ".join(outputs) or "0",
    }


def run_values(entries: Sequence[RunEntry], name: str) -> dict[str, str]:
    """Return what the templates say of the functions that run a network, and of arguments."""
    first = entries[0]
    values = argument_values(first.arguments, name)
    context, parameters = f"{name}_context *context, ", values["PARAMETERS"]
    words = {"NAME": name, "UPPER": name.upper()}
    alone = {**words, "ALONE": "yes" * (not first.sizes)}
    codes = _fill("too_long.h", alone) if first.limits else ""
    if not first.sizes:
        head = f"{first.result} {name}_run({context}{parameters})"
        verdict = f"    return {first.verdict(name)};\n" if first.limits else ""
        return {**values, "RUN_HEAD": head, "RUN_DECLARED": f"{codes}{head};", "ENTRIES": "",
                "VERDICT": verdict}  # fmt: skip
    arguments = ", ".join(argument.word for argument in first.arguments)
    sizes = ", ".join(f"int64_t {word}" for word in first.sizes)
    several = told_sizes(entries)
    heads = [] if several else [
        f"{first.result} {entry.symbol}_run({context}{parameters})" for entry in entries
    ]  # fmt: skip
    verdict = f"    return {first.verdict(name)};\n"
    dispatcher = f"int {name}_run({context}{sizes}, {parameters})"
    calls = "".join(
        f"if ({entry.condition})\n        "
        + (f"run_entry(context, {at}, {', '.join(first.sizes)}, {arguments})" if several
           else f"{entry.symbol}_run(context, {arguments})") + ";\n    else "
        for at, entry in enumerate(entries)
    )  # fmt: skip
    bodies = [f"{head}\n{{\n    run_entry(context, {at}, {arguments});\n"
              f"{verdict * bool(first.limits)}}}\n"
              for at, head in enumerate(heads)]  # fmt: skip
    bodies.append(
        f"{dispatcher}\n{{\n    {calls.rstrip()}\n        return {name.upper()}_NO_SIZE;\n"
        f"{verdict}}}\n"
    )
    declared = {**words, "RUN_HEAD": dispatcher,
                "ENTRIES": "\n".join(f"{head};" for head in heads),
                "PUBLIC": "yes" * (not several),
                "KNOWN": ", ".join(entry.key for entry in entries)}  # fmt: skip
    told, shown = f"{sizes}, " * several, shown_entries(entries, name)
    return {
        **values,
        "ARRAYS": "\n".join(argument.array(shown[0].symbol) for argument in shown[0].arguments),
        "ARGUMENTS": ", ".join([*shown[0].largest, arguments]),
        "TENSORS": "\n".join("\n".join([f" * {entry.key}:", *(x.row for x in entry.arguments)])
                             for entry in shown),
        "KNOWN": ", ".join(entry.key for entry in entries),
        "RUN_HEAD": f"static void run_entry({context}int entry, {told}{parameters})",
        "RUN_DECLARED": codes + _fill("sizes.h", declared).rstrip(), "VERDICT": "",
        "ENTRIES": "\n" + "\n".join(bodies),
    }  # fmt: skip


def told_sizes(entries: Sequence[RunEntry]) -> bool:
    """Return whether stages of a library are told sizes, which entries of their own lack."""
    return any(isinstance(size, range) for entry in entries for size in entry.sizes.values())


def shown_entries(entries: Sequence[RunEntry], name: str) -> list[RunEntry]:
    """Return the entries that a header tells of: those that differ in a range are one.

    It has the arguments of the largest sizes, with the words of one that varies with all of them.
    """
    if not told_sizes(entries):
        return [*entries]
    groups: dict[tuple[tuple[str, int], ...], list[RunEntry]] = {}
    for entry in entries:
        listed = tuple((word, its) for word, its in entry.sizes.items() if isinstance(its, int))
        groups.setdefault(listed, []).append(entry)
    shown = list[RunEntry]()
    for listed, group in groups.items():
        first, last = group[0].sizes, group[-1].sizes
        texts = [
            f"{word} {size}" if isinstance(size, int)
            else f"{word} from {first[word][0]} to {size[-1]}"  # type: ignore[index]
            for word, size in last.items()
        ]  # fmt: skip
        symbol = "_".join([name, *(f"{word}_{size}" for word, size in listed)])
        words = max(
            reversed(group), key=lambda entry: sum(len(it.varying) for it in entry.arguments)
        )
        arguments = [
            replace(largest, varying=own.varying)
            for largest, own in zip(group[-1].arguments, words.arguments, strict=True)
        ]
        shown.append(replace(group[-1], arguments=arguments, symbol=symbol, key=", ".join(texts)))
    return shown


@dataclass(frozen=True, slots=True)
class StateTensor:
    """A tensor of a context's state: where it lies there, and where its first values lie.

    Both are bytes, ``first`` of the model's constants; None: it begins with zeros.
    """

    title: str
    dtype: str
    shape: tuple[int, ...]
    at: int
    first: int | None = None

    @property
    def bytes(self) -> int:
        return prod(self.shape) * array_type(self.dtype).itemsize

    @property
    def row(self) -> str:
        """The line of the header about it."""
        shape = " x ".join(map(str, self.shape)) or "one number"
        return f" *   byte {self.at:>10}  {self.dtype:<8} {shape} ({remark(self.title)})"


def state_values(state: Sequence[StateTensor], size: int) -> dict[str, str]:
    """Return what the templates say of the state of a context, which takes ``size`` bytes."""
    copies = [
        f"    memcpy(arena + {tensor.at}, constants + {tensor.first}, {tensor.bytes});\n"
        for tensor in state if tensor.first is not None
    ]  # fmt: skip
    return {
        "STATE": str(size) if state else "",
        "STATE_ROWS": "\n".join(tensor.row for tensor in state),
        "RESET": "".join([*copies] or ["    (void)constants;\n"]),
    }


def size_constants(entries: Sequence[RunEntry], name: str, memory: Mapping[str, int]) -> str:
    """Return the constants of the header: of arguments, and of ``memory``, by what takes it."""
    sizes = {
        f"{entry.symbol}_{end}": size
        for entry in shown_entries(entries, name) for argument in entry.arguments
        for end, size in argument.sizes().items()
    }  # fmt: skip
    sizes |= {f"{name}_{what}_SIZE": size for what, size in memory.items()}
    return "\n".join(f"#define {word.upper()} {size}" for word, size in sizes.items())


# Threads.


@dataclass(frozen=True, slots=True)
class Pool:
    """The C of a network for threads that OpenMP does not start.

    ``threads`` is what the header says of them, ``includes`` what the code includes, ``member`` a
    member of contexts, ``run`` a run, ``start`` and ``end`` statements for it, ``types``,
    ``header`` and ``functions`` templates of declarations and of public functions, ``placing`` of
    what finds CPUs for threads.
    """

    threads: str
    includes: str
    member: str
    run: str
    start: str = ""
    end: str = ""
    types: str = ""
    header: str = ""
    functions: str = ""
    placing: str = ""


POOLS: Final[Mapping[str, Pool]] = MappingProxyType(
    {
        "pthread": Pool(
            "{0} threads: the one that calls it,\n * and those that {1}_new starts and {1}_free "
            "ends. These spin for about 0.1 ms\n * (-DPS_SPINS=N: N turns), then sleep until the "
            "next run; those that share\n * a CPU with another sleep at once. On Linux each begins "
            "its first run on a CPU of its\n * own (-DPS_BIND=PS_PIN: and stays there, PS_FREE: "
            "where the system puts it). A child\n * of fork has none of them",
            "#include <pthread.h>\n#include <signal.h>\n",
            "    ps_pool pool;\n",
            "    run_together(&context->pool, &m);\n",
            "    if (!start_pool(&context->pool)) {\n        {0}_free(context);\n"
            "        return 0;\n    }\n",
            "    end_pool(&context->pool);\n",
            placing="placing_pthread.c",
        ),
        "callback": Pool(
            "the threads of a pool of the\n * caller's, {0} at most, or the calling thread: see "
            "{1}_use_pool",
            "",
            "    {0}_parallel *parallel;\n    void *pool;\n",
            "    run_together(context->parallel, context->pool, &m);\n",
            types="callback.h", header="use_pool.h", functions="use_pool.c",
        ),
        "workers": Pool(
            "workers of WebAssembly, {0} threads at most:\n * see {1}_use_workers",
            "",
            "    ps_pool pool;\n",
            "    run_together(&context->pool, &m);\n",
            "    context->pool.threads = 1;\n",
            header="use_workers.h", functions="use_workers.c",
        ),
    }
)  # fmt: skip
_REGION_TOLD: Final = (
    "{0} threads, more than one only where the compiler\n * was given its OpenMP option"
)
_POOL_VALUES: Final = (
    *("POOL_INCLUDES", "TEAM_CODE", "TEAM_OF", "POOL_CODE", "POOL_OF", "START_POOL", "END_POOL"),
    *("POOL_TYPES", "POOL_HEADER", "POOL_FUNCTIONS"),
)


def team_of(pool: str) -> Team:
    """Return the team that shares a network's stages."""
    return Team.OPENMP if pool == OPENMP else Team.POOL


def pool_values(pool: str, threads: int, name: str) -> dict[str, str]:
    """Return the values of the templates of a network that runs in so many threads."""
    values = dict.fromkeys(_POOL_VALUES, "")
    if threads == 1:
        return {**values, "THREADS": "1 thread", "RUN": "    share(&m);\n"}
    if pool == OPENMP:
        region = "\n".join(openmp.guard(openmp.parallel(threads)))
        region_text = _REGION_TOLD.format(threads)
        return {**values, "THREADS": region_text, "RUN": f"{region}\n    share(&m);\n"}
    row, common = POOLS[pool], {"NAME": name, "COUNT": str(threads), "TEAM_TYPE": TEAM}

    def fill(template: str) -> str:
        return _fill(template, common) if template else ""

    common["WAITING"] = fill(f"waiting_{pool}.c")
    common["PLACING"] = fill(row.placing)
    return {
        "POOL_INCLUDES": row.includes,
        "TEAM_CODE": fill("team.c"),
        "TEAM_OF": "    const polysci_team *team; /* as this thread sees it */\n",
        "POOL_CODE": fill(f"pool_{pool}.c"),
        "POOL_OF": row.member.replace("{0}", name),
        "START_POOL": row.start.replace("{0}", name),
        "END_POOL": row.end,
        "POOL_TYPES": fill(row.types),
        "POOL_HEADER": fill(row.header),
        "POOL_FUNCTIONS": fill(row.functions),
        "THREADS": row.threads.format(threads, name),
        "RUN": row.run,
    }


# Stages and files.


@dataclass(frozen=True, slots=True)
class NetworkStages:
    """The loop IR of a network's programs, and of the packing of its weights.

    The last function of each module runs all stages of its program. ``threads`` of ``pool`` run
    them. ``rings``: rows of tensors are kept in rings. ``clocks`` is how many times a run notes, or
    0.
    """

    modules: Sequence[LoopModule]
    packing: LoopModule
    pool: str
    threads: int
    rings: bool = False
    clocks: int = 0

    def values(self, entries: Sequence[RunEntry], name: str) -> dict[str, str]:
        """Return the values of the templates: the loops, the body of a run, packing, threads."""
        printer, bodies = CPrinter(team_of(self.pool), member=TEAM_MEMBER), list[str]()
        loops = [RINGS] * self.rings
        for module in self.modules:
            *parts, stages = module.parts
            assert isinstance(stages, LoopFunction)
            loops.append(printer.module(LoopModule(tuple(parts))))
            bodies.append(c.text(c.Collection(printer.body(stages.body)), 1))
        values = {
            **_clock(self.clocks),
            **pool_values(self.pool, self.threads, name),
            "PACKING": CPrinter().module(self.packing).rstrip(),
            "STAGES": bodies[0],
        }
        if entries[0].sizes:
            cases = []
            for at, (entry, body) in enumerate(zip(entries, bodies, strict=True)):
                loops.append(f"static void {entry.symbol}(const ps_memory *m)\n{{\n{body}\n}}\n")
                cases.append(f"    case {at}: {entry.symbol}(m); break;")
            values |= {
                "STAGES": "\n".join(["    switch (m->entry) {", *cases, "    }"]),
                "TIMES": "    int entry; /* which of the programs runs */\n",
                "SET_TIMES": ",\n                         .entry = entry",
            }
        if told := next((entry.told for entry in entries if entry.told), ()):
            values["TIMES"] += f"    int64_t sizes[{len(told)}]; /* of this run */\n"
            values["SET_TIMES"] += f",\n                         .sizes = {{{', '.join(told)}}}"
        return {**values, "LOOPS": "\n".join(loops)}


def code_values(isa: Isa, values: Mapping[str, str]) -> dict[str, str]:
    """Return what the code of loops, stages and templates needs ahead: headers for its ISA."""
    paths = (TEMPLATES / "stages.c", TEMPLATES / "network.c")
    texts = [*(values[name] for name in ("LOOPS", "STAGES", "PACKING")),
             *(path.read_text("utf-8") for path in paths)]  # fmt: skip
    features = " ".join(isa.features) or "none"
    return {"FEATURES": features, "HEADERS": headers_for(isa, " ".join(texts))}


def headers_for(isa: Isa, code: str) -> str:
    """Return vector types and functions that C text of an instruction set uses."""
    names = ["prelude", "scalar", *vector_headers(isa)]
    texts = [header_for(name, isa) for name in (*names, *FUNCTION_HEADERS, ROUTINES)]
    return trim([target_lines(isa), *texts], code)


def tuning_values(isa: Isa) -> dict[str, str]:
    """Return how loops are tuned for the CPUs of an instruction set, by template value."""
    if not isa.tuning:
        return {"TUNED": "", "WHY_TUNED": ""}
    return {
        "TUNED": f', target("tune={isa.tuning},prefer-vector-width=512")',
        "WHY_TUNED": "\n   It gathers elements by vectors only for CPUs that it knows.",
    }


def denormal_values(*, flush: bool) -> dict[str, str]:
    """Return what header and code say of numbers below the smallest normal one."""
    if flush:
        return {"DENORMALS": _FLUSHED, "KEEP": ""}
    keep = "#define PS_KEEP_DENORMALS 1\n"
    return {"DENORMALS": "Denormal numbers are kept.", "KEEP": keep}


def library_declarations(
    entries: Sequence[RunEntry], name: str, *, apart: bool, timed: bool, state: bool = False
) -> dict[str, str]:
    """Return the declarations that cffi takes, and functions for the project itself.

    ``apart``: one gives the memory of tensors; ``timed``: one gives the times of a run. ``state``:
    runs read what the last one left.
    """
    inside = {
        f"char *{name}_memory({name}_context *context)": "context->arena" * apart,
        f"double *{name}_times({name}_context *context)": "context->times" * timed,
    }
    shown = {head: value for head, value in inside.items() if value}
    parameters = ", ".join(argument.parameter for argument in entries[0].arguments)
    heads = [] if told_sizes(entries) else [
        f"{it.result} {it.symbol}_run({name}_context *context, {parameters});" for it in entries
    ]  # fmt: skip
    if words := ", ".join(f"int64_t {word}" for word in entries[0].sizes):
        heads.append(f"int {name}_run({name}_context *context, {words}, {parameters});")
    if state:
        heads.append(f"void {name}_reset({name}_context *context);")
        heads.append(f"void *{name}_state({name}_context *context);")
    public = _fill("declarations.h", {"NAME": name, "RUNS": "\n".join(heads)})
    return {
        "CDEF": public + "".join(f"{head};\n" for head in shown),
        "DEBUG": "".join(f"\n{head} {{ return {value}; }}\n" for head, value in shown.items()),
    }


def layer_declarations(declarations: Sequence[str], *, scaled: bool) -> str:
    """Return the prototypes of layers; ``scaled``: some of them take scales."""
    return SCALES * scaled + "".join(declarations)


def print_network(values: Mapping[str, str], weights: str) -> dict[str, str]:
    """Return header and C file; ``weights`` ``raw`` are packed on load, ``packed`` ones were."""
    name = values["NAME"]
    filled = {
        **values,
        "CODE": print_stages(values),
        "WEIGHTS": _fill(f"weights_{weights}.c", {**values, "SOURCE": weights_source(values)}),
        "LOADING": _fill(f"loading_{weights}.h", values),
    }
    return {f"{name}.{end}": _fill(f"network.{end}", filled) for end in ("h", "c")}


def weights_source(values: Mapping[str, str]) -> str:
    """Return the C that takes weights from a file, from memory or from arrays, with a checksum."""
    return _fill("weights_source.c", values)


def print_stages(values: Mapping[str, str]) -> str:
    """Return the C of all stages, up to what one thread does of a run."""
    return _fill("stages.c", values)


def include_header(files: Mapping[str, str], name: str) -> dict[str, str]:
    """Return the C files of a network with its header in them, by name; others as they are."""
    if f"{name}.h" not in files:
        return dict(files)
    line, text = f'#include "{name}.h"\n', files[f"{name}.h"]
    return {path: code.replace(line, text) for path, code in files.items() if path.endswith(".c")}


def _clock(times: int) -> dict[str, str]:
    """Return the values of a network that times itself."""
    if not times:
        return dict.fromkeys(("TIMES", "TIMES_OF", "SET_TIMES", "NOW"), "")
    return {
        "TIMES": "    double *times; /* one more than stages: the first is the start */\n",
        "TIMES_OF": f"    double times[{times}];\n",
        "SET_TIMES": ",\n                                      .times = context->times + 1",
        "NOW": _fill("clock.c", {}),
    }


def _fill(template: str, values: Mapping[str, str]) -> str:
    return templates.fill(TEMPLATES / template, values)
