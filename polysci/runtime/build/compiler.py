"""The C compiler of this machine: which one, its identity, and one text -> one shared object."""

from __future__ import annotations

import functools
import hashlib
import os
import re
import shlex
import shutil
import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from polysci.errors import BuildError, NoCompilerError
from polysci.printers.headers import LEAST, REGION, flags_in
from polysci.runtime.build import process
from polysci.runtime.build.elf import fault_of
from polysci.runtime.build.process import together

# Seconds of CPU time:
TIMEOUT_S = 300.0  # of each text of a whole network
CANDIDATE_S = 60.0  # of the text of one layer, or a kernel's probe
PROBE_S = 20.0  # of a question to the compiler: its version, a header, OpenMP
CALLS = 2  # with the same text: what hangs once may be the disk's or the network's doing

_refused: dict[tuple[str, ...], str] = {}  # by compiler, version of its file and text: why


class CompileTimeoutError(NoCompilerError):
    """The compiler ran too long, now or earlier, and was killed with all that it had started."""


def call(
    compiler: Sequence[str], options: Sequence[str], *, about: str, timeout: float,
    env: Mapping[str, str],
) -> process.Completed:  # fmt: skip
    """Return how the compiler, a path and options, ends that is called with ``options``.

    It may work for ``timeout`` seconds, and is called once more if it does not end.
    CompileTimeoutError: nor does it then, or did before in this process with a text that is
    ``about`` the same, or with the least there is. BuildError: it cannot be started.
    """
    command = (*compiler, *_version(compiler[0]))
    if message := _refused.get(command) or _refused.get((*command, about)):
        raise CompileTimeoutError(message)
    for _ in range(CALLS):
        done = process.run((*compiler, *options), timeout=timeout, env=env, working=True)
        if not done.timed_out:
            return done
    message = f"the C compiler {shlex.join(compiler)} {done}, {CALLS} times; name another one in CC"
    least = (*compiler, "-x", "c", "-S", "-o", os.devnull, "-")
    limit = min(timeout, PROBE_S)
    # Where the least text hangs too, no other will do better.
    again = process.run(least, timeout=limit, input=LEAST, env=env, working=True)
    _refused[command if again.timed_out else (*command, about)] = message
    raise CompileTimeoutError(f"{message}\nto repeat: {done.command}")


def _version(path: str) -> tuple[str, ...]:
    """Return numbers that change when the file does: a repaired compiler is called again."""
    try:
        stat = Path(path).stat()
    except OSError:
        return ()
    return str(stat.st_mtime_ns), str(stat.st_size)


CANDIDATES = ("cc", "gcc", "clang")

HOW_TO_INSTALL = (
    "install one (Debian, Ubuntu: apt install gcc; Fedora: dnf install gcc; Alpine: apk add "
    "gcc musl-dev) or name one in the environment variable CC"
)

# Each keeps IEEE values: errno and trap flags are nobody's input here, and a*b+c stays two
# roundings unless the text asks for a fused one, so that every compiler gives the same bits.
# -ffast-math on the other hand would set flush-to-zero for the whole process when loaded.
# -z defs turns a missing symbol into a link error instead of a failing dlopen.
_FLAGS = (
    "-std=c11",
    "-O3",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-ffp-contract=off",
    "-fPIC",
    "-pipe",
    "-Wl,-z,defs",
)


def default_flags(openmp: bool = True) -> tuple[str, ...]:
    """The flags of every build; a text chooses its instruction set, and adds flags for it."""
    return (*_FLAGS, "-fopenmp") if openmp else (*_FLAGS, "-Wno-unknown-pragmas")


def without_openmp(flags: Sequence[str]) -> tuple[str, ...]:
    """Return the same flags for a compiler that lacks OpenMP: its pragmas become comments."""
    return (*(flag for flag in flags if flag != "-fopenmp"), "-Wno-unknown-pragmas")


