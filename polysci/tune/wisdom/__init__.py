"""Measured schedules kept across runs: a SQLite file of this host's records and others' seeds."""

import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import astuple, dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from polysci.border.arguments import check_path, check_type, describe
from polysci.errors import WisdomError
from polysci.runtime.build.folder import cache_dir
from polysci.runtime.measurement import LEAST_SPEED, MOST_DROPPED
from polysci.tune.wisdom import exchange, store
from polysci.tune.wisdom.record import KEY, LEVELS, TRIAL, Record, canonical_features

__all__ = ["LEVELS", "TRIAL", "Record", "Repair", "Wisdom", "canonical_features"]

_NEWER: Final = f"{store.UPSERT} WHERE excluded.timestamp > records.timestamp"
_DISTURBED: Final = "(dropped > ? OR speed < ?)"  # as ``is_disturbed`` has it
_FORGET_DISTURBED: Final = (
    "DELETE FROM records WHERE problem = ? AND threads = ? AND features = ? AND host = ? AND "
    + _DISTURBED
)


@dataclass(frozen=True, slots=True)
class Repair:
    """The outcome of ``Wisdom.repair``: the moved damaged file (None.

    It was sound), and records.
    """

    aside: Path | None
    kept: int


class Wisdom:
    """The record file at ``path`` (default: ``wisdom.sqlite`` in the cache directory).

    The first ``record`` creates it; reading a file that does not exist finds nothing. Times of
    another host are not comparable: ``best`` answers from this host's records, and the others are
    ``seeds`` to measure again. Threads, forks and processes may share the file. Every method
    raises ``WisdomError`` naming file and remedy when the file cannot be used.
    """

    __slots__ = ("path",)

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self.path = cache_dir() / "wisdom.sqlite" if path is None else check_path("path", path)

    def __repr__(self) -> str:
        return f"Wisdom({str(self.path)!r})"

    def record(
        self,
        problem_key: str,
        threads: int,
        features: str | Iterable[str],
        level: str,
        schedule: str,
        seconds_median: float,
        *,
        host: str,
        gflops: float = 0.0,
        isa: str = "",
        compiler: str = "",
        dropped: float = 0.0,
        spread: float = 0.0,
        speed: float = 1.0,
    ) -> Record:
        """Store one measurement; the same schedule measured again at this level replaces it.

        An undisturbed one also replaces the disturbed ones of the same problem.
        """
        what = (problem_key, threads, canonical_features(features), host, level, schedule)
        quality = dropped, spread, speed
        record = self._new(what, seconds_median, gflops, isa, compiler, quality)
        with store.open_to_write(self.path) as connection:
            if not record.disturbed:
                connection.execute(_FORGET_DISTURBED, (*what[:4], MOST_DROPPED, LEAST_SPEED))
            connection.execute(store.UPSERT, astuple(record))
        return record

    def record_trials(
        self,
        problem_key: str,
        threads: int,
        features: str | Iterable[str],
        seconds: Mapping[str, float],
        *,
        host: str,
        flops: float = 0.0,
        isa: str = "",
        compiler: str = "",
    ) -> int:
        """Store the times of schedules that a search tried and did not choose; returns how many.

        ``seconds`` is keyed by schedule text. All are stored in one transaction. ``measurements``
        returns them for training; ``best`` and ``seeds`` ignore them.
        """
        check_type("seconds", seconds, Mapping)
        for time in seconds.values():
            check_type("seconds", time, int, float)
        check_type("flops", flops, int, float)
        if not 0 <= flops < 1e30:
            raise ValueError(f"flops: expected a count of operations, got {describe(flops)}")
        canonical = canonical_features(features)
        trials = [
            self._new(
                (problem_key, threads, canonical, host, TRIAL, schedule),
                time, flops / time / 1e9 if 0 < time < 1e30 else 0.0, isa, compiler,
            )
            for schedule, time in seconds.items()
        ]  # fmt: skip
        if trials:
            with store.open_to_write(self.path) as connection:
                connection.executemany(store.UPSERT, map(astuple, trials))
        return len(trials)

    def _new(
        self,
        what: tuple[str, int, str, str, str, str],
        seconds: float,
        gflops: float,
        isa: str,
        compiler: str,
        quality: tuple[float, ...] = (),
    ) -> Record:
        """A record of now; ``what`` has the values of KEY. Raises ``WisdomError``."""
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        try:
            return Record(*what, seconds, gflops, isa, compiler, _version(), now, *quality)
        except ValueError as error:
            raise WisdomError(f"{self.path}: nothing was recorded: {error}") from None

    def best(
        self,
        problem_key: str,
        threads: int,
        features: str | Iterable[str],
        *,
        host: str,
        level: str = "estimate",
    ) -> Record | None:
        """The fastest record of this host at ``level`` or a more thorough one, or None.

        Trials are ignored; disturbed ones count only where there is no other.
        """
        _check_key(problem=problem_key, threads=threads, host=host, level=level)
        if level not in LEVELS:
            raise ValueError(f"level: expected one of {', '.join(LEVELS)}, got {describe(level)}")
        levels = [name for name in LEVELS[LEVELS.index(level) :] if name != TRIAL]
        records = store.rows(
            self.path,
            "WHERE problem = ? AND threads = ? AND features = ? AND host = ? "
            f"AND level IN ({', '.join('?' * len(levels))}) ORDER BY seconds, schedule",
            (problem_key, threads, canonical_features(features), host, *levels),
        )
        return min(records, key=lambda record: record.disturbed, default=None)

    def winners(
        self, problem_keys: Iterable[str], threads: Iterable[int],
        features: str | Iterable[str], *, host: str,
    ) -> tuple[Record, ...]:  # fmt: skip
        """Return all records of each problem that ``best`` chooses from, in its order."""
        keys, counts = sorted({*problem_keys}), sorted({*threads})
        marks = [", ".join("?" * len(values)) for values in (keys, counts)]
        return store.rows(
            self.path,
            f"WHERE problem IN ({marks[0]}) AND threads IN ({marks[1]}) AND features = ? "
            "AND host = ? AND level <> ? ORDER BY problem, threads, seconds, schedule",
            (*keys, *counts, canonical_features(features), host, TRIAL),
        )

    def seeds(
        self, problem_key: str, threads: int, features: str | Iterable[str], *, host: str
    ) -> tuple[Record, ...]:
        """Schedules that did well elsewhere (other host, CPU or thread count), to measure again.

        One record a schedule; the same number of threads first, then the fastest.
        """
        _check_key(problem=problem_key, threads=threads, host=host)
        records = store.rows(
            self.path,
            "WHERE problem = ? AND level <> ? AND NOT (threads = ? AND features = ? AND host = ?) "
            "ORDER BY threads <> ?, seconds, schedule, host",
            (problem_key, TRIAL, threads, canonical_features(features), host, threads),
        )
        first: dict[str, Record] = {}
        for record in records:
            first.setdefault(record.schedule, record)
        return tuple(first.values())

    def measurements(
        self,
        host: str,
        *,
        threads: int | None = None,
        problem_key: str | None = None,
        level: str | None = None,
    ) -> tuple[Record, ...]:
        """All records of a host, trials included, sorted as by ``list``; with a ``level`` its own.

        One record a schedule and problem: an undisturbed one where there is one, of the most
        thorough level.
        """
        criteria = {"host": host, "threads": threads, "problem": problem_key, "level": level}
        _check_key(**criteria)
        values = {name: value for name, value in criteria.items() if value is not None}
        where = f"WHERE {' AND '.join(f'{name} = ?' for name in values)}"
        order = f"ORDER BY {', '.join(KEY)}"
        records = store.rows(self.path, f"{where} {order}", tuple(values.values()))
        thorough: dict[tuple[str, int, str, str], Record] = {}
        for record in sorted(records, key=lambda r: (not r.disturbed, LEVELS.index(r.level))):
            key = (record.problem, record.threads, record.features, record.schedule)
            thorough[key] = record
        return tuple(record for what, record in sorted(thorough.items()))

    def starting_with(self, prefix: str) -> tuple[Record, ...]:
        """Records whose problem begins with ``prefix``, the fastest first; trials are none."""
        check_type("prefix", prefix, str)
        where = "WHERE substr(problem, 1, ?) = ? AND level <> ? ORDER BY seconds, schedule, host"
        return store.rows(self.path, where, (len(prefix), prefix, TRIAL))

    def list(self) -> tuple[Record, ...]:
        """All records, sorted by problem, threads, features, host, level and schedule."""
        return store.rows(self.path, f"ORDER BY {', '.join(KEY)}")

    def best_k(self, count: int) -> tuple[Record, ...]:
        """The fastest schedules of each problem, thread count, CPU and host, trials included.

        So many of each, fastest first and one record a schedule; undisturbed records go first.
        """
        check_type("count", count, int)
        if count < 1:
            raise ValueError(f"count: expected a whole number above 0, got {describe(count)}")
        groups: dict[tuple[object, ...], dict[str, Record]] = {}
        for record in sorted(self.list(), key=lambda r: (r.disturbed, r.seconds)):
            what = (record.problem, record.threads, record.features, record.host)
            groups.setdefault(what, {}).setdefault(record.schedule, record)
        return tuple(
            record for what in sorted(groups) for record in [*groups[what].values()][:count]
        )

    def forget(
        self,
        problem_key: str | None = None,
        *,
        threads: int | None = None,
        host: str | None = None,
        level: str | None = None,
        schedule: str | None = None,
        disturbed: bool = False,
    ) -> int:
        """Delete the records that match all criteria (at least one); returns how many.

        ``disturbed``: only those that were measured on a machine that was not quiet.
        """
        names = ("problem", "threads", "host", "level", "schedule")
        columns = zip(names, (problem_key, threads, host, level, schedule), strict=True)
        criteria = {name: value for name, value in columns if value is not None}
        _check_key(**criteria)
        check_type("disturbed", disturbed, bool)
        if not criteria and not disturbed:
            raise ValueError("forget: expected at least one criterion, got none")
        if not self.list():
            return 0
        where = [f"{name} = ?" for name in criteria] + [_DISTURBED] * disturbed
        values = (*criteria.values(), *(MOST_DROPPED, LEAST_SPEED) * disturbed)
        with store.open_to_write(self.path) as connection:
            query = f"DELETE FROM records WHERE {' AND '.join(where)}"
            return connection.execute(query, values).rowcount

    def forget_all(self) -> int:
        """Delete every record; returns how many."""
        if not self.list():
            return 0
        with store.open_to_write(self.path) as connection:
            return connection.execute("DELETE FROM records").rowcount

    def export(self, path: str | os.PathLike[str]) -> int:
        """Write all records as JSON (same records, same bytes); returns how many."""
        out, records = check_path("path", path), self.list()
        exchange.write(out, exchange.dump(records))
        return len(records)

    def import_(self, path: str | os.PathLike[str], validate: Callable[[Record], object]) -> int:
        """Add the records of an exported file; returns how many were new or newer.

        The whole file is checked before anything is written: syntax, types, ranges, and
        ``validate(record)``, which raises ``PolysciError`` or ``ValueError`` for a problem or a
        schedule that does not parse. Raises ``WisdomError`` naming the file and the record.
        """
        return self.merge(exchange.read(check_path("path", path), validate))

    def merge(self, records: Iterable[Record]) -> int:
        """Add records; returns how many were new or newer."""
        with store.open_to_write(self.path) as connection:
            before = connection.total_changes
            connection.executemany(_NEWER, map(astuple, records))
            return connection.total_changes - before

    def repair(self) -> Repair:
        """Move a damaged file aside and start a new one with every record that can be read.

        Runs only on request. A sound file stays unchanged, a database of another program or of a
        newer polysci is refused, and the damaged bytes are kept beside the new file.
        """
        try:
            store.verify(self.path)
            return Repair(None, len(self.list()))
        except store.DamagedError:
            aside = self._move_aside()
        kept = store.salvage(aside)
        with store.open_to_write(self.path) as connection:
            connection.executemany(store.UPSERT, map(astuple, kept))
        return Repair(aside, len(kept))

    def _move_aside(self) -> Path:
        number = 1
        while (aside := self.path.with_name(f"{self.path.name}.damaged-{number}")).exists():
            number += 1
        try:
            self.path.rename(aside)
            with suppress(FileNotFoundError):
                Path(f"{self.path}-journal").rename(f"{aside}-journal")
        except OSError as error:
            raise WisdomError(f"{self.path}: cannot be moved aside ({error.strerror})") from error
        return aside


def _check_key(**values: Any) -> None:
    """Raise TypeError or ValueError for a value that no record can have; None is none."""
    for name, value in values.items():
        if value is None:
            continue
        check_type(name, value, int if name == "threads" else str)
        if not (0 < value < 1 << 31 if name == "threads" else value.isprintable()):
            raise ValueError(f"{name}: no record has {describe(value)}")


def _version() -> str:
    try:
        return metadata.version("polysci")
    except metadata.PackageNotFoundError:
        return ""
