"""A row fusion as C: its members take turns, each as many rows at a time as its own loop takes.

Rows that are made and not read yet lie in a ring a thread: row r of a tensor at
``at + (r - base) * bytes``. Where the end is reached, what is still needed moves to the beginning.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from polysci.loop_ir.nodes import Named
from polysci.lower.direct.sharing import nest, share_loops
from polysci.lower.layer_calls import LayerCall
from polysci.network.codegen.loops import MEMBER, Pointer
from polysci.numerics import arrays
from polysci.numerics.arrays import round_up
from polysci.printers import ctree as c
from polysci.printers.team import Team
from polysci.program.passes.buffers import PlacedProgram
from polysci.program.passes.operands import RowWindow
from polysci.program.passes.row_windows import rows_read
from polysci.program.stages import ROW_AXIS, RowFusion

RING = 64 << 10  # bytes that a ring may have beyond what it needs, so that it seldom moves
RINGS = """\
/* Rows of a tensor between two members of a band: those from `base` to `done` are there. */
typedef struct {
    char *at;
    int64_t base, done;
} ps_ring;
"""


@dataclass(slots=True)
class RowFusionWriter:
    """A row fusion on its way to C: ``calls`` of its layers, ``calls_to`` of all its members."""

    stage: RowFusion
    placed: PlacedProgram
    calls: Mapping[int, LayerCall]
    threads: int
    symbol: str
    team: Team
    calls_to: dict[int, c.Generable] = field(default_factory=dict)

    def rows(self, inside: int) -> RowWindow:
        """What member ``inside`` reads of the one before it."""
        tensor = self.stage.members[inside - 1].output
        values = self.placed.program.values
        made = values[self.stage.members[inside].output].shape
        window = rows_read(self.stage.members[inside], tensor, values[tensor].shape, made)
        assert window is not None
        return window

    def height(self, inside: int) -> int:
        """Rows that a member makes."""
        return self.placed.program.values[self.stage.members[inside].output].shape[ROW_AXIS]

    def step(self, inside: int) -> int:
        """Rows that a member makes at a time."""
        call = self.calls.get(inside)
        return call.schedule.loops[0].step if call else 1

    def row_bytes(self, inside: int) -> int:
        value = self.placed.program.values[self.stage.members[inside].output]
        return value.bytes // value.shape[ROW_AXIS]

    def capacity(self, inside: int) -> int:
        """Rows of a ring."""
        window, step = self.rows(inside + 1), self.step(inside)
        needed = (self.step(inside + 1) - 1) * window.step + window.high - window.low + 1
        spare = RING // self.row_bytes(inside)
        return min(needed + 2 * step + spare, self.height(inside) + step)

    def ring_bytes(self, inside: int) -> int:
        size = self.capacity(inside) * self.row_bytes(inside)
        return round_up(size) + arrays.ALIGNMENT

    @property
    def work_bytes(self) -> int:
        """Of packed copies, for a thread."""
        most = max((call.source.workspace for call in self.calls.values()), default=0)
        return round_up(most)

    def memory(self) -> dict[str, int]:
        """Bytes in the arena, by the names of ``text``."""
        sizes = {
            f"{self.symbol} ring{inside}": self.threads * self.ring_bytes(inside)
            for inside in range(len(self.stage.members) - 1)
        }
        if self.work_bytes:
            sizes[f"{self.symbol} work"] = self.threads * self.work_bytes
        return sizes

    def pointers(self) -> dict[str, Pointer]:
        """C text of where the first row of an internal tensor would lie."""
        return {
            name: Named(
                f"((uintptr_t)r[{inside}].at - (uintptr_t)(r[{inside}].base * "
                f"{self.row_bytes(inside)}))"
            )
            for inside, name in enumerate(self.stage.internal)
        }

    def local(self, inside: int) -> dict[str, Pointer]:
        """The same inside a function of loops, which gets them as arguments."""
        names = self.stage.internal
        pointers: dict[str, Pointer] = {names[inside - 1]: Named("in")} if inside else {}
        return pointers | ({names[inside]: Named("out")} if inside < len(names) else {})

    def ends(self, inside: int) -> list[str]:
        """Those arguments."""
        mine, every = self.local(inside), self.pointers()
        addresses = {str(where): f"(void *){every[name]}" for name, where in mine.items()}
        return [addresses.get("in", "0"), addresses.get("out", "0")]

    def text(self, offsets: Mapping[str, int]) -> str:
        """The functions of all members, then the row fusion's own."""
        last = len(self.stage.members) - 1
        parts = [self.member_function(inside) for inside in range(last)]
        parts.append(self.fusion_function(offsets, last))
        return "\n".join(c.text(part) + "\n" for part in parts)

    def member_function(self, inside: int) -> c.Generable:
        """Make the rows of an internal tensor up to one, of which those before another are done."""
        own, step = f"r[{inside}]", self.step(inside)
        head = (
            f"static void {self.symbol}_rows{inside}(const ps_memory *m, ps_ring *r, char *work,\n"
            "                    int64_t from, int64_t upto)"
        )
        block = [
            c.Statement(f"const int64_t first = {own}.done"),
            c.Statement(f"const int64_t last = ps_least(first + {step}, {self.height(inside)})"),
            *self.make_input_rows(inside),
            self.make_room(inside),
            self.calls_to[inside],
            c.Statement(f"{own}.done = last"),
        ]
        begin = c.Statement(f"{own}.base = {own}.done = from / {step} * {step}")
        return c.function(head, [
            c.Statement("(void)m, (void)work"),
            c.when(f"{own}.done < 0", begin),
            c.while_loop(f"{own}.done < upto", c.Block(block)),
        ])  # fmt: skip

    def make_room(self, inside: int) -> c.Generable:
        """Move rows that are still needed to the beginning of a ring that is full."""
        own, size = f"r[{inside}]", self.row_bytes(inside)
        move = (
            f"memmove({own}.at, {own}.at + (keep - {own}.base) * {size},\n"
            f"                    (size_t)(({own}.done - keep) * {size}))"
        )
        lines = [
            f"const int64_t keep = ps_least(from, {own}.done)",
            move,
            f"{own}.base = keep",
        ]
        full = f"last - {own}.base > {self.capacity(inside)}"
        return c.when(full, c.Block([*map(c.Statement, lines)]))

    def make_input_rows(self, inside: int) -> list[c.Generable]:
        """The rows of the tensor before that rows ``first`` to ``last`` of this one read."""
        if not inside:
            return []
        window = self.rows(inside)
        low = f"ps_most(0, first * {window.step} + {window.low})"
        high = f"ps_least({window.extent}, (last - 1) * {window.step} + {window.high + 1})"
        return [c.Statement(f"{self.symbol}_rows{inside - 1}(m, r, work, {low}, {high})")]

    def fusion_function(self, offsets: Mapping[str, int], last: int) -> c.Generable:
        """The last member, whose rows the threads share."""
        step, height = self.step(last), self.height(last)
        blocks = -(-height // step)
        work = "0"
        if self.work_bytes:
            work = f"m->arena + {offsets[f'{self.symbol} work']} + thread * {self.work_bytes}"
        rings = [
            f"{{.at = m->arena + {offsets[f'{self.symbol} ring{inside}']} + thread * "
            f"{self.ring_bytes(inside)}, .done = -1}}"
            for inside in range(last)
        ]
        block = [
            c.Statement(f"const int64_t last = ps_least(first + {step}, {height})"),
            *self.make_input_rows(last),
            self.calls_to[last],
        ]
        start = f"int64_t first = {blocks} * thread / {self.threads} * {step}"
        turns = [
            c.local_array("ps_ring", "r", last, f"{{{', '.join(rings)}}}"),
            c.Statement(f"char *const work = {work}"),
            c.Statement("(void)work"),
            c.Statement(f"const int64_t end = {blocks} * (thread + 1) / {self.threads} * {step}"),
            c.loop(start, "first < end", f"first += {step}", c.Block(block)),
        ]
        threads = [("thread", self.threads, 1)]
        loops = (
            share_loops(self.team, threads, turns, member=MEMBER)
            if self.threads > 1 else nest(threads, turns)
        )  # fmt: skip
        return c.function(f"static void {self.symbol}(const ps_memory *m)", loops)
