"""The coefficients of the cost model: one table of data, a row a coefficient.

The model is ``bound(compute, memories) + sum of coefficient x feature``. A row holds the *prior* of
a coefficient: its value where a machine's own is not known, and the machine that it comes from. A
calibration probes or fits a machine's own values and keeps them with their standard errors. No
other code of the model holds a number that one CPU showed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

# Where priors come from.
DEFAULT: Final = "earlier calibrations, machines not recorded"
ZEN: Final = "AMD Zen core"
ZEN4: Final = "AMD Zen 4 core"
ZEN5: Final = "AMD Zen 5 guest"
AVX2: Final = "AMD guest with AVX2"
INTEL: Final = "Intel core with AVX512-FP16"
SHEETS: Final = "data sheets"
AMX: Final = "Intel core with AMX"
LOST: Final = "one machine, not recorded"
FILES: Final = "data sheets; errors are those of eight CPUs in experiments/machines"


@dataclass(frozen=True, slots=True)
class Coefficient:
    """One row: unit, meaning, prior, the machine that it comes from, and bounds.

    ``source`` says how a calibration finds a machine's own value: ``fitted`` to measured schedules,
    ``probed`` by loops of its own, or ``prior`` where it keeps the prior. An event takes a cycle
    of some fast clock at least where compute cannot hide it, and a share is one at most: what is
    fitted lies between ``least`` and ``most``. ``error`` is the prior's standard error: by how much
    the own values of CPUs differ from it. Where it is not known, ``reason`` says why nothing was
    fitted.
    """

    unit: str
    meaning: str
    prior: float
    machine: str
    source: str = "prior"
    least: float = 0.0
    most: float = 1e9
    error: float | None = None
    reason: str = ""

    @property
    def origin(self) -> str:
        """How well the prior is known, and the machine that it comes from."""
        if self.error is None:
            return f"prior, not fitted: {self.reason}; {self.machine}"
        return f"prior ± {self.error:.3g}; {self.machine}"


_CALLS: Final = {
    "call_ns": Coefficient("ns", "entering a register tile", 0.2, DEFAULT, "fitted", 0.2, 50.0),
    "run_ns": Coefficient(
        "ns", "one run of its reduction loop",
        0.55, DEFAULT, "fitted", 0.2, 20.0,
    ),
    "store_ns": Coefficient(
        "ns", "storing a vector of the output",
        0.6, DEFAULT, "fitted", 0.1, 10.0,
    ),
    "reload_ns": Coefficient(
        "ns", "loading one that a later call adds to",
        0.3, DEFAULT, "fitted", 0.1, 10.0,
    ),
    "prefetch_ns": Coefficient(
        "ns", "an instruction that prefetches a line of what ahead(B) asks for",
        0.1, DEFAULT, "fitted", 0.02, 5.0,
    ),
    "page_ns": Coefficient(
        "ns", "a page that the first translation buffer lacks",
        0.7, DEFAULT, "fitted", 0.2, 50.0,
    ),
    "seek_ns": Coefficient(
        "ns", "the first line of a run of lines that comes from beyond L2",
        3.0, DEFAULT, "fitted", 0.5, 100.0,
    ),
    "copy_ns": Coefficient("ns", "packing a line of 64 bytes", 1.1, DEFAULT, "fitted", 0.4, 50.0),
    "gather_ns": Coefficient(
        "ns", "packing one that is not contiguous",
        5.0, DEFAULT, "fitted", 0.8, 200.0,
    ),
}  # fmt: skip
_SHOWN: Final = {
    "hidden_panels": Coefficient(
        "share", "of panels out of L2 that shows although compute could hide it",
        0.09, DEFAULT, "fitted", 0.0, 1.0,
    ),
    "hidden_l2": Coefficient(
        "share", "of L2 reads of A that shows although compute could hide it",
        0.09, DEFAULT, "fitted", 0.0, 1.0,
    ),
    "hidden_l3": Coefficient(
        "share", "of L3 reads that shows although compute could hide it",
        0.02, DEFAULT, "fitted", 0.0, 1.0,
    ),
    "hidden_memory": Coefficient(
        "share", "of memory reads that shows although compute could hide it",
        0.2, DEFAULT, "fitted", 0.0, 1.0,
    ),
    "first_reads": Coefficient(
        "share", "of panels' first reads out of L3, unforeseen, that shows under compute",
        0.5, ZEN5, "fitted", 0.0, 1.0,
    ),
    "first_reads_memory": Coefficient(
        "share", "of panels' reads out of memory, unforeseen, that shows under compute",
        0.9, ZEN5,
    ),
    "late_prefetches": Coefficient(
        "share", "of reads from memory by ahead(B), by bandwidth and room they need, that shows",
        1.0, ZEN5,
    ),
    "first_rows": Coefficient(
        "share", "of A's first reads by one in several calls which shows under compute",
        0.5, ZEN5, "fitted", 0.0, 1.0,
    ),
    "far_reload_ns": Coefficient(
        "ns", "loading a line of C from beyond L2 that a call adds to",
        4.0, ZEN5, "fitted", 0.0, 50.0,
    ),
    "beside_l3": Coefficient(
        "share", "of L2 reads that shows although slower levels take longer",
        0.3, DEFAULT, "fitted", 0.0, 1.0,
    ),
}  # fmt: skip
_PROBED: Final = {
    "jump_ns": Coefficient(
        "ns", "a panel from memory that does not lie behind the one before",
        500.0, AVX2, "probed", 0.0, 100000.0,
    ),
    "fork_us": Coefficient("us", "starting a parallel region", 3.0, DEFAULT, "probed", 0.0, 1000.0),
}  # fmt: skip
_STORES: Final = {
    "scattered_store": Coefficient(
        "stores", "a vector stored through a transpose, in contiguous stores",
        2.5, LOST,
    ),
    "sparse_store": Coefficient(
        "stores", "a vector of which C lacks some lanes, in whole stores",
        3.0, LOST,
    ),
}  # fmt: skip
_CACHES: Final = {
    "usable_cache": Coefficient(
        "share", "of a cache that the counted data fill: seven ways in eight", 7 / 8, LOST
    ),
    "streamed_result": Coefficient(
        "share", "of the last cache beyond which stores may go past the caches", 0.5, LOST
    ),
    "safe_bound": Coefficient(
        "share", "of a lower bound: a core may clock higher than when it was measured", 0.9, LOST
    ),
}
# How far the model errs: what it calls slower by more is not tried.
_ERRORS: Final = {
    "slower_way": Coefficient(
        "times", "the least bound of all ways to multiply, up to which a way is tried", 1.3, LOST
    ),
    "slower_kind": Coefficient(
        "times", "the least time of all schedules, up to which another kind is tried", 1.4, LOST
    ),
    "slower_role": Coefficient(
        "times",
        "the least time, up to which other kernels or swapped factors are tried: "
        "the model errs most where they pack or store otherwise",
        2.0, LOST,
    ),
    "slower_inside": Coefficient(
        "times",
        "the least time of a layer alone, up to which a schedule may win in a network",
        1.15, LOST,
    ),
    "property_error": Coefficient(
        "log", "standard deviation of the model's error that one property of schedules explains",
        0.1, LOST,
    ),
    "common_error": Coefficient(
        "log", "standard deviation of the error that all schedules of a problem share", 0.5, LOST
    ),
    "doubtful_time": Coefficient(
        "times",
        "the predicted seconds, beyond which on all schedules of a kind other work is suspected",
        1.5, LOST,
    ),
    "usual_rate": Coefficient(
        "share", "of a loop's rate at the calibration, when the clock may have been higher",
        0.85, LOST,
    ),
}  # fmt: skip
_MISSES: Final = {
    "short_run_ns": Coefficient(
        "ns", "an L1 miss of a strided read: a run of at most a line of x",
        1.2, ZEN,
    ),
    "l1_conflict": Coefficient(
        "share",
        "of a line's time from L2 that shows, for each share by which rows "
        "exceed the ways of an L1 set",
        0.4, ZEN4,
    ),
}  # fmt: skip
_L1: Final = {
    "usable_ways": Coefficient(
        "share",
        "of a cache set that is filled before loads, stores and prefetches "
        "evict each other",
        0.5, AVX2,
    ),
    "usable_ways_rows": Coefficient(
        "share", "of an L1 set that rows of A fill before they evict each other",
        0.75, AVX2,
    ),
    "stray_seek": Coefficient(
        "seeks", "a line whose neighbours are read later, in first lines of runs",
        0.2, LOST,
    ),
    "translations": Coefficient(
        "pages", "that the first translation buffer keeps: it has 64 to 96 entries",
        56.0, SHEETS,
    ),
}  # fmt: skip
_COPIES: Final = {
    "skipped_line": Coefficient(
        "lines", "a line from beyond L2 between which others are skipped, in lines of a stream",
        2.0, ZEN,
    ),
    "copy_kept": Coefficient(
        "share", "of a cache that a fresh copy may fill, of the last one beside its problem",
        0.5, LOST,
    ),
}  # fmt: skip
_PLAIN: Final = {
    "walk_ns": Coefficient(
        "ns", "finding a page of a plain B that the first translation buffer lacks",
        5.0, LOST,
    ),
    "pages_found": Coefficient("pages", "of a plain B that are found at once", 64.0, LOST),
    "streams": Coefficient(
        "rows", "read side by side from end to end that a CPU prefetches",
        8.0, LOST,
    ),
    "not_ahead_ns": Coefficient(
        "ns", "longer that memory takes for a line that nothing prefetches",
        2.0, LOST,
    ),
    "first_line": Coefficient(
        "lines", "longer that the first line of a row takes where nothing prefetches",
        0.5, LOST,
    ),
    "short_row": Coefficient(
        "rows", "a short row of a plain B that L2 delivers again, in the time of a long one",
        2.0, LOST,
    ),
    "row_l3_ns": Coefficient(
        "ns", "a row from L3 where rows share so few sets that L2 holds none",
        20.0, LOST,
    ),
    "lane_sum": Coefficient("FMAs", "adding a lane of a vector to the others", 6.0, LOST),
    "row_l2": Coefficient(
        "FMAs", "a vector of a row that L1 lost before the next columns",
        1.6, LOST,
    ),
    "row_loss": Coefficient(
        "share", "of rows that L1 loses, over the share by which they exceed it",
        3.0, LOST,
    ),
}  # fmt: skip
_SPEEDS: Final = {
    "in_flight": Coefficient(
        "FMAs", "under way at a time: two units with a latency of four cycles", 8.0, SHEETS,
        "probed", 1.0, 32.0,
    ),
    "decode_a8": Coefficient(
        "FMAs", "unpacking a step of a vector of such weights beside inputs of 8 bits", 0.25, ZEN4
    ),
    "round_a8": Coefficient("FMAs", "rounding a number of a row to 8 bits by blocks", 0.6, ZEN4),
    "round_a24": Coefficient("FMAs", "rounding a number of a row to three bytes", 1.5, ZEN4),
    "decode": Coefficient("FMAs", "decoding a vector of weights that lie in blocks", 0.7, ZEN4),
    "widen": Coefficient("FMAs", "widening a vector of weights from f16", 0.8, ZEN4),
    "load_slot": Coefficient(
        "FMAs", "in the time of a load of a row or vector, where no kernel was measured", 0.55, LOST
    ),
    "speed_f16": Coefficient(
        "f32 FMAs", "a multiplication of f16, which converts every broadcast of A",
        0.6, INTEL,
    ),
    "speed_bf16": Coefficient(
        "f32 FMAs", "a multiplication of bf16 by dot products; Intel's AVX512-BF16 reaches 0.5",
        2.0, ZEN4,
    ),
    "speed_i8": Coefficient("f32 FMAs", "a multiplication of int8 by dot products", 4.0, ZEN4),
    "speed_a8": Coefficient(
        "f32 FMAs", "a multiplication of f32 rounded to 8 bits by weights in blocks", 4.0, ZEN4
    ),
    "speed_a24": Coefficient(
        "f32 FMAs", "a multiplication of f32 as three bytes by weights in blocks", 1.33, ZEN4
    ),
    "speed_i16": Coefficient("f32 FMAs", "a multiplication of pairs of int16", 1.0, ZEN4),
    "speed_tiles": Coefficient(
        "multiplications", "of tile registers in the time of one of vectors: a bf16 peak of 3200 "
        "beside 2 * 213 GFLOP/s",
        7.5, AMX,
    ),
}  # fmt: skip
# Of devices whose groups of work-items share a memory.
_DEVICES: Final = {
    "launch_us": Coefficient(
        "us", "from the end of a kernel of a device to the start of the next one that needs it",
        1.0, "no machine: assumed", "probed", 0.0, 100000.0,
    ),
    "speed_words": Coefficient(
        "f32 FMAs", "a product of words of four 8-bit numbers by a work-item of a GPU", 1.0,
        "NVIDIA's Turing and A100 white papers: as many lanes of integers as of f32",
        "probed", 0.0, 64.0,
    ),
    "speed_matrices": Coefficient(
        "f32 FMAs", "a multiplication in matrices of 16-bit numbers by a warp of a GPU", 8.0,
        "NVIDIA's T4 data sheet: 65 TFLOP/s beside 8.1",
        "probed", 0.0, 64.0,
    ),
}  # fmt: skip
_WINOGRAD: Final = {
    "winograd_held": Coefficient(
        "share", "of a cache that blocks of tiles may fill and stay there",
        0.75, LOST,
    ),
    "winograd_scattered": Coefficient("streams", "reading lines of x tile by tile", 2.0, LOST),
    "winograd_loads": Coefficient(
        "loads", "a FMA, above which loads wait for lines that arrive",
        0.97, LOST,
    ),
    "winograd_again": Coefficient(
        "share", "of a panel's second read, from L2, that shows",
        0.75, LOST,
    ),
}  # fmt: skip
_BILINEAR: Final = {
    "bilinear_l3": Coefficient(
        "reads", "of L3 in the time in which a byte of a sum or product is written and read there",
        8.0, "Zen 4, products of 512 to 2048 beside a busy core",
    ),
    "bilinear_packed": Coefficient(
        "reads", "of L2 in the time in which a byte of a sum of B is formed and packed by a call",
        18.0, "Zen 4, products of 512 to 2048 beside a busy core",
    ),
    "bilinear_memory": Coefficient(
        "reads", "of memory in the time in which such a byte is written and read there",
        2.5, "Zen 4, products of 2048 and 4096 beside a busy core",
    ),
}  # fmt: skip
_NETWORKS: Final = {
    "barrier_us": Coefficient("us", "waiting at a barrier that all threads reach", 1.0, LOST),
    "function_ns": Coefficient("ns", "a function of one element, in vectors", 0.2, LOST),
    "scalar_ns": Coefficient("ns", "an element of a stage that does not run in vectors", 1.0, LOST),
    "team_us": Coefficient(
        "us", "that a team of threads must save: its threads may sleep",
        5.0, LOST,
    ),
    "foreign_ns": Coefficient(
        "ns", "a line of x or of a result that another thread has in its caches", 30.0, ZEN4
    ),
    "spin_us": Coefficient("us", "for which a waiting thread spins before it sleeps", 50.0, LOST),
    "wake_us": Coefficient("us", "until a thread that sleeps runs", 50.0, LOST),
    "row_fusion_cache": Coefficient(
        "share", "of L2 that weights, or the rows between two stages of a row fusion, may fill",
        0.5, LOST,
    ),
    "row_fusion_risk": Coefficient(
        "share", "of the time of a row fusion's layers that its loops may cost", 0.03, LOST
    ),
    "balanced_stack": Coefficient(
        "share", "of the time in which all threads multiply, if they share a stack of products",
        0.9, LOST,
    ),
}  # fmt: skip
# What decides which schedules and stages there are is the same on every machine.
_SHARED: Final = (
    {
        "ahead_rows": Coefficient(
            "rows", "of a call, below which prefetches of B add to what every line waits", 6, INTEL
        ),
        "ahead_cache": Coefficient("share", "of L2 for a panel of B and its next", 3 / 4, INTEL),
        "ahead_steps": Coefficient(
            "steps", "from a prefetch of x to its use: L3 answers in 200 cycles", 8, INTEL
        ),
        "long_depth": Coefficient(
            "steps",
            "of a run of few loads a product from which on prefetches of x pay: "
            "it reads more lines than L1 has",
            128, INTEL,
        ),
        "stencil_loads": Coefficient(
            "loads", "of x, most across a line, in the time of a multiplication", 1.75, LOST
        ),
        "least_depth": Coefficient(
            "steps", "of a reduction below which a call costs more than it computes", 32, LOST
        ),
        "least_summed": Coefficient(
            "products", "in a sum of which threads may have parts each", 512, LOST
        ),
        "worth_cutting": Coefficient(
            "share", "of multiplications inside the image above which no copy is cut", 0.94, LOST
        ),
        "least_run": Coefficient(
            "steps", "of the reduction below one tap, below which no copy is cut", 32, LOST
        ),
        "plain_rows": Coefficient(
            "rows", "of a product that reads weights where they lie as fast as packed", 4, LOST
        ),
        "branch_elements": Coefficient(
            "elements", "computed in vain rather than to branch, which all threads wait for",
            4096, LOST,
        ),
        "sum_terms": Coefficient(
            "terms", "of all sums together from which on threads are of use", 1 << 15, LOST
        ),
        "tile_loads": Coefficient(
            "FMAs", "a load of a step, below which loads make a register tile slower", 3, LOST
        ),
        "tile_loads_power": Coefficient(
            "power", "of the share of these by which a register tile is slower", 0.1, LOST
        ),
        "fitting_steps": Coefficient(
            "times", "as many steps on tile registers, up to which they rather divide every run",
            1.25, LOST,
        ),
        "streamed_sum": Coefficient(
            "bytes", "read by a sum from which on they come from beyond L2", 1 << 19, LOST
        ),
        "large_table": Coefficient(
            "bytes", "of a table whose rows L2 may not hold beside all else", 1 << 18, LOST
        ),
        "table_ahead": Coefficient(
            "bytes", "of a table's rows between what is asked for and what is read", 4096, LOST
        ),
        "row_lines": Coefficient(
            "lines", "of a row, 1 KiB from any place, before the hardware foresees the others",
            17, LOST,
        ),
    }
)  # fmt: skip
SHARED: Final[Mapping[str, Coefficient]] = MappingProxyType(
    {
        name: replace(row, reason="code must not hang on a calibration")
        for name, row in _SHARED.items()
    }
)
# Standard errors of priors, found by experiments/priors.py.
_ERRORS_OF_PRIORS: Final[Mapping[str, float]] = MappingProxyType(
    {
        "call_ns": 0.22,
        "run_ns": 0.66,
        "store_ns": 0.43,
        "reload_ns": 0.34,
        "prefetch_ns": 0.08,
        "page_ns": 0.67,
        "seek_ns": 2.5,
        "copy_ns": 0.88,
        "gather_ns": 2.9,
        "hidden_panels": 0.074,
        "hidden_l2": 0.1,
        "hidden_l3": 0.029,
        "hidden_memory": 0.21,
        "first_reads": 0.55,
        "first_reads_memory": 0.4,
        "first_rows": 0.37,
        "far_reload_ns": 3.1,
        "beside_l3": 0.35,
        "jump_ns": 350,
        "fork_us": 2.5,
        "usable_cache": 0.12,
        "usable_ways": 0.37,
        "usable_ways_rows": 0.2,
        "translations": 56,
        "l1_conflict": 0.16,
        "in_flight": 2.4,
    }
)
_WORSE: Final = "fits to the kept samples choose worse with it"
_NONLINEAR: Final = "fits are linear, and predictions are not linear in it"
# Rows, and why those without a standard error were fitted to no measurement.
_GROUPS: Final = (
    (_CALLS, ""), (_SHOWN, _WORSE), (_PROBED, ""), (_STORES, _NONLINEAR), (_CACHES, _NONLINEAR),
    (_L1, _NONLINEAR), (_MISSES, _WORSE), (_COPIES, _NONLINEAR),
    (_ERRORS, "nothing that it leaves out is timed"),
    (_PLAIN, "too few kept samples read a B where it lies"),
    (_SPEEDS, "measured kernels take its place"),
    (_DEVICES, "no device with groups was measured"),
    (_WINOGRAD, "no kept sample runs Winograd's algorithm"),
    (_BILINEAR, "no kept sample runs a bilinear algorithm"),
    (_NETWORKS, "calibrations time no networks"),
)  # fmt: skip
TABLE: Final[Mapping[str, Coefficient]] = MappingProxyType(
    {
        name: replace(row, error=_ERRORS_OF_PRIORS.get(name), reason=reason)
        for rows, reason in _GROUPS
        for name, row in rows.items()
    }
)
DEVICES: Final = tuple(_DEVICES)  # names of the coefficients of devices with groups
# Rates of a machine that was never measured.
ASSUMED: Final[Mapping[str, Coefficient]] = MappingProxyType(
    {
        "lane_peak": Coefficient(
            "GFLOP/s", "FMA peak of one lane: two a cycle at 3 GHz", 12.0, FILES, error=4.2
        ),
        "l2": Coefficient("GB/s", "L2 reads by one core", 90.0, FILES, error=35.0),
        "l3": Coefficient("GB/s", "L3 reads by one core", 25.0, FILES, error=47.0),
        "memory": Coefficient("GB/s", "memory reads by one core", 12.0, FILES, error=18.0),
        "memory_power": Coefficient(
            "power", "of the cores by which all read memory faster than one", 0.5, FILES, error=0.26
        ),
    }
)
FITTED: Final = tuple(name for name, row in TABLE.items() if row.source == "fitted")
PRIORS: Final[Mapping[str, float]] = MappingProxyType(
    {name: row.prior for name, row in TABLE.items()}
)


def prior_of(name: str) -> float:
    """Return a coefficient's prior, with which code decides alike on every machine."""
    return (SHARED.get(name) or TABLE[name]).prior
