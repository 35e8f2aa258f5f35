"""Loops as C: one function a stage, its innermost loop for the vectoriser."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import prod

from polysci.codegen import openmp
from polysci.network.codegen.access import MemoryAccess, affine_text
from polysci.network.ir.expressions import (
    Apply,
    Expr,
    Guard,
    Load,
    Number,
    Reduce,
    Where,
    loads,
    reductions,
    walk,
)
from polysci.network.ir.functions import CONVERSIONS, FIRST, FUNCTIONS, REAL, kind_of, number
from polysci.network.ir.stages import ROW_AXIS, LoopStage
from polysci.network.passes.buffers import BufferPlace
from polysci.numerics.dtypes import C_TYPES
from polysci.polyhedral.affine import Affine

ROW = f"i{ROW_AXIS}"
ROW_PARAMETERS = "const void *in, void *out, int64_t first, int64_t last"
CHUNK = 64  # accumulators of a reduction: four vectors of AVX-512


@dataclass(slots=True)
class LoopWriter:
    """One stage on its way to C: iterators with extents, accesses, the function's lines."""

    stage: LoopStage
    symbol: str
    places: Mapping[str, BufferPlace]
    pointers: Mapping[str, str]  # buffer -> C text of its address
    threads: int
    extents: dict[str, int]
    rows: bool = False  # only those from `first` to `last` of axis 2
    dtypes: Mapping[str, str] = field(init=False)
    tables: dict[str, tuple[int, ...]] = field(default_factory=dict)
    buffers: dict[str, str] = field(default_factory=dict)  # buffer -> pointer's name
    accesses: dict[Load, MemoryAccess] = field(default_factory=dict)
    out: MemoryAccess = field(init=False)
    lines: list[str] = field(default_factory=list)
    depth: int = 1

    def __post_init__(self) -> None:
        self.dtypes = {name: place.dtype for name, place in self.places.items()}
        place = self.places[self.stage.output]
        self.buffers[place.buffer] = "y"
        steps = {f"i{at}": step for at, step in enumerate(place.strides)}
        self.out = MemoryAccess(
            {n: c for n, c in steps.items() if self.extents[n] > 1}, place.first
        )
        reduced = {name for reduction in reductions(self.stage.expr) for name, _ in reduction.over}
        self.idle = {n for n, size in self.extents.items() if size == 1}
        for load in dict.fromkeys(loads(self.stage.expr)):
            self.accesses[load] = self.access(load)
        self.merge(reduced)

    idle: set[str] = field(default_factory=set)

    def access(self, load: Load) -> MemoryAccess:
        place = self.places[load.tensor]
        if place.buffer not in self.buffers:
            self.buffers[place.buffer] = f"x{len(self.buffers)}"
        terms, const, tables = dict[str, int](), place.first, list[tuple[str, Affine, int]]()
        for index, stride in zip(load.index, place.strides, strict=True):
            if isinstance(index, Affine):
                const += index.const * stride
                for name, coef in index.terms:
                    if name not in self.idle:
                        terms[name] = terms.get(name, 0) + coef * stride
            else:
                name = self.table(index.table)
                tables.append((name, self.busy(index.at), stride))
        return MemoryAccess({n: c for n, c in terms.items() if c}, const, tuple(tables))

    def busy(self, form: Affine) -> Affine:
        """Without iterators that are always 0."""
        return Affine(tuple(t for t in form.terms if t[0] not in self.idle), form.const)

    def table(self, values: tuple[int, ...]) -> str:
        for name, known in self.tables.items():
            if known == values:
                return name
        name = f"{self.symbol}_i{len(self.tables)}"
        self.tables[name] = values
        return name

    def merge(self, reduced: set[str]) -> None:
        """Neighbouring loops that walk all tensors as one."""
        fixed = set(reduced) | ({ROW} if self.rows else set())
        for form in self.forms():
            fixed |= {name for name, _ in form.terms}
        order = self.outer_first([n for n in self.extents if n not in self.idle and n not in fixed])
        every = [self.out, *self.accesses.values()]
        for outer, inner in pairwise(order):
            size = self.extents[inner]
            if all(a.terms.get(outer, 0) == size * a.terms.get(inner, 0) for a in every):
                self.extents[inner] = size * self.extents[outer]
                self.idle.add(outer)
                for access in every:
                    access.terms.pop(outer, None)  # type: ignore[attr-defined]

    def forms(self) -> list[Affine]:
        """What guards and tables say of iterators: these loops stay as they are."""
        forms = [at for access in self.accesses.values() for _, at, _ in access.tables]
        for part in walk(self.stage.expr):
            if isinstance(part, Where | Reduce):
                forms += [self.busy(guard.at) for guard in part.guards]
        return forms

    def outer_first(self, names: Sequence[str]) -> list[str]:
        return sorted(names, key=lambda name: (-abs(self.out.terms.get(name, 0)), name))

    def put(self, text: str) -> None:
        indent = "" if text.startswith("#") else "    " * self.depth
        self.lines.append(f"{indent}{text}" if text else "")

    def open_block(self, head: str) -> None:
        self.put(head + " {")
        self.depth += 1

    def close_blocks(self, count: int = 1) -> None:
        for _ in range(count):
            self.depth -= 1
            self.put("}")

    def open_loop(self, name: str, extent: int | str, first: int | str = 0, step: int = 1) -> None:
        move = f"++{name}" if step == 1 else f"{name} += {step}"
        if self.rows and name == ROW:
            first, extent = "first", "last"
        self.open_block(f"for (int64_t {name} = {first}; {name} < {extent}; {move})")

    def shared(self, loops: int, *, simd: bool = False) -> None:
        """The threads share the loops that follow."""
        if self.threads > 1 and not self.rows:
            self.put(openmp.loop(loops, simd=simd))
        elif simd:
            self.put(openmp.SIMD)

    def function(self) -> str:
        """The whole C function, and its tables before it."""
        reduced = reductions(self.stage.expr)
        names = self.outer_first([n for n in self.extents if n not in self.idle])
        inner = names[-1] if names else ""
        if not reduced:
            self.plain(names, inner)
        elif inner and self.by_columns(reduced[0], inner):
            self.columns(reduced[0], names, inner)
        else:
            self.scalars(reduced[0], names)
        return "\n".join([*self.heads(), *self.lines, "}"])

    def heads(self) -> list[str]:
        lines = []
        for name, values in self.tables.items():
            numbers = ", ".join(map(str, values))
            lines.append(f"static const int32_t {name}[{len(values)}] = {{{numbers}}};")
        words = ["const ps_memory *m", *[ROW_PARAMETERS] * self.rows]
        lines.append(f"static PS_LOOP void {self.symbol}({', '.join(words)})")
        lines.append("{")
        lines += ["    (void)m, (void)in, (void)out;"] * self.rows
        kinds = {place.buffer: place.dtype for place in self.places.values()}
        for buffer, name in self.buffers.items():
            kind = C_TYPES[kinds[buffer]]
            const = "" if name == "y" else "const "
            address = self.pointers[buffer]
            lines.append(f"    {const}{kind} *restrict {name} = ({const}{kind} *){address};")
        return lines

    def plain(self, names: list[str], inner: str) -> None:
        """Every element by itself."""
        value = self.convert_result(self.text(self.stage.expr, self.kind, {}))
        store = f"y[{self.out.text({})}] = {value};"
        if not names:
            self.alone([store])
            return
        *outer, last = names
        few = prod(self.extents[name] for name in outer) < 2 * self.threads
        if outer and not few:
            self.shared(len(outer))
        for name in outer:
            self.open_loop(name, self.extents[name])
        if few or not outer:
            self.shared(1, simd=True)
        else:
            self.put(openmp.SIMD)
        self.open_loop(last, self.extents[last])
        self.put(store)
        self.close_blocks(len(names))

    def alone(self, body: Sequence[str]) -> None:
        """Statements that one thread executes."""
        if self.threads > 1:
            self.put(openmp.single(wait=False))
        self.put("{")
        self.depth += 1
        for line in body:
            self.put(line)
        self.close_blocks()

    def by_columns(self, reduction: Reduce, inner: str) -> bool:
        """Whether neighbouring results are reduced side by side in a vector."""
        if self.rows and inner == ROW:
            return False
        steps = [self.accesses[load].terms.get(inner, 0) for load in loads(reduction.body)]
        return self.extents[inner] >= 4 and self.out.terms.get(inner) == 1 and {*steps} <= {0, 1}

    def columns(self, reduction: Reduce, names: list[str], inner: str) -> None:
        extent, outer = self.extents[inner], names[:-1]
        whole = extent <= CHUNK
        self.shared(len(outer) + 1)
        for name in outer:
            self.open_loop(name, self.extents[name])
        self.open_loop("j0", extent, step=CHUNK)
        self.put(f"{self.kind} acc[{extent if whole else CHUNK}];")
        length = str(extent) if whole else f"ps_least({CHUNK}, {extent} - j0)"
        self.put(f"const int64_t length = {length};")
        first = FIRST[reduction.function][self.kind]
        names_in = {inner: "(j0 + j)"}
        self.vector(f"acc[j] = {first};")
        opened, predicates = self.open_reduction(reduction, {inner})
        value = self.text(reduction.body, self.kind, names_in)
        sum_ = FUNCTIONS[self.kind][reduction.function].format("acc[j]", value)
        if predicates:
            sum_ = f"{self.conditions(predicates, names_in)} ? {sum_} : acc[j]"
        self.vector(f"acc[j] = {sum_};")
        self.close_blocks(opened)
        result = self.convert_result(self.text(self.stage.expr, self.kind, names_in, "acc[j]"))
        self.vector(f"y[{self.out.text(names_in)}] = {result};")
        self.close_blocks(len(outer) + 1)

    def vector(self, statement: str) -> None:
        self.put(openmp.SIMD)
        self.open_loop("j", "length")
        self.put(statement)
        self.close_blocks()

    def scalars(self, reduction: Reduce, names: list[str]) -> None:
        """One result after the other; the last loop of a sum is a vector's."""
        self.shared(len(names)) if names else self.alone_begin()
        for name in names:
            self.open_loop(name, self.extents[name])
        self.put(f"{self.kind} acc = {FIRST[reduction.function][self.kind]};")
        last = self.last_of(reduction)
        opened, predicates = self.open_reduction(reduction, set(), last=last)
        value = self.text(reduction.body, self.kind, {})
        sum_ = FUNCTIONS[self.kind][reduction.function].format("acc", value)
        if predicates:
            sum_ = f"{self.conditions(predicates, {})} ? {sum_} : acc"
        self.put(f"acc = {sum_};")
        self.close_blocks(opened)
        result = self.convert_result(self.text(self.stage.expr, self.kind, {}, "acc"))
        self.put(f"y[{self.out.text({})}] = {result};")
        self.close_blocks(len(names) or 1)

    def alone_begin(self) -> None:
        if self.threads > 1:
            self.put(openmp.single(wait=False))
        self.put("{")
        self.depth += 1

    def last_of(self, reduction: Reduce) -> str:
        """The iterator of a sum along which all that it reads lies side by side."""
        if reduction.function != "add":
            return ""
        every = [self.accesses[load] for load in loads(reduction.body)]
        good = [
            name for name, size in reduction.over
            if size >= 8 and all(a.terms.get(name, 0) in (0, 1) and not a.tables for a in every)
        ]  # fmt: skip
        guarded = {name for guard in reduction.guards for name, _ in guard.at.terms}
        return next((name for name in good if name not in guarded), "")

    def open_reduction(
        self, reduction: Reduce, inside: set[str], *, last: str = ""
    ) -> tuple[int, list[Guard]]:
        """Loops over what is reduced, as far as guards allow; and guards that remain."""
        over = sorted(reduction.over, key=lambda item: item[0] == last)
        bounds: dict[str, tuple[str, str]] = {}
        rest: list[Guard] = []
        for guard in reduction.guards:
            own = [(n, c) for n, c in guard.at.terms if n in dict(reduction.over)]
            others = {n for n, _ in guard.at.terms} & inside
            if len(own) == 1 and own[0][1] > 0 and not others and own[0][0] not in bounds:
                bounds[own[0][0]] = self.bounds(guard, own[0], dict(reduction.over)[own[0][0]])
            else:
                rest.append(guard)
        for name, extent in over:
            low, high = bounds.get(name, ("0", str(extent)))
            if name == last:
                self.put(openmp.SIMD_SUM)
            self.open_loop(name, high, low)
        return len(over), rest

    def bounds(self, guard: Guard, own: tuple[str, int], extent: int) -> tuple[str, str]:
        """First value and end of an iterator for which a guard holds."""
        name, coef = own
        terms = tuple((n, -c) for n, c in guard.at.terms if n != name)
        low = affine_text(self.busy(Affine(terms, -guard.at.const)), {})
        high = affine_text(self.busy(Affine(terms, guard.extent - guard.at.const)), {})
        return (
            f"ps_ceil_div({low}, {coef})",
            f"ps_least({extent}, ps_ceil_div({high}, {coef}))",
        )

    def conditions(self, guards: Sequence[Guard], names: Mapping[str, str]) -> str:
        conditions = []
        for guard in guards:
            place = affine_text(self.busy(guard.at), names)
            conditions.append(f"(uint64_t)({place}) < {guard.extent}")
        return "(" + " && ".join(conditions) + ")"

    @property
    def kind(self) -> str:
        """The numbers that results are computed in, before they are stored."""
        kind = kind_of(self.stage.expr, self.dtypes)
        return kind or kind_of(Load(self.stage.output, ()), self.dtypes)

    def convert_result(self, value: str) -> str:
        """A value as the output's elements hold it."""
        dtype = self.dtypes[self.stage.output]
        if dtype == "bf16":
            return f"ps_bf16_of({value})"
        if dtype == "bool":
            return f"({value}) != 0"
        wanted = C_TYPES[dtype]
        return value if wanted == self.kind else f"({wanted})({value})"

    def text(self, expr: Expr, kind: str, names: Mapping[str, str], reduced: str = "") -> str:
        """C text of an expression as a number of a kind."""
        match expr:
            case Number(value):
                return number(value, kind)
            case Load():
                return self.element(expr, kind, names)
            case Reduce():
                return reduced
            case Where(guards, body, otherwise):
                inside = self.text(body, kind, names, reduced)
                other = self.text(otherwise, kind, names, reduced)
                return f"({self.conditions(guards, names)} ? {inside} : {other})"
            case Apply(function, arguments):
                own = kind_of(expr, self.dtypes) or kind
                inner = own
                if function in CONVERSIONS:
                    inner = kind_of(arguments[0], self.dtypes) or kind
                texts = [self.text(argument, inner, names, reduced) for argument in arguments]
                if function in CONVERSIONS:
                    value_text = texts[0] if inner == own else f"(({own})({texts[0]}))"
                else:
                    value_text = FUNCTIONS[own][function].format(*texts)
                return value_text if own == kind else f"(({kind})({value_text}))"

    def element(self, load: Load, kind: str, names: Mapping[str, str]) -> str:
        place = self.places[load.tensor]
        name = self.buffers[place.buffer]
        value = f"{name}[{self.accesses[load].text(names)}]"
        if place.dtype == "bf16":
            value = f"ps_bf16_value({value})"
            return value if kind == REAL else f"(({kind}){value})"
        return value if C_TYPES[place.dtype] == kind else f"(({kind}){value})"