# The first line worth reading: not collect2's, which follows what the linker itself has to say.
_ERROR = re.compile(r"^(?!collect2).*(error\b|undefined reference)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Compiler:
    """A C compiler: how to call it, and the text that changes whenever its output may."""

    path: Path
    options: tuple[str, ...]
    identity: str

    @property
    def cmd(self) -> tuple[str, ...]:
        return (str(self.path), *self.options)

    @property
    def machine(self) -> str:
        """The machine that it compiles for, as ``uname -m`` says: ``x86_64``, ``aarch64``."""
        return self.identity.rpartition(" | ")[2].partition("-")[0]

    def __str__(self) -> str:
        return self.identity


def find_compiler() -> Compiler:
    """Return the compiler that the environment variable CC names, else the first of cc, gcc, clang.

    CC may carry options, as in ``CC="ccache gcc -m64"``. NoCompilerError: none found, or it
    does not run; the message says how to get one.
    """
    chosen = os.environ.get("CC", "").strip()
    if not chosen:
        command = next((path for name in CANDIDATES if (path := shutil.which(name))), None)
        if command is None:
            raise NoCompilerError(
                f"no C compiler ({', '.join(CANDIDATES)}) in PATH: {HOW_TO_INSTALL}"
            )
        return identified(command, ())
    path, *options = split_command("CC", chosen, f"{HOW_TO_INSTALL}, or unset CC")
    return identified(path, tuple(options))


def split_command(variable: str, chosen: str, advice: str) -> list[str]:
    """Return the path and the options of the program that an environment variable names.

    Raises NoCompilerError, with the advice where there is no such program.
    """
    try:
        name, *options = shlex.split(chosen)
    except ValueError as error:
        raise NoCompilerError(f"environment variable {variable}={chosen!r}: {error}") from None
    path = shutil.which(name)
    if path is None:
        raise NoCompilerError(
            f"environment variable {variable}={chosen!r}: no such program; {advice}"
        )
    return [path, *options]


def compile_shared(
    text: str,
    flags: Sequence[str],
    out: Path,
    *,
    compiler: Compiler | None = None,
    header: Path | None = None,
    timeout: float = CANDIDATE_S,
    symbols: Collection[str] = (),
) -> None:
    """Compile one C text to the shared object ``out``; scratch files stay in its directory.

    The text goes to ``source.c`` beside ``out``, which outlives a failure; ``header`` is included
    first, see :mod:`polysci.runtime.build.precompiled`. BuildError: the compiler is absent, fails,
    works longer than ``timeout`` seconds, or writes something that is not a complete shared object,
    or one that does not define ``symbols``.
    """
    compiler = compiler or find_compiler()
    source = out.with_name("source.c")
    source.write_text(text, encoding="utf-8")
    first = ("-include", str(header)) if header else ()
    options = (*flags, *flags_in(text), *first, "-shared", "-o", str(out), str(source), "-lm")
    run_compiler(compiler, options, out, timeout, text)
    _check(compiler, out, symbols)


def compile_together(
    texts: Sequence[str],
    flags: Sequence[str],
    out: Path,
    *,
    compiler: Compiler | None = None,
    headers: Sequence[Path | None] = (),
    jobs: int = 2,
    timeout: float = CANDIDATE_S,
    symbols: Collection[str] = (),
) -> None:
    """Compile several C texts, ``jobs`` at a time, and link them to the shared object ``out``.

    Texts go to ``source0.c`` and so on beside ``out``; ``headers`` are the ones that each of them
    includes first. Raises as ``compile_shared`` does.
    """
    compiler = compiler or find_compiler()
    headers = headers or [None] * len(texts)
    sources = [out.with_name(f"source{at}.c") for at in range(len(texts))]

    def compile_one(source: Path, text: str, header: Path | None) -> str:
        source.write_text(text, encoding="utf-8")
        result = source.with_suffix(".o")
        first = ("-include", str(header)) if header else ()
        options = (*flags, *flags_in(text), *first, "-c", "-o", str(result), str(source))
        run_compiler(compiler, options, out, timeout, text)
        return str(result)

    calls = [partial(compile_one, *unit) for unit in zip(sources, texts, headers, strict=True)]
    objects = together(calls, jobs)
    options = (*flags, "-shared", "-o", str(out), *objects, "-lm")
    run_compiler(compiler, options, out, timeout, *texts)
    for path in objects:
        Path(path).unlink()
    _check(compiler, out, symbols)


def assembly(
    text: str, flags: Sequence[str], folder: Path, *, compiler: Compiler, timeout: float
) -> str:
    """Return the assembly that the compiler makes of a C text. Raises BuildError.

    The text goes to ``source.c`` in ``folder``.
    """
    source, out = folder / "source.c", folder / "source.s"
    source.write_text(text, encoding="utf-8")
    options = (*flags, *flags_in(text), "-S", "-o", str(out), str(source))
    run_compiler(compiler, options, out, timeout, text)
    return out.read_text(encoding="utf-8", errors="replace")


def run_compiler(
    compiler: Compiler, options: Sequence[str], out: Path, timeout: float, *texts: str
) -> None:
    """Call the compiler for these texts, scratch files beside ``out``. BuildError: it fails."""
    env = {"TMPDIR": str(out.parent), "LC_ALL": "C"}
    folder = str(out.parent)  # new every time, as the names in it are
    steady = [word for word in options if not word.startswith(folder)]
    about = hashlib.sha256("\0".join([*steady, *texts]).encode()).hexdigest()
    done = call(compiler.cmd, options, about=about, timeout=timeout, env=env)
    if not done.ok:
        trouble = f"{done}{_excerpt(done.stderr)}"
        raise BuildError(f"the C compiler {compiler.path} {trouble}\nto repeat: {done.command}")


def _check(compiler: Compiler, out: Path, symbols: Collection[str]) -> None:
    """Raise BuildError for what is no complete shared object, or lacks a symbol."""
    if fault := fault_of(out, symbols):
        raise BuildError(
            f"the C compiler {compiler.path} wrote no usable shared object: {fault}; is a disk "
            "full, or CC no C compiler?"
        )


@functools.cache
def lacks_openmp(compiler: Compiler) -> bool:
    """Return whether a parallel region builds only without -fopenmp; asked once a process."""
    try:
        with tempfile.TemporaryDirectory(prefix="polysci-") as scratch:
            out = Path(scratch, "probe.so")
            if _compiles(compiler, REGION, default_flags(openmp=True), out):
                return False
            return _compiles(compiler, REGION, default_flags(openmp=False), out)
    except OSError:  # no room to try
        return False


def _compiles(compiler: Compiler, text: str, flags: tuple[str, ...], out: Path) -> bool:
    try:
        compile_shared(text, flags, out, compiler=compiler, timeout=PROBE_S)
    except BuildError:
        return False
    return True


def identified(path: str, options: tuple[str, ...]) -> Compiler:
    """Return the compiler at a path, called with options. NoCompilerError: it does not run."""
    stat = Path(path).stat()
    identity = _identity(path, options, stat.st_mtime_ns, stat.st_size)
    return Compiler(Path(path), options, identity)


@functools.cache
def _identity(path: str, options: tuple[str, ...], _mtime: int, _size: int) -> str:
    """Real path, options, first line of the version, machine; asked again if the file changes."""
    parts = [shlex.join([str(Path(path).resolve()), *options])]
    for question in ("--version", "-dumpmachine"):
        env = {"LC_ALL": "C"}
        done = call((path, *options), (question,), about=question, timeout=PROBE_S, env=env)
        if not done.ok:
            raise NoCompilerError(
                f"{path} is no working C compiler: {done.command} {done}"
                f"{_excerpt(done.stderr)}\n{HOW_TO_INSTALL}"
            )
        parts.append(done.stdout.strip().partition("\n")[0])
    return " | ".join(parts)


def _excerpt(stderr: str, lines: int = 12) -> str:
    """Return the first lines of what it said, from the first error on if there is one."""
    lines_said = stderr.strip().splitlines()
    first = next((i for i, line in enumerate(lines_said) if _ERROR.search(line)), 0)
    part = lines_said[first : first + lines]
    rest = len(lines_said) - first - len(part)
    more = [f"... and {rest} more lines"] if rest > 0 else []
    return "".join(f"\n  {line[:400]}" for line in [*part, *more])
