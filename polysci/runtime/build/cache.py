"""C text -> the path of a verified shared object, compiled at most once a machine.

``builds/<key>/`` holds ``source.c`` (``source0.c`` and so on, of several texts), a ``.so`` and
``entry.json``; the key is the SHA-256 of all that decides about the code. An entry is made aside
and renamed into place, so there are no locks to go stale and no half entries; the digest is
verified before every use.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import secrets
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from polysci.border.files import open_stored, read_stored
from polysci.errors import BuildError
from polysci.printers.headers import flags_in
from polysci.runtime.build import eviction, precompiled, process
from polysci.runtime.build.compiler import (
    CANDIDATE_S,
    PROBE_S,
    TIMEOUT_S,
    Compiler,
    CompileTimeoutError,
    assembly,
    compile_shared,
    compile_together,
    default_flags,
    find_compiler,
    lacks_openmp,
    without_openmp,
)
from polysci.runtime.build.folder import cache_dir, instead_of, log
from polysci.runtime.build.process import together

__all__ = [
    "FORMAT",
    "assemble",
    "build",
    "build_many",
    "cache_dir",
    "clear",
    "find",
    "pack",
    "unpack",
]

FORMAT = 1

# What compilers, assemblers and linkers say in LC_ALL=C when the disk is to blame ...
_DISK_FAULTS = (
    "No space left on device",
    "Disk quota exceeded",
    "File too large",
    "File size limit exceeded",
    "Read-only file system",
)
# ... and what may have another reason: then a test of the disk decides.
_DISK_DOUBTS = ("Permission denied", "wrote no usable shared object")
_KEY = re.compile("[0-9a-f]{64}")
_PROBE = "import ctypes, sys; ctypes.CDLL(sys.argv[1])"
_lacking_openmp: set[Compiler] = set()


@dataclass(frozen=True, slots=True)
class _Job:
    """One text with all that decides about its code, and how to go about it."""

    texts: tuple[str, ...]
    flags: tuple[str, ...]
    compiler: Compiler
    timeout: float
    probe: bool
    symbols: tuple[str, ...]

    @property
    def key(self) -> str:
        parts = [f"polysci {FORMAT}", self.compiler.identity, *self.flags, *self.texts]
        hashes = [hashlib.sha256(part.encode()).digest() for part in parts]
        return hashlib.sha256(b"".join(hashes)).hexdigest()


def build(
    text: str | Sequence[str],
    *,
    flags: Sequence[str] | None = None,
    timeout: float | None = None,
    probe: bool = False,
    symbols: Sequence[str] = (),
) -> Path:
    """Return the shared object of a C text, or of several linked, from the cache or compiled now.

    ``flags`` default to ``default_flags()``. A compiler without OpenMP builds without it, an
    unusable cache directory is replaced by a private one; each logs one warning. A path never
    holds other code later. ``probe``: a new binary is loaded in a child process first (30 ms).
    The compiler may run for ``timeout`` seconds, by default CANDIDATE_S for one text and TIMEOUT_S
    for each of several. BuildError: it is absent, rejects the text, hangs or writes something
    unusable, which a library without ``symbols`` is.
    """
    chosen = tuple(default_flags() if flags is None else flags)
    compiler = find_compiler()
    if compiler in _lacking_openmp:
        chosen = without_openmp(chosen)
    texts = (text,) if isinstance(text, str) else tuple(text)
    limit = timeout or (CANDIDATE_S if isinstance(text, str) else TIMEOUT_S)
    job = _Job(texts, chosen, compiler, limit, probe, tuple(symbols))
    root = cache_dir()
    try:
        return _build_in(job, root)
    except CompileTimeoutError:
        raise
    except BuildError:
        if "-fopenmp" not in job.flags or not lacks_openmp(compiler):
            raise
    shutil.rmtree(_failed_folder(job, root), ignore_errors=True)
    _note_no_openmp(compiler)
    return build(text, flags=chosen, timeout=timeout, probe=probe, symbols=symbols)


def assemble(texts: Sequence[str], *, flags: Sequence[str] | None = None) -> list[str]:
    """Return the assembly of C texts under the flags with which ``build`` compiles them.

    Nothing of it is kept but a text that fails. Raises BuildError.
    """
    chosen, compiler = tuple(default_flags() if flags is None else flags), find_compiler()
    if "-fopenmp" in chosen and lacks_openmp(compiler):
        chosen = without_openmp(chosen)
    limit = CANDIDATE_S if len(texts) == 1 else TIMEOUT_S
    jobs = [_Job((text,), chosen, compiler, limit, probe=False, symbols=()) for text in texts]
    return together([partial(_assemble, job) for job in jobs], os.cpu_count() or 1)


def _assemble(job: _Job) -> str:
    """Return the assembly of one text. Raises BuildError, whose command can be repeated."""
    (text,) = job.texts
    with tempfile.TemporaryDirectory(prefix="polysci-") as scratch:
        try:
            folder, limit = Path(scratch), job.timeout
            return assembly(text, job.flags, folder, compiler=job.compiler, timeout=limit)
        except BuildError as error:
            kept = str(_keep_failed(job, cache_dir()))
            raise type(error)(str(error).replace(scratch, kept)) from None


def build_many(
    texts: Sequence[str],
    *,
    flags: Sequence[str] | None = None,
    jobs: int = 2,
    timeout: float | None = None,
    probe: bool = False,
    symbols: Sequence[Sequence[str]] = (),
    meanwhile: Callable[[], None] = lambda: None,
) -> list[Path]:
    """Build every text, ``jobs`` compilers at a time; paths in the texts' order.

    ``symbols``: the functions that each of them must define. ``meanwhile`` is what this process
    does while compilers run. BuildError of the first text that
    fails, after those under way have ended.
    """
    once = dict(zip(texts, symbols or [()] * len(texts), strict=True))
    make = partial(build, flags=flags, timeout=timeout, probe=probe)
    calls = [partial(make, text, symbols=its) for text, its in once.items()]
    paths = dict(zip(once, together(calls, jobs, meanwhile), strict=True))
    return [paths[text] for text in texts]


def pack(path: Path) -> tuple[str, str, bytes]:
    """Key, description and content of the entry of a shared object that ``build`` returned."""
    home = path.parent
    return home.name, read_stored(home / "entry.json").decode(), read_stored(path)


def unpack(key: str, entry: str, code: bytes) -> None:
    """Keep what ``pack`` made in this cache, for a ``build`` whose key is the same.

    Raises BuildError for a description that is not of this code; OSError.
    """
    home = cache_dir() / "builds" / key
    if _find_sound(home):
        return
    members = json.loads(entry)
    if not _KEY.fullmatch(key) or hashlib.sha256(code).hexdigest() != members.get("sha256"):
        raise BuildError(f"cache entry {key:.80}: its digest differs")
    home.parent.mkdir(mode=0o700, exist_ok=True)
    with eviction.scratch_in(home.parent) as scratch:
        name = f"{secrets.token_hex(8)}.so"
        (scratch / name).write_bytes(code)
        (scratch / "entry.json").write_text(json.dumps(members | {"so": name}), encoding="utf-8")
        _move_into_place(scratch, home)
    eviction.note_insertion(home.parent.parent)


def find(key: str) -> Path | None:
    """The shared object of an entry, whose folder is called ``key``; None without a sound one."""
    return _use_sound(cache_dir() / "builds" / key) if _KEY.fullmatch(key) else None


def clear() -> int:
    """Remove every build and precompiled header from the cache; returns how many entries went."""
    gone = eviction.clear(cache_dir())
    precompiled.forget_all()
    return gone


def _build_in(job: _Job, root: Path) -> Path:
    """Build in ``root``, or in a private directory when that turns out to be full or read-only."""
    try:
        return _find_or_build(job, root)
    except OSError as error:
        problem = error.strerror or str(error)
    except BuildError as error:
        problem = _disk_problem(str(error), root)
        if not problem:
            raise
    remedy = "make room there or set POLYSCI_CACHE_DIR"
    try:
        return _find_or_build(job, instead_of(root, f"{problem}; {remedy}"))
    except OSError as error:
        raise BuildError(
            f"nowhere to build: {root}: {problem}; {error.filename}: {error.strerror}; {remedy}"
        ) from error


def _note_no_openmp(compiler: Compiler) -> None:
    if compiler not in _lacking_openmp:
        _lacking_openmp.add(compiler)
        log.warning(
            "%s has no working OpenMP: building for one thread. For clang on Debian or Ubuntu: "
            "apt install libomp-dev; or set CC=gcc.",
            compiler.path,
        )


def _disk_problem(message: str, root: Path) -> str:
    """Return the fault of the disk that explains a failed build; empty if there is none."""
    if fault := next((text for text in _DISK_FAULTS if text in message), ""):
        return fault
    if any(text in message for text in _DISK_DOUBTS):
        try:
            with tempfile.TemporaryFile(dir=root) as file:
                file.write(bytes(1 << 20))
        except OSError as error:
            return error.strerror or str(error)
    return ""


def _find_or_build(job: _Job, root: Path) -> Path:
    home = root / "builds" / job.key
    _sweep_once(root)
    if stored := _use_sound(home):
        return stored
    home.parent.mkdir(mode=0o700, exist_ok=True)
    with eviction.scratch_in(home.parent) as scratch:
        try:
            _make(job, root, scratch)
            path = _move_into_place(scratch, home)
        except BuildError as error:
            kept = str(_keep_failed(job, root))
            raise type(error)(str(error).replace(str(scratch), kept)) from None
    eviction.note_insertion(root)
    return path


@cache
def _sweep_once(root: Path) -> None:
    eviction.sweep(root)


def _use_sound(home: Path) -> Path | None:
    """Return the shared object of a sound entry, which is now the youngest."""
    if stored := _find_sound(home):
        with contextlib.suppress(OSError):
            os.utime(home)
    return stored


def _find_sound(home: Path) -> Path | None:
    """Return the shared object of an entry if it is there and its digest is right."""
    try:
        entry = json.loads(read_stored(home / "entry.json"))
        path = home / Path(entry["so"]).name
        if _digest(path) == entry["sha256"]:
            return path
        fault = "digest differs"
    except FileNotFoundError as error:
        if not home.exists():
            return None
        fault = f"{Path(error.filename).name} is missing"
    except (ValueError, KeyError, TypeError, RecursionError, OSError):
        fault = "entry.json is damaged"
    log.warning("cache entry %s: %s; compiling it again", home, fault)
    return None


def _make(job: _Job, root: Path, scratch: Path) -> None:
    """Fill ``scratch`` with a complete entry.

    The name of the shared object is new each time: dlopen of a known path returns the old code.
    """
    out = scratch / f"{secrets.token_hex(8)}.so"
    _compile(job, root, out)
    if job.probe:
        _probe(out)
    entry = {
        "format": FORMAT,
        "so": out.name,
        "sha256": _digest(out),
        "compiler": job.compiler.identity,
        "flags": job.flags,
    }
    (scratch / "entry.json").write_text(json.dumps(entry, indent=1) + "\n", encoding="utf-8")


def _compile(job: _Job, root: Path, out: Path) -> None:
    timeout = min(job.timeout, PROBE_S)
    headers = [
        precompiled.header_for(
            job.compiler, (*job.flags, *flags_in(text)), root / "headers", timeout=timeout
        )
        if precompiled.reads_header(job.compiler, text)
        else None
        for text in job.texts
    ]
    try:
        _compile_with(job, out, headers)
    except CompileTimeoutError:
        raise
    except BuildError:
        if not any(headers):
            raise
        _compile_with(job, out, [None] * len(headers))  # raises again if it is the text's fault
        for header in filter(None, dict.fromkeys(headers)):
            precompiled.forget(header)


def _compile_with(job: _Job, out: Path, headers: Sequence[Path | None]) -> None:
    compiler, timeout, symbols = job.compiler, job.timeout, job.symbols
    if len(job.texts) > 1:
        compile_together(
            job.texts, job.flags, out, compiler=compiler, headers=headers,
            jobs=os.cpu_count() or 1, timeout=timeout, symbols=symbols,
        )  # fmt: skip
        return
    compile_shared(
        job.texts[0], job.flags, out, compiler=compiler, header=headers[0], timeout=timeout,
        symbols=symbols,
    )  # fmt: skip


def _probe(path: Path) -> None:
    done = process.run([sys.executable, "-ISs", "-c", _PROBE, str(path)], timeout=20)
    if not done.ok:
        said = done.stderr.strip().rpartition("\n")[2]
        raise BuildError(f"{path} cannot be loaded: the process that tried {done}: {said}")


def _move_into_place(scratch: Path, home: Path) -> Path:
    """Rename a complete entry into place; whoever was faster with a sound one keeps the place."""
    for _ in range(8):
        try:
            scratch.rename(home)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
        if stored := _find_sound(home):
            return stored
        with contextlib.suppress(FileNotFoundError):  # damaged: out of the way
            home.rename(home.with_name(f"{eviction.TRASH}{secrets.token_hex(8)}"))
    raise BuildError(f"{home}: entries break as fast as they are made; look at this disk")


def _failed_folder(job: _Job, root: Path) -> Path:
    return root / "failed" / job.key[:16]


def _keep_failed(job: _Job, root: Path) -> Path:
    """Leave the source where the error message says that it is."""
    folder = _failed_folder(job, root)
    with contextlib.suppress(OSError):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for at, text in enumerate(job.texts):
            name = f"source{at}.c" if len(job.texts) > 1 else "source.c"
            (folder / name).write_text(text, encoding="utf-8")
    return folder


def _digest(path: Path) -> str:
    with open_stored(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
