"""A placed program with schedules -> C: one file of loops and stages, others of layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path

from polysci.loop_ir.nodes import LoopFunction, LoopModule, ScalarParameter, block
from polysci.lower.direct.denormals import KEEP
from polysci.lower.direct.emit import Source, assemble
from polysci.lower.direct.panels import clear_bytes
from polysci.lower.layer_calls import (
    LayerCall,
    SharedLayers,
    Spot,
    calls_of,
    packed_once,
)
from polysci.lower.stages.program import StageLowering
from polysci.network.codegen.pools import OPENMP, pool_values, team_of
from polysci.network.codegen.sized_programs import (
    SizedProgram,
    all_sizes,
    check_programs,
    describe_size,
    run_values,
)
from polysci.network.codegen.weights_file import (
    WeightsFile,
    WeightsUse,
    checksum_of,
    digest_of,
    pieces_of,
    weights_file_of,
)
from polysci.numerics.arrays import round_up
from polysci.printers import ctree as c
from polysci.printers.c import CPrinter
from polysci.printers.definitions import trim
from polysci.printers.interface import SCALES
from polysci.program.passes.arena import Arena
from polysci.program.passes.buffers import PlacedProgram
from polysci.program.passes.thread_shares import SHARED, ThreadShares
from polysci.space.schedule import Schedule
from polysci.target.header_sets import target_lines
from polysci.target.isa import Isa
from polysci.target.isas import least_of
from polysci.target.microkernels import header
from polysci.target.target import HOST
from polysci.text import templates

TEMPLATES = Path(__file__).with_name("templates")
_FLUSHED = """\
In a run, and in the weights,
 * numbers below 2^-126 (of double: 2^-1022) count as 0; then the caller has its mode back. Compile
 * with -DPS_KEEP_DENORMALS to have runs compute with them, at tens of cycles each."""
MEMBER = "m->team"  # in stages, of a team that is no region of OpenMP's
RINGS = """\
/* Rows of a tensor between two members of a band: those from `base` to `done` are there. */
typedef struct {
    char *at;
    int64_t base, done;
} ps_ring;
"""
FUNCTION_HEADERS = (
    "functions",
    "functions_exponential",
    "functions_trigonometric",
    "functions_exact",
    "functions_whole",
    "routines",
)  # what the texts of ir.functions call
LAYERS_A_FILE = 6  # so that several compilers have something to do


@dataclass(frozen=True, slots=True)
class Code:
    """The C of a network: texts by file name, its weights, memory and the code of every stage.

    ``isa`` is the least instruction set that runs all of it; ``values`` fill the templates.
    ``backend`` is that of the device, ``module`` the loop IR of stages and layers.
    """

    name: str
    isa: Isa
    files: Mapping[str, str]
    values: Mapping[str, str]
    declarations: str
    weights_file: WeightsFile
    arena: Arena
    placed: PlacedProgram
    calls: Mapping[Spot, LayerCall]
    pool: str = OPENMP
    backend: str = HOST
    module: LoopModule = field(default=LoopModule(()), compare=False, repr=False)


def code_of(
    placed: PlacedProgram,
    schedules: Mapping[str, Schedule],
    name: str,
    isa: Isa,
    threads: int = 1,
    *,
    apart: bool = False,
    timed: bool = False,
    flush_denormals: bool = True,
    pool: str = OPENMP,
    shares: ThreadShares = SHARED,
) -> Code:
    """The C of a program under the schedules of its problems (by key).

    ``apart``: tensors share no memory, and ``NAME_memory`` gives the address of theirs. ``timed``:
    ``NAME_times`` gives the seconds at which the last run began and ended each of its stages.
    ``flush_denormals``: numbers below the smallest normal one count as 0, constants among them.
    ``pool`` starts the threads: ``openmp``, or one of POOLS. ``shares`` says which stages single
    threads compute.
    """
    program = SizedProgram(placed, schedules, shares)
    return code_of_programs(
        [program], name, isa, threads, apart=apart, timed=timed, flush_denormals=flush_denormals,
        pool=pool,
    )  # fmt: skip


def code_of_programs(
    programs: Sequence[SizedProgram],
    name: str,
    isa: Isa,
    threads: int = 1,
    *,
    apart: bool = False,
    timed: bool = False,
    flush_denormals: bool = True,
    pool: str = OPENMP,
) -> Code:
    """The C of programs for several sizes, which share layers and packed weights where these agree.

    The code's ``arena`` is the largest of theirs, ``placed`` and ``calls`` are the first's; the
    other arguments are those of ``code_of``. Raises UnsupportedError for programs whose arguments
    differ in number or type.
    """
    check_programs(programs, name)
    if all(len(own.shares.alone) == len(own.placed.program.stages) for own in programs):
        programs, threads = [own.serial() for own in programs], 1
    pool = pool if threads > 1 else OPENMP
    layers, team, uses = SharedLayers(), team_of(pool), list[WeightsUse]()
    for own in programs:
        calls = calls_of(own.placed, own.schedules, name, threads, team, own.shares, layers)
        uses.append(WeightsUse(own.placed, calls))
    every = [call for use in uses for call in use.calls.values()]
    tuned = tune_loops(isa)
    isa = least_of(isa, [call.source.isa for call in every])
    weights_file, offsets = weights_file_of(uses, flush=flush_denormals)
    emitters = [
        StageLowering(
            own.placed, own.symbol(name), isa, threads, use.calls, constants,
            apart, timed, own.shares,
        )
        for own, use, constants in zip(programs, uses, offsets, strict=True)
    ]  # fmt: skip
    stages = [_stages_module(emitter) for emitter in emitters]
    holes = holes_of(
        emitters, stages, programs, weights_file, name, pool, flush_denormals=flush_denormals
    )
    values = {**holes, **tuned}
    files = {**network_files(values, "raw"), **layer_files(name, every)}
    arena = max((emitter.arena for emitter in emitters), key=lambda arena: arena.size)
    return Code(
        name, isa, files, values, values["CDEF"], weights_file, arena,
        programs[0].placed, uses[0].calls, pool, module=_whole_module(stages, every),
    )  # fmt: skip


def network_files(values: Mapping[str, str], weights: str) -> dict[str, str]:
    """Header and C file; ``weights`` ``raw`` are packed on load, ``packed`` ones were ahead."""
    name = values["NAME"]
    filled = {
        "CODE": stages_text(values),
        "WEIGHTS": templates.fill(TEMPLATES / f"weights_{weights}.c", values),
        "LOADING": templates.fill(TEMPLATES / f"loading_{weights}.h", values),
    }
    return {
        f"{name}.{end}": templates.fill(TEMPLATES / f"network.{end}", {**values, **filled})
        for end in ("h", "c")
    }


def stages_text(values: Mapping[str, str]) -> str:
    """The C of all stages, up to what one thread does of a run."""
    return templates.fill(TEMPLATES / "stages.c", values)


def use_packed_weights(code: Code, data: memoryview) -> dict[str, str]:
    """All C files, for weights that were packed ahead: ``data``, as ``NAME_model_data`` has it."""
    sums = _sums(checksum_of(pieces_of(data)))
    values = {**code.values, "DIGEST": digest_of(pieces_of(data)), **sums}
    return {**code.files, **network_files(values, "packed")}


def layer_files(name: str, calls: Sequence[LayerCall]) -> dict[str, str]:
    """C files of primitives, one unit a file."""
    by_unit: dict[str, dict[str, Source]] = {}
    for call in calls:
        by_unit.setdefault(call.source.key, {})[call.source.symbol] = call.source
    files = {}
    for unit, sources in by_unit.items():
        every = list(sources.values())
        for first in range(0, len(every), LAYERS_A_FILE):
            text = assemble(every[first : first + LAYERS_A_FILE])
            files[f"{name}_{unit}_{first // LAYERS_A_FILE}.c"] = text
    return files


def _stages_module(emitter: StageLowering) -> LoopModule:
    """Return tables and loops of a program, and last the function of all its stages."""
    memory = ScalarParameter("m", "const ps_memory *")
    stages = LoopFunction(f"{emitter.name}_stages", (memory,), emitter.stages(), attributes=())
    return LoopModule((*emitter.tables, *emitter.functions, stages))


def _whole_module(stages: Sequence[LoopModule], calls: Sequence[LayerCall]) -> LoopModule:
    """Return the loop IR of programs and of the layers that they call, each once."""
    layers = {call.source.symbol: call.source.module for call in calls}
    modules = [*stages, *layers.values()]
    types = {name: dtype for module in modules for name, dtype in module.types.items()}
    return LoopModule(tuple(part for module in modules for part in module.parts), types)


def holes_of(
    emitters: Sequence[StageLowering],
    stages: Sequence[LoopModule],
    programs: Sequence[SizedProgram],
    weights_file: WeightsFile,
    name: str,
    pool: str,
    *,
    flush_denormals: bool,
) -> dict[str, str]:
    """What the templates are filled with."""
    first, every = emitters[0], [c for emitter in emitters for c in emitter.calls.values()]
    arena = max((emitter.arena for emitter in emitters), key=lambda arena: arena.size)
    inside = _inside(first)
    loops, steps, members = _stages(emitters, stages, programs, pool)
    paths = (TEMPLATES / "stages.c", TEMPLATES / "network.c")
    template = " ".join(path.read_text(encoding="utf-8") for path in paths)
    run = run_values(programs, name)
    return {
        "NAME": name,
        "UPPER": name.upper(),
        "SIZE": describe_size(programs),
        "FEATURES": " ".join(first.isa.features) or "none",
        **run,
        "SIZES": all_sizes(programs, name, {
            "CONTEXT": arena.size,
            "MODEL": weights_file.constants_size + weights_file.packed_size,
        }),
        "EMBEDDED": "",
        "DENORMALS": _FLUSHED if flush_denormals else "Denormal numbers are kept.",
        "KEEP": "" if flush_denormals else f"#define {KEEP} 1\n",
        "ARENA": str(arena.size),
        "UNSHARED": str(arena.unshared),
        "HEADERS": _headers(first.isa, f"{loops} {steps} {template}"),
        "DECLARATIONS": _declarations(every),
        "CONSTANTS": str(weights_file.constants_size),
        "PACKED": str(weights_file.packed_size),
        "LARGEST": str(weights_file.largest),
        "LOOPS": loops,
        "STAGES": steps,
        "DIGEST": weights_file.digest,
        "PACKING": c.text(_packing(weights_file, every), 1),
        **_sums(checksum_of(weights_file.chunks())),
        **pool_values(pool, first.threads, name),
        "CDEF": _cdef(name, run["PARAMETERS"]) + "".join(f"{head};\n" for head, _ in inside),
        "DEBUG": "".join(f"\n{head} {{ return {what}; }}\n" for head, what in inside),
        **_clock(first),
        **members,
    }  # fmt: skip


def _stages(
    emitters: Sequence[StageLowering], modules: Sequence[LoopModule],
    programs: Sequence[SizedProgram], pool: str,
) -> tuple[str, str, dict[str, str]]:  # fmt: skip
    """C of loops, of the body of a run, and holes of what both take beside what one size does."""
    printer = CPrinter(team_of(pool), member=MEMBER)
    bodies = [module.functions[f"{emitter.name}_stages"].body
              for emitter, module in zip(emitters, modules, strict=True)]  # fmt: skip
    texts = [c.text(c.Collection(printer.body(body)), 1) for body in bodies]
    rings = [RINGS] * any(emitter.row_fusions for emitter in emitters)
    loops = [printer.module(LoopModule(module.parts[:-1])) for module in modules]
    if not programs[0].sizes:
        return "\n".join([*rings, *loops]), texts[0], {}
    cases = []
    for at, (emitter, text) in enumerate(zip(emitters, texts, strict=True)):
        loops.append(f"static void {emitter.name}(const ps_memory *m)\n{{\n{text}\n}}\n")
        cases.append(f"    case {at}: {emitter.name}(m); break;")
    steps = "\n".join(["    switch (m->entry) {", *cases, "    }"])
    member = "    int entry; /* which of the programs runs */\n"
    return "\n".join([*rings, *loops]), steps, {
        "TIMES": member, "SET_TIMES": ",\n                         .entry = entry"
    }  # fmt: skip


def _packing(file: WeightsFile, calls: Sequence[LayerCall]) -> c.Generable:
    """Constants, then weights of one layer after the other: taken from their source, packed."""
    short = c.Statement('return "the weights are cut short"')
    statements: list[c.Generable] = []
    pairs = zip(file.constants, file.parts, strict=False)
    rows = [f"{{{at}, {array.nbytes}}}" for at, (_, array) in pairs]
    if rows:
        table = f"static const size_t parts[{len(rows)}][2] = {{{', '.join(rows)}}}"
        missing = "!fill(from, constants + parts[i][0], parts[i][1])"
        head = ("int i = 0", f"i < {len(rows)}", "++i")
        statements += [c.Statement(table), c.loop(*head, c.Block([c.when(missing, short)]))]
    for call in packed_once(calls):
        count = call.source.precision.w.bytes * prod(call.layer.problem.w_shape)
        kind = call.source.precision.w.c_type
        zero = f", {call.layer.x_zero}" if call.source.precision.integer else ""
        to = f"(void *)(packed + {call.packed_at})"
        if call.source.columns:
            statements += _packing_by_pieces(call, short)
        else:
            statements += [
                c.when(f"!(w = take(from, {count}))", short),
                c.Statement(f"{call.source.symbol}_pack_weights((const {kind} *)w, {to}{zero})"),
            ]
        end = (call.packed_at or 0) + call.source.packed
        statements += CPrinter().body(block(*clear_bytes(end, round_up(end))))
    return c.Collection(statements)


def tune_loops(isa: Isa) -> dict[str, str]:
    """How loops are tuned for the CPUs of an instruction set, by template hole."""
    if not isa.tuning:
        return {"TUNED": "", "WHY_TUNED": ""}
    return {
        "TUNED": f', target("tune={isa.tuning},prefer-vector-width=512")',
        "WHY_TUNED": "\n   It gathers elements by vectors only for CPUs that it knows.",
    }


def _packing_by_pieces(call: LayerCall, short: c.Generable) -> c.Body:
    """Large weights some columns at a time, so that no second copy of them is in memory."""
    assert call.source.columns and call.packed_at is not None
    kind = call.source.precision.w
    row, step = call.source.columns
    count = prod(call.layer.problem.w_shape) // row
    packed = f"(const {kind.c_type} *)w, (void *)(packed + {call.packed_at})"
    body: c.Body = [
        c.Statement(f"end = at + {step} < {count} ? at + {step} : {count}"),
        c.Statement(f"from->more = end < {count}"),
        c.when(f"!(w = take(from, (size_t)(end - at) * {row * kind.bytes}))", short),
        c.Statement(f"{call.source.symbol}_pack_columns({packed}, at, end)"),
    ]
    return [c.loop("int64_t at = 0, end", f"at < {count}", "at = end", c.Block(body))]


def _headers(isa: Isa, code: str) -> str:
    """Of vector types and functions what loops, stages and the template use."""
    names = ["prelude", "scalar", *(f"isa_{name}" for name in reversed(isa.chain))]
    texts = [header(name) for name in (*names, *FUNCTION_HEADERS)]
    return trim([target_lines(isa), *texts], code)


def _declarations(calls: Sequence[LayerCall]) -> str:
    sources = {call.source.symbol: call.source for call in calls}
    texts = [source.declarations for source in sources.values()]
    if any(source.precision.scaled for source in sources.values()):
        texts.insert(0, SCALES)
    return "".join(texts)


def _cdef(name: str, parameters: str) -> str:
    """The declarations as cffi takes them."""
    return f"""\
