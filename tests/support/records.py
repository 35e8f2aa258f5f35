"""Records for the tests of the wisdom file."""

from polysci.tune.wisdom import Record, Wisdom

HERE = "0123456789ab"
FEATURES = ("fma", "avx2")


def put(
    wisdom: Wisdom, problem: str = "mb1ic64", *, schedule: str = "k:64 p > kernel",
    seconds: float = 1e-3, host: str = HERE, threads: int = 1, level: str = "measure",
    dropped: float = 0.0,
) -> Record:  # fmt: skip
    return wisdom.record(
        problem, threads, FEATURES, level, schedule, seconds, host=host, gflops=9.5, isa="avx2",
        dropped=dropped,
    )  # fmt: skip


SAMPLE: dict[str, object] = {
    "problem": "mb1ic64", "threads": 1, "features": "avx2 fma", "host": HERE, "level": "measure",
    "schedule": "k:64 p > kernel", "seconds": 1e-3, "gflops": 9.5, "isa": "avx2", "compiler": "cc",
    "version": "0.1.0", "timestamp": "2025-01-31T12:00:00Z",
}  # fmt: skip
