"""The SQLite file: opening, schema, error messages, salvage. One connection a call."""

import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Final

from polysci.errors import WisdomError
from polysci.tune.wisdom.record import COLUMNS, KEY, QUALITY, Record

SCHEMA: Final = 2
_FIRST_SCHEMA: Final = 1  # without the columns of QUALITY
_APPLICATION_ID: Final = 0x706F6C79  # "poly": tells our files from other SQLite databases
_BUSY_SECONDS: Final = 30.0

# A rollback journal rather than WAL: WAL needs shared memory, which network home directories lack,
# and our transactions are a few rows, so concurrent writers only queue for milliseconds.
_TABLE: Final = f"""CREATE TABLE IF NOT EXISTS records (
  problem TEXT NOT NULL, threads INTEGER NOT NULL, features TEXT NOT NULL, host TEXT NOT NULL,
  level TEXT NOT NULL, schedule TEXT NOT NULL, seconds REAL NOT NULL, gflops REAL NOT NULL,
  isa TEXT NOT NULL, compiler TEXT NOT NULL, version TEXT NOT NULL, timestamp TEXT NOT NULL,
  {", ".join(f"{name} REAL NOT NULL DEFAULT {value}" for name, value in QUALITY.items())},
  PRIMARY KEY ({", ".join(KEY)})) WITHOUT ROWID"""
_SELECT: Final = {
    SCHEMA: f"SELECT {', '.join(COLUMNS)} FROM records",
    _FIRST_SCHEMA: "SELECT "
    + ", ".join(f"{QUALITY[name]} AS {name}" if name in QUALITY else name for name in COLUMNS)
    + " FROM records",
}
UPSERT: Final = (
    f"INSERT INTO records ({', '.join(COLUMNS)}) VALUES ({', '.join('?' * len(COLUMNS))}) "
    f"ON CONFLICT ({', '.join(KEY)}) DO UPDATE SET "
    + ", ".join(f"{name} = excluded.{name}" for name in COLUMNS[len(KEY) :])
)

_REPAIR: Final = (
    "nothing was deleted; 'polysci wisdom repair', or polysci.Wisdom({path!r}).repair(), moves the "
    "file aside and keeps every record that can still be read"
)
_ACCESS: Final = "check owner and mode of the file and its directory, or set POLYSCI_CACHE_DIR"
_SPACE: Final = "free some space or set POLYSCI_CACHE_DIR; the records already there are intact"
_OTHER: Final = "give another file, or set POLYSCI_CACHE_DIR"
_FAULTS: Final = {
    sqlite3.SQLITE_READONLY: ("is read-only", _ACCESS),
    sqlite3.SQLITE_CANTOPEN: ("cannot be opened", _ACCESS),
    sqlite3.SQLITE_PERM: ("cannot be opened", _ACCESS),
    sqlite3.SQLITE_FULL: ("cannot grow", _SPACE),
    sqlite3.SQLITE_IOERR: ("cannot be read or written", _SPACE),
    sqlite3.SQLITE_BUSY: (
        f"was locked by another process for {_BUSY_SECONDS:.0f} s",
        "try again, or end the process that holds it",
    ),
}
# SQLITE_ERROR: our statements are constant, so the table is not the one that polysci created.
_DAMAGE: Final = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR)
# SQLite quotes the file in its messages; where that is not UTF-8, Python raises the second one.
_ERRORS: Final = (sqlite3.Error, UnicodeDecodeError)
_RESTORE: Final = "UPDATE sqlite_master SET type = 'table', name = ?, tbl_name = ?, sql = ?"


class DamagedError(WisdomError):
    """The file's content is not what polysci wrote; ``Wisdom.repair`` helps."""

    def __init__(self, path: Path, detail: str) -> None:
        super().__init__(f"{path}: damaged ({detail}); {_REPAIR.format(path=str(path))}")


@contextmanager
def open_to_read(path: Path) -> Iterator[sqlite3.Connection | None]:
    """A connection to read with, or None where there is no file or nothing in it yet.

    SQLite may have to roll back what a killed writer left, so it may write where it can.
    """
    with _translate_errors(path):
        if not _exists(path):
            yield None
            return
        uri = f"{path.absolute().as_uri()}?mode=rw"
        with closing(sqlite3.connect(uri, uri=True, timeout=_BUSY_SECONDS)) as connection:
            yield connection if _has_records(path, connection) else None