int {name}_supported(void);
typedef struct {name}_model {name}_model;
typedef struct {name}_context {name}_context;
{name}_model *{name}_load(const char *path, const char **why);
{name}_model *{name}_load_parts(const void *const *parts, const char **why);
const void *{name}_model_data(const {name}_model *model);
{name}_context *{name}_new(const {name}_model *model);
void {name}_run({name}_context *context, {parameters});
void {name}_free({name}_context *context);
void {name}_unload({name}_model *model);
size_t {name}_model_size(void);
size_t {name}_context_size(void);
"""


def _inside(emitter: StageLowering) -> list[tuple[str, str]]:
    """Functions that show what only the project itself looks at: head and value."""
    name = emitter.name
    heads = [(f"char *{name}_memory({name}_context *context)", "context->arena")] * emitter.apart
    return heads + [(f"double *{name}_times({name}_context *context)", "context->times")] * (
        emitter.timed
    )


def _clock(emitter: StageLowering) -> dict[str, str]:
    """What a network that times itself has in addition."""
    if not emitter.timed:
        return dict.fromkeys(("TIMES", "TIMES_OF", "SET_TIMES", "NOW"), "")
    count = len(emitter.placed.program.stages) + 1
    return {
        "TIMES": "    double *times; /* one more than stages: the first is the start */\n",
        "TIMES_OF": f"    double times[{count}];\n",
        "SET_TIMES": ",\n                                      .times = context->times + 1",
        "NOW": "#include <time.h>\nstatic double ps_now(void)\n{\n    struct timespec t;\n"
        "    clock_gettime(CLOCK_MONOTONIC, &t);\n"
        "    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;\n}\n",
    }


def _sums(checksum: tuple[int, int]) -> dict[str, str]:
    return dict(zip(("SUM", "SUMS"), map(hex, checksum), strict=True))
