"""The loop IR of a bilinear algorithm: sums and products of blocks, loops over bands and parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from polysci.errors import SpecError, UnsupportedError
from polysci.loop_ir import interface
from polysci.loop_ir.index import (
    THREAD,
    ZERO,
    Index,
    Variable,
    as_index,
    iterator,
    least,
    thread_share,
)
from polysci.loop_ir.nodes import (
    Address,
    AddressOf,
    Buffer,
    Constant,
    Element,
    Fields,
    Invoke,
    Let,
    LoopFunction,
    LoopModule,
    LoopStatement,
    Named,
    Point,
    Return,
    RoutineResult,
    ScalarParameter,
    Store,
    Table,
    Team,
    Unused,
    Value,
    block,
    loop,
    run_threads,
)
from polysci.lower.algorithm import EmitOptions
from polysci.lower.bilinear.coefficients import Integers
from polysci.lower.bilinear.plan import BilinearPlan, streams_refusal
from polysci.lower.direct.nest import flush_denormals, lower_nest
from polysci.lower.direct.panels import columns_function
from polysci.lower.direct.tile_functions import activation_function, activation_headers
from polysci.lower.lowering import LoweredPrimitive, share_turns
from polysci.numerics.arrays import round_up
from polysci.numerics.dtypes import PRECISIONS
from polysci.target.microkernels import HeaderSet

HEADERS = ("bilinear",)
F32 = PRECISIONS["f32"]
FLOAT = 4  # bytes


def lower_bilinear(plan: BilinearPlan, options: EmitOptions) -> LoweredPrimitive:
    """Return a product by a bilinear algorithm; the interface is every primitive's.

    Raises SpecError or UnsupportedError for options that do not fit.
    """
    schedule = plan.schedule
    if options.by_rows:
        raise UnsupportedError(f"schedule {schedule}: its outermost loop is over rows of blocks")
    if options.adds:
        raise UnsupportedError(f"schedule {schedule}: its epilogue does not add to y")
    interface.check_symbol(options.symbol)
    if plan.threads < 1:
        raise SpecError(f"threads={plan.threads}: at least one thread is needed")
    return _Lowering.of(plan, options).primitive()


@dataclass(frozen=True, slots=True)
class _Lowering:
    """A plan and the product of blocks, which is a primitive of its own inside."""

    plan: BilinearPlan
    options: EmitOptions
    inner: LoweredPrimitive
    distances: tuple[int, int, int, bool]  # of rows of A, B and C; whether B is by columns

    @classmethod
    def of(cls, plan: BilinearPlan, options: EmitOptions) -> _Lowering:
        own = EmitOptions(f"{options.symbol}_product")
        distances = plan.product.distances(options.strides)
        if plan.streams and distances[2] % plan.kernel.lanes:
            raise UnsupportedError(streams_refusal(plan.schedule))
        inner = lower_nest(plan.contraction, plan.strides, plan.inner, 1, own)
        return cls(plan, options, inner, distances)

    @property
    def symbol(self) -> str:
        return self.options.symbol

    @property
    def scratch(self) -> int:
        """Elements of a thread's workspace: sums and products of a band, and that of a product."""
        products = self.plan.algorithm.products
        return products * (self.plan.sum_size + self.plan.product_size) + self._inner_size

    @property
    def _inner_size(self) -> int:
        return round_up(self.inner.workspace) // FLOAT

    @property
    def panels(self) -> int:
        """Elements of all packed sums of B and, behind them, of the panels before they are packed.

        Threads that pack in a call have such a panel each.
        """
        plan = self.plan
        panels = plan.teams if plan.packs_b else 1
        return plan.factors * plan.factor_size + panels * plan.panel_size

    def primitive(self) -> LoweredPrimitive:
        plan, symbol, product = self.plan, self.symbol, self.plan.product
        packed = product.depth * product.columns if plan.packs_b else self.panels
        workspace = plan.teams * self.scratch + (self.panels if plan.packs_b else 0)
        module = LoopModule((
            *self._tables(),
            self._shape(),
            self._run(),
            *self._sizes(FLOAT * workspace, FLOAT * packed),
            *self._inner_functions(),
            self._pack(),
            self._sums(),
            self._output(),
        ))  # fmt: skip
        return LoweredPrimitive(
            module, symbol, HeaderSet(plan.kernel.isa), plan.schedule, F32, self.options.team,
            (*HEADERS, *activation_headers(product.problem.activation)),
            FLOAT * workspace, FLOAT * packed, packing=self._packing,
        )  # fmt: skip

    @property
    def _packing(self) -> str:
        """Return a text that is the same where B is packed alike: its sums, parts and panels."""
        plan, product, (_, row, _, turned) = self.plan, self.plan.product, self.distances
        sizes = (product.depth, product.columns, plan.deep, plan.wide, plan.columns, row, turned)
        return f"{plan.schedule.transform} {sizes} {self._pack_columns('w')}"

    def _pack_columns(self, symbol: str) -> LoopFunction:
        """Return the function that packs columns of a panel."""
        turned = self.distances[-1]
        row = self.plan.panel_row(turned=turned)
        return columns_function(symbol, self.plan.nest, (1, row) if turned else (row, 1))

    def _tables(self) -> list[Table]:
        """Return the terms of all sums, of A, B and C."""
        algorithm = self.plan.algorithm
        matrices = {"u": algorithm.a, "v": algorithm.b, "w": algorithm.c}
        return [terms_table(f"{self.symbol}_{name}", its) for name, its in matrices.items()]

    def _shape(self) -> Let:
        """Return the constant that the routines take."""
        plan, product, (m, k, n) = self.plan, self.plan.product, self.plan.algorithm.size
        (x_row, w_row, y_row, turned), (alpha, beta) = self.distances, product.problem.factors
        fields: dict[str, Value] = {
            "rows": product.rows, "depth": product.depth, "columns": product.columns,
            "across_a": k, "across": n,
            "high": plan.high, "deep": plan.deep, "wide": plan.wide,
            "blocks": m * n, "products": plan.algorithm.products,
            "x_row": x_row, "w_row": w_row, "y_row": y_row, "turned": int(turned),
            "sum": plan.sum_size, "sum_row": plan.sum_row,
            "product": plan.product_size, "product_row": plan.product_row,
            "panel_row": plan.panel_row(turned=turned),
            "stream": int(plan.streams), "alpha": Constant(alpha), "beta": Constant(beta),
            **{name: Named(f"{self.symbol}_{name}") for name in "uvw"},
        }  # fmt: skip
        return Let(
            f"{self.symbol}_shape", Fields(tuple(fields.items())), "ps_bilinear", static=True
        )

    @property
    def _constant(self) -> Named:
        return Named(f"{self.symbol}_shape")

    def _function(
        self, name: str, buffers: Mapping[str, str], numbers: Sequence[str], *body: LoopStatement
    ) -> LoopFunction:
        """Return a function of this file alone; ``buffers`` are types of its pointers by name."""
        pointers = (
            Buffer(name, kind.removeprefix("const "), const=kind.startswith("const "))
            for name, kind in buffers.items()
        )
        scalars = (ScalarParameter(number) for number in numbers)
        return LoopFunction(f"{self.symbol}_{name}", (*pointers, *scalars), block(*body))

    def _sizes(self, workspace: int, packed: int) -> list[LoopFunction]:
        rows = interface.functions(F32)
        bodies = {
            "workspace_size": block(Return(workspace)),
            "packed_size": block(Return(packed)),
            "pack_weights": block(*self._pack_weights(packed)),
        }
        return [row.define(self.symbol, bodies[row.role]) for row in rows if row.role in bodies]

    def _pack_weights(self, packed: int) -> list[LoopStatement]:
        """Return the packing of a constant B; one that calls pack is copied as it is."""
        if self.plan.packs_b:
            at = Variable("i")
            to, start = (
                Address(Named(name), dtype="byte", const=name == "w") for name in ("packed", "w")
            )
            return [loop("i", packed, Store(to, at, Element(start, at)))]
        used = self.plan.factors * self.plan.factor_size
        panel = Address(Named("packed"), as_index(used))
        operands = (Named("w"), Named("packed"), panel, 0, self.plan.factors)
        return [
            Invoke(f"{self.symbol}_pack", operands),
            loop("i", self.panels, Store("packed", Variable("i"), 0), start=used),
        ]

    def _pack(self) -> LoopFunction:
        """Return the function that packs parts first..last-1 of sums of blocks of B.

        Each is formed panel by panel.
        """
        plan, part, column = self.plan, Variable("part"), Variable("column")
        count, products = Variable("count"), plan.algorithm.products
        start = part // products * plan.columns + column
        to = Address(Named("packed"), part * plan.factor_size)
        inner = interface.columns_function(F32).name(self.inner.symbol)
        columns = loop(
            "column", plan.columns,
            Let("count", least(plan.panel, plan.columns - column)),
            Invoke("ps_bilinear_factor", (
                self._constant, Named("w"), Named("panel"), part % products, start, count
            )),
            Invoke(inner, (Named("panel"), to, column, column + count)),
            step=plan.panel,
        )  # fmt: skip
        used, size = self.inner.packed // FLOAT, plan.factor_size
        at = part * size + Variable("i")
        clear = [loop("i", size, Store("packed", at, 0), start=used)] if used < size else []
        parts = loop("part", Variable("last"), columns, *clear, start=Variable("first"))
        buffers = {"w": "const float32", "packed": "float32", "panel": "float32"}
        return self._function("pack", buffers, ["first", "last"], parts)

    def _sums(self) -> LoopFunction:
        operands = (
            self._constant, Named("x"), Named("sums"), Variable("first"), self.plan.rows
        )  # fmt: skip
        buffers = {"x": "const float32", "sums": "float32"}
        return self._function("sums", buffers, ["first"], Invoke("ps_bilinear_sums", operands))

    def _output(self) -> LoopFunction:
        function = activation_function(self.plan.product.problem.activation)
        operands = (
            self._constant, Named("g"), Named("products"), Variable("first"), self.plan.rows,
            Variable("column"), self.plan.columns, Named(function) if function else 0,
        )  # fmt: skip
        buffers = {"g": "const ps_args", "products": "const float32"}
        call = Invoke("ps_bilinear_output", operands)
        return self._function("output", buffers, ["first", "column"], call)

    def _inner_functions(self) -> list[LoopFunction]:
        """Return the functions of a product that calls reach, those that call others last."""
        symbol, module = self.inner.symbol, self.inner.module
        names: set[interface.Role] = {"packed_size", "workspace_size", "pack_weights"}
        left_out = {interface.function_name(role, symbol) for role in names}
        functions = [row for row in module.functions.values() if row.name not in left_out]
        inlined = [row for row in functions if not row.attributes]
        inlined.append(self._pack_columns(symbol))
        tiles = [row for row in functions if row.attributes]
        return [*tiles, *(replace(row, attributes=("static", "inline")) for row in inlined)]

    def _run(self) -> LoopFunction:
        plan, pool = self.plan, self.options.team is Team.POOL
        fields: dict[str, Value] = {
            name: Named(name) for name in ("y", "bias", "residual", "clamp")
        }
        vector = FLOAT * plan.kernel.lanes
        if plan.streams:
            fields["aligned"] = RoutineResult("ps_is_aligned", (Named("y"), vector))
        steps, start = list[LoopStatement](), 0
        panels = Named("packed")
        if plan.packs_b:
            start, panels = self.panels, Named("panels")
            steps += [self._floats("panels", ZERO), *self._pack_in_call()]
        own = start + self.scratch * THREAD if plan.teams > 1 else as_index(start)
        products = own + plan.algorithm.products * plan.sum_size
        body = [
            self._floats("sums", own),
            self._floats("products", products),
            *self._loops(panels, products + plan.algorithm.products * plan.product_size),
        ]
        if plan.streams:
            body.append(Invoke("ps_fence"))  # others see C before the caller goes on
        steps += self._share(body, last=True)
        *_, run = interface.functions(F32, team=pool)
        unused = [Unused(("team",))] * (pool and plan.teams == 1)
        whole = block(
            *unused,
            Let("args", Fields(tuple(fields.items())), "ps_args"),
            Point(Buffer("g", "ps_args", const=True), AddressOf("args")),
            *steps,
            Return(interface.OK),
        )
        return replace(run.define(self.symbol, whole), comment=f"{self.symbol}: {plan.schedule}")

    def _floats(self, name: str, at: Index) -> Point:
        """Return the definition of floats in the workspace."""
        return Point(Buffer(name, "float32"), Address(Named("workspace"), at, "float32"))

    def _pack_in_call(self) -> list[LoopStatement]:
        """Return the packing of a B that changes, which threads share."""
        plan, name = self.plan, f"{self.symbol}_pack"
        used = plan.factors * plan.factor_size
        if plan.teams == 1:
            panel = Address(Named("panels"), as_index(used))
            return [Invoke(name, (Named("packed"), Named("panels"), panel, 0, plan.factors))]
        panel = Address(Named("panels"), used + plan.panel_size * THREAD)
        share = thread_share(plan.factors, plan.teams)
        call = Invoke(name, (Named("packed"), Named("panels"), panel, *share))
        return self._share([call], last=False)

    def _share(self, body: Sequence[LoopStatement], *, last: bool) -> list[LoopStatement]:
        """Return statements once a thread."""
        if self.options.team is Team.OWN:
            body = flush_denormals(body)
        if self.plan.teams == 1:
            return [*body]
        return [run_threads(self.plan.teams, body, last=last)]

    def _loops(self, panels: Named, workspace: Index) -> list[LoopStatement]:
        """Return loops over bands and parts, the parallel ones as one loop over tasks."""
        plan = self.plan
        dims = [loop.dim for loop in plan.around]
        parallel = len(plan.schedule.parallel) if plan.teams > 1 else 0
        i0, j0 = (iterator(dim) if dim in dims else ZERO for dim in "ij")
        sums = Invoke(f"{self.symbol}_sums", (Named("x"), Named("sums"), i0))
        body: list[LoopStatement] = [
            self._products(j0, panels, workspace),
            Invoke(f"{self.symbol}_output", (Named("g"), Named("products"), i0, j0)),
        ]
        extents = {"i": plan.high, "j": plan.wide}
        steps = {"i": plan.rows, "j": plan.columns}
        formed = False
        for dim in reversed(dims[parallel:]):
            if dim == "i":
                body, formed = [sums, *body], True
            body = [loop(iterator(dim).name, extents[dim], *body, step=steps[dim])]
        if not formed:
            body = [sums, *body]
        turns = {"i": (plan.bands, plan.rows), "j": (plan.parts, plan.columns)}
        shared = {dim: turns[dim] for dim in dims[:parallel]}
        return [share_turns(shared, plan.teams, body)] if parallel else body

    def _products(self, j0: Index, panels: Named, workspace: Index) -> LoopStatement:
        """Return the loop over the products of blocks."""
        plan, p = self.plan, Variable("p")
        part = j0 // plan.columns * plan.algorithm.products + p
        run = self.inner.functions[-1]
        operands: dict[str, Value] = {
            "x": Address(Named("sums"), p * plan.sum_size),
            "packed": Address(panels, part * plan.factor_size),
            "y": Address(Named("products"), p * plan.product_size),
            "bias": 0, "residual": 0, "clamp": 0,
            "workspace": Address(Named("workspace"), workspace, "float32"),
        }  # fmt: skip
        call = run.invoke(self.inner.symbol, operands)
        return loop(p.name, plan.algorithm.products, call)


def terms_table(name: str, sums: Integers) -> Table:
    """Return where the terms of each sum begin, and then the terms: which block, and its factor."""
    places, terms = [len(sums) + 1], list[int]()
    for row in sums:
        for at in row.nonzero()[0]:
            terms += [int(at), int(row[at])]
        places.append(len(sums) + 1 + len(terms))
    values = (*places, *terms)
    return Table(name, "int64", (len(values),), values)
