"""Seconds of Winograd's algorithm: its transforms, its GEMMs, and the transformed filters' way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from polysci.cost.estimate import Context
from polysci.target.microkernels import Microkernel

TileCounts = tuple[tuple[int, int], ...]  # how many register tiles, and of how many rows


@dataclass(frozen=True, slots=True)
class WinogradWork:
    """The features of a call: what it computes and moves; sizes are in bytes.

    ``u`` are the transformed filters, ``v`` the transformed input, ``m`` the products of a block.
    ``operations`` are those of vectors in both transforms. Each of ``gemms``, a point by one panel
    of filters, takes ``blocks`` of tiles: how many, and the register tiles of each, which have
    ``depth`` steps. A ``block`` holds V, M and one panel of U. ``u_block`` is the part of U that
    all tiles read before the next one, None if there is none. ``panel_reads`` register tiles read
    each panel; U arrives during a part ``arriving`` of them. ``passes`` are V and M of all tiles,
    which a block larger than L2 moves twice. ``halo`` is by what tiles that overlap multiply reads
    of x. ``shares`` is the busiest thread's part of the work along dimensions. ``widened``: kernels
    widen U as they load it.
    """

    kernel: Microkernel
    depth: int
    teams: int
    fused: bool
    operations: tuple[float, float]
    gemms: int
    blocks: tuple[tuple[int, TileCounts], ...]
    panel_reads: int
    arriving: float
    halo: float
    x: int
    y: int
    u: int
    v: int
    m: int
    u_block: int | None
    block: int
    passes: tuple[int, int]
    shares: Mapping[str, float]
    widened: bool = False


@dataclass(frozen=True, slots=True)
class WinogradEstimate:
    """Seconds of a call by parts, of the thread that has most to do; bytes of U, V and M.

    ``weights`` is what reading U takes beyond the GEMMs that hide it.
    """

    into: float
    gemm: float
    weights: float
    back: float
    threads: float
    sizes: tuple[int, int, int]

    @property
    def seconds(self) -> float:
        return self.into + self.gemm + self.weights + self.back + self.threads

    @property
    def parts(self) -> dict[str, float]:
        return {
            "input transform": self.into, "GEMMs": self.gemm, "weights": self.weights,
            "output transform": self.back, "threads": self.threads,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class WinogradCosts:
    """The work of a call with the machine's coefficients."""

    work: WinogradWork
    context: Context

    def estimate(self) -> WinogradEstimate:
        """Return the prediction; cold filters come from memory."""
        work = self.work
        into, back = self._transforms()
        gemm, weights = self._gemms(), self._weights()
        hidden = self._coefficient("hidden_l3") if self.weights_far else 0.0
        if self.context.cold or work.u + work.x + work.y > self.context.target.last_level.size:
            hidden = self._coefficient("hidden_memory")
        arriving = work.arriving if self.weights_far else 1.0
        shown = max(0.0, weights - gemm * arriving) + hidden * min(weights, gemm)
        regions = 0 if work.teams == 1 else 1 + (not work.fused)
        fork = regions * self.context.fork_seconds
        sizes = work.u, work.v, work.m
        return WinogradEstimate(into, gemm, shown + self._read_again(), back, fork, sizes)

    @property
    def weights_far(self) -> bool:
        """Return whether U is not in L2."""
        return self.context.cold or self.work.u + self.work.block > self._held_bytes

    def _gemms(self) -> float:
        """Register tiles at their measured rates, with calls, runs and stores of M."""
        seconds = sum(
            blocks * sum(count * self._call(rows) for count, rows in tiles)
            for blocks, tiles in self.work.blocks
        )
        return self.work.gemms * seconds * self.work.shares["tk"]

    def _call(self, rows: int) -> float:
        kernel, machine = self.work.kernel, self.context.machine
        name = f"{kernel.family}_{kernel.isa}_{kernel.compute}_{rows}x{kernel.cols}"
        rate = machine.peak * kernel.lanes / self._lanes
        rate *= machine.of_kernel(name, rows, kernel.vecs)
        fma = rows * kernel.vecs
        loads = (rows + kernel.vecs) / fma / self._coefficient("winograd_loads")
        crowd = max(1.0, loads) if fma >= self._coefficient("in_flight") else 1.0
        compute = 2.0 * rows * kernel.cols * self.work.depth / rate * crowd
        if self.work.widened:
            slot = 2.0 * self._lanes / machine.peak
            compute += self._coefficient("widen") * kernel.vecs * self.work.depth * slot
        events = self._coefficient("call_ns") + self._coefficient("run_ns")
        events += self._coefficient("store_ns") * fma
        return (compute + events) * 1e-9

    def _transforms(self) -> tuple[float, float]:
        """Return the seconds of both transforms, which issue two operations in a FMA's time."""
        work, coefficient = self.work, self._coefficient
        slot = 2e-9 * self._lanes / self.context.machine.peak
        far = self._rate(work.x + work.y + (work.u if self.weights_far else 0))
        moved = [coefficient("winograd_scattered") * work.halo * work.x / far, 2 * work.y / far]
        if work.block > self._held_bytes:  # V and M are written and fetched once more
            spilled = self._rate(work.block)
            moved = [
                now + 2.0 * size / spilled for now, size in zip(moved, work.passes, strict=True)
            ]
        into, back = (
            count * slot + beside for count, beside in zip(work.operations, moved, strict=True)
        )
        return into * (work.shares["t"] if work.fused else 1.0 / work.teams), back * work.shares[
            "tk"
        ]

    def _weights(self) -> float:
        """Return the seconds of reading U: once a block of tiles, or once where it stays."""
        work, again = self.work, self._reads()
        near = (again - 1) * work.u / self._rate(work.u + work.block)
        return (work.u / self._weights_rate() + near) * work.shares["k" if again == 1 else "tk"]

    def _reads(self) -> int:
        """Return the number of times that U comes from beyond L2."""
        part = self.work.u_block
        return (
            1
            if part is not None and part < self._held_bytes
            else sum(blocks for blocks, _ in self.work.blocks)
        )

    def _weights_rate(self) -> float:
        """Bytes a second at which U comes for the first time."""
        if not self.weights_far:
            return self._rate(0)
        everything, last = self.work.u + self.work.x + self.work.y, self.context.target.last_level
        return self._rate(max(everything, last.size + 1) if self.context.cold else everything)

    def _read_again(self) -> float:
        """Return the seconds that later calls wait for panels while the next ones arrive in L2."""
        if not self.weights_far:
            return 0.0
        work = self.work
        seconds = (work.panel_reads - self._reads()) * work.u / (self.context.machine.l2 * 1e9)
        return self._coefficient("winograd_again") * max(0.0, seconds) * work.shares["tk"]

    @property
    def _held_bytes(self) -> float:
        """Bytes of L2 that stay there."""
        return self._coefficient("winograd_held") * self.context.target.second_level.size

    def _rate(self, size: float) -> float:
        """Bytes a second of one thread from the level that holds so many bytes."""
        machine, teams = self.context.machine, self.work.teams
        if size <= self._held_bytes:
            return machine.l2 * 1e9
        if size <= self.context.target.last_level.size:
            return min(machine.l3, machine.l3_all / teams) * 1e9
        return min(machine.memory, machine.memory_all / teams) * 1e9

    @property
    def _lanes(self) -> int:
        """Numbers of a vector at the peak; narrower ones are taken to be no faster."""
        return max(self.work.kernel.lanes, self.context.target.isa.lanes_f32)

    def _coefficient(self, name: str) -> float:
        return self.context.machine.coefficient(name)