@contextmanager
def open_to_write(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection inside one transaction, which an exception rolls back; creates the file."""
    with _translate_errors(path):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        connection = sqlite3.connect(path, timeout=_BUSY_SECONDS, isolation_level=None)
        with closing(connection):
            connection.execute("BEGIN IMMEDIATE")
            if not _has_records(path, connection):
                connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
                connection.execute(f"PRAGMA user_version = {SCHEMA}")
                connection.execute(_TABLE)
            elif _schema(connection) == _FIRST_SCHEMA:
                for name, value in QUALITY.items():
                    connection.execute(
                        f"ALTER TABLE records ADD COLUMN {name} REAL NOT NULL DEFAULT {value}"
                    )
                connection.execute(f"PRAGMA user_version = {SCHEMA}")
            try:
                yield connection
            except BaseException:
                with suppress(sqlite3.Error):  # SQLite may have rolled back by itself
                    connection.execute("ROLLBACK")
                raise
            connection.execute("COMMIT")


def rows(path: Path, clause: str = "", values: tuple[object, ...] = ()) -> tuple[Record, ...]:
    """The records that an SQL clause selects. Raises ``WisdomError``."""
    with open_to_read(path) as connection:
        query = f"{_SELECT[_schema(connection)]} {clause}" if connection else ""
        selected = connection.execute(query, values) if connection else []
        try:
            return tuple(Record(*row) for row in selected)
        except ValueError as error:
            raise DamagedError(path, f"a record with {error}") from None


def verify(path: Path) -> None:
    """Raise ``DamagedError`` unless SQLite's own check passes and every record is sound."""
    with open_to_read(path) as connection:
        report = "ok" if connection is None else _first(connection, "PRAGMA integrity_check")
    if report != "ok":
        raise DamagedError(path, f"{report}".splitlines()[0])
    rows(path)


def salvage(path: Path) -> tuple[Record, ...]:
    """Every sound record that can be read, from both ends up to the damage.

    Works on a copy (SQLite may have to roll back a journal first), so the evidence stays as it is.
    What the copy says of its table is replaced first: damage there would hide every record. Rows
    of the first schema have the new columns' defaults then.
    """
    records: dict[Record, None] = {}
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "wisdom.sqlite"
        shutil.copyfile(path, copy)
        with suppress(FileNotFoundError):
            shutil.copyfile(f"{path}-journal", f"{copy}-journal")
        _restore_schema(copy)
        with closing(sqlite3.connect(copy)) as connection:
            for direction in ("", "DESC"):
                order = ", ".join(f"{name} {direction}" for name in KEY)
                query = f"{_SELECT[SCHEMA]} ORDER BY {order}"
                records |= dict.fromkeys(_readable(connection, query))
    return tuple(records)


def _restore_schema(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA writable_schema = ON")
        for _ in range(2):  # the first attempt may fail because it reads what is damaged
            with suppress(*_ERRORS), connection:
                connection.execute(_RESTORE, ("records", "records", _TABLE))


def _readable(connection: sqlite3.Connection, query: str) -> Iterator[Record]:
    with suppress(*_ERRORS):
        for row in connection.execute(query):
            with suppress(ValueError):
                yield Record(*row)


def _has_records(path: Path, connection: sqlite3.Connection) -> bool:
    """Return whether the table is there: not in a new empty file; raises for another program's."""
    if not _first(connection, "SELECT count(*) FROM sqlite_master"):
        return False
    if _first(connection, "PRAGMA application_id") != _APPLICATION_ID:
        raise WisdomError(f"{path}: is a database of another program; {_OTHER}")
    version = _schema(connection)
    if version not in _SELECT:
        raise WisdomError(
            f"{path}: has schema {version}, this polysci reads {_FIRST_SCHEMA} and {SCHEMA}: "
            f"upgrade polysci, or {_OTHER}"
        )
    return True


def _schema(connection: sqlite3.Connection) -> int:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    return int(version)


def _first(connection: sqlite3.Connection, query: str) -> object:
    return connection.execute(query).fetchone()[0]


def _exists(path: Path) -> bool:
    try:
        path.stat()
    except FileNotFoundError:
        return False
    return True


@contextmanager
def _translate_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise WisdomError(f"{path}: cannot be opened ({error.strerror}); {_ACCESS}") from error
    except UnicodeDecodeError as error:
        raise DamagedError(path, "its text is not UTF-8") from error
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the low byte is the class
        if code in _DAMAGE or "UTF-8" in str(error):
            raise DamagedError(path, str(error)) from error
        what, remedy = _FAULTS.get(code, ("cannot be used", _OTHER))
        raise WisdomError(f"{path}: {what} ({error}); {remedy}") from error
