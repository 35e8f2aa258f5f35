"""Check this installation and suggest remedies."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from polysci.cli.cross_compilers import cross_compilers
from polysci.errors import BuildError, SpecError, UnsupportedError
from polysci.peers.onednn.discovery import INSTALL, find_libraries
from polysci.printers.headers import COUNT_OF_TWO, fused_product
from polysci.runtime.backends.parts import DevicePart, device_parts
from polysci.runtime.build import compiler, eviction, folder, library, process
from polysci.runtime.build.compiler import PROBE_S, CompileTimeoutError
from polysci.target import host
from polysci.target.isas import permissions
from polysci.target.target import Target
from polysci.text.tables import paragraph
from polysci.tune.calibrate import load_rates

PACKAGES = ("islpy", "cgen", "cffi", "numpy", "scipy", "pycparser", "rich", "platformdirs")
PEERS = {
    **dict.fromkeys(("torch", "onnxruntime", "openvino"), "pip install 'polysci[peers]'"),
    "onnx": "pip install 'polysci[onnx]'",
}
_MARK = {True: "ok ", False: "BAD"}
LOW_SPACE = 200 * (1 << 20)  # a precompiled header has 25 MB, a network's layers a few


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check; ``remedy`` says how to repair it or how to install an extra."""

    name: str
    ok: bool
    detail: str
    remedy: str = ""

    def __str__(self) -> str:
        return self.text()

    def text(self, width: int | None = None) -> str:
        """The result, and the remedy below it, in ``width`` columns."""
        text = paragraph(f"{self.name}: {self.detail}", width, "    ", f"{_MARK[self.ok]} ")
        return (
            f"{text}\n{paragraph(self.remedy, width, ' ' * 7, '    -> ')}" if self.remedy else text
        )


def checks(target: Target | None = None) -> list[Check]:
    """Every check on this host; ``target`` defaults to what is detected. Raises nothing."""
    try:
        target = target or host.detect()
    except SpecError as error:
        return [Check("ISA", False, str(error), "unset POLYSCI_ISA, then ask again")]
    results = [*_compiler(target), _isa(target), _caches(target), _cores(target)]
    results += [_runtimes(), _cache_directory(), _free_space(), _packages()]
    results += [_peer(name, remedy) for name, remedy in PEERS.items()] + [_onednn()]
    results += [Check(part.name, True, part.detail, part.remedy) for part in device_parts_of_host()]
    results += [
        Check(f"compiler for {own.cpu}", True, own.found, own.remedy) for own in cross_compilers()
    ]
    return results + list(_permissions(target))


def device_parts_of_host() -> Iterator[DevicePart]:
    """Yield the parts of devices; a device says whether its rates were measured, and how to."""
    for part in device_parts():
        if part.target is None:
            yield part
            continue
        known = load_rates(part.target)
        state = "rates assumed" if known is None else "rates measured"
        if known and not known.measured:
            state = "some rates assumed"
        whole = bool(known and known.measured)
        remedy = "" if whole else f"polysci machine --device {part.name} measures them"
        yield replace(part, detail=f"{part.detail}, {state}", remedy=remedy)


def _compiler(target: Target) -> Iterator[Check]:
    try:
        cc = compiler.find_compiler()
    except BuildError as error:
        yield Check("compiler", False, str(error).partition("\n")[0], compiler.HOW_TO_INSTALL)
        return
    yield Check("compiler", True, str(cc))
    try:
        yield _program(cc, target)
        yield _openmp(cc)
    except CompileTimeoutError as error:
        yield Check("builds", False, str(error).partition("\n")[0], compiler.HOW_TO_INSTALL)


def _program(cc: compiler.Compiler, target: Target) -> Check:
    """Compile one function for each instruction set that should run, and run them in a child."""
    names = [isa.name for isa in target.allowed]
    name = f"builds and runs {', '.join(names)}"
    text = "".join(fused_product(isa) for isa in target.allowed)
    code = "".join(
        f"f = lib.f_{name}; f.restype = ctypes.c_float\n"
        "print(f(*map(ctypes.c_float, (2, 3, 4))), flush=True)\n"
        for name in names
    )
    wanted = dict.fromkeys(flag for isa in target.allowed for flag in isa.flags)
    flags = (*compiler.default_flags(openmp=False), *wanted)
    start = time.monotonic()
    try:
        done = _in_child(cc, text, flags, code)
    except CompileTimeoutError:
        raise
    except (BuildError, OSError) as error:
        return Check(name, False, str(error), "repair the compiler or name another one in CC")
    values = done.stdout.split()
    if values == ["10.0"] * len(names):
        return Check(name, True, f"{time.monotonic() - start:.2f} s with a process to run them in")
    failed = names[min(len(values), len(names) - 1)]
    detail = f"{failed}: {done}; got {values} instead of 10.0 each"
    if failed == names[0]:
        return Check(name, False, detail, "repair the compiler or name another one in CC")
    before = names[names.index(failed) - 1]
    return Check(name, False, detail, f"set POLYSCI_ISA={before}")


def _openmp(cc: compiler.Compiler) -> Check:
    if compiler.lacks_openmp(cc):
        remedy = "for clang on Debian or Ubuntu: apt install libomp-dev; or set CC=gcc"
        return Check("OpenMP", False, f"{cc.path} builds nothing with -fopenmp", remedy)
    try:
        done = _in_child(
            cc, COUNT_OF_TWO, compiler.default_flags(openmp=True), "print(lib.count())"
        )
    except CompileTimeoutError:
        raise
    except (BuildError, OSError) as error:
        return Check("OpenMP", False, str(error), "repair the compiler or name another one in CC")
    if done.stdout.strip() == "2":
        return Check("OpenMP", True, "a region of 2 threads has 2")
    detail = f"a region of 2 threads: {done}, counted {done.stdout.strip() or 'nothing'}"
    return Check("OpenMP", False, detail, "unset OMP_THREAD_LIMIT and OMP_DYNAMIC")


def _in_child(
    cc: compiler.Compiler, text: str, flags: tuple[str, ...], code: str
) -> process.Completed:
    """Build ``text`` and run Python ``code`` with the loaded ``lib`` in another process."""
    with tempfile.TemporaryDirectory(prefix="polysci-doctor-") as scratch:
        out = Path(scratch, "doctor.so")
        compiler.compile_shared(text, flags, out, compiler=cc, timeout=PROBE_S)
        opening = "import ctypes, sys\nlib = ctypes.CDLL(sys.argv[1])\n"
        return process.run([sys.executable, "-IS", "-c", opening + code, str(out)], timeout=20)


def _isa(target: Target) -> Check:
    if "features" in target.assumed:
        return Check("ISA", False, f"{target.isa}: /proc/cpuinfo is unreadable", "mount /proc")
    others = [str(isa) for isa in target.allowed if isa != target.isa]
    also = f" ({', '.join(reversed(others))} as well)" if others else ""
    if not target.hidden:
        return Check("ISA", True, f"{target.isa}{also} on {target.model_name}")
    hidden = ", ".join(map(str, reversed(target.hidden)))
    detail = f"{target.isa}{also}, capped; the cap hides {hidden}, which this CPU has"
    remedy = "unset POLYSCI_ISA" if os.environ.get("POLYSCI_ISA") else "leave out --isa"
    return Check("ISA", True, detail, f"for {target.runnable[-1]}: {remedy}")


def _caches(target: Target) -> Check:
    text = " ".join(map(str, target.caches))
    guest = " (L3: what a guest may hope for)" if target.has("hypervisor") else ""
    assumed = [cache.name for cache in target.caches if cache.name in target.assumed]
    if not assumed:
        return Check("caches", True, text + guest)
    remedy = "mount /sys; or write the sizes into a machine file ('polysci machine -o FILE.toml')"
    return Check("caches", False, f"{text}; assumed: {' '.join(assumed)}", remedy)


def _cores(target: Target) -> Check:
    allowed, quota = host.allowed_cpus(), host.cpu_quota()
    text = f"{target.cores} of {os.cpu_count() or allowed} CPUs"
    reasons = [f"affinity allows {allowed}"]
    reasons += [] if quota is None else [f"a control group allows {quota:g}"]
    text = f"{text}: {', '.join(reasons)}"
    limit = os.environ.get("OMP_THREAD_LIMIT", "")
    if quota is not None and quota < 1:
        remedy = "raise the container's CPU limit to 1 or more: below, all times are disturbed"
        return Check("cores", False, text, remedy)
    if limit.isdigit() and int(limit) < target.cores:
        return Check("cores", False, f"{text}, but OMP_THREAD_LIMIT={limit}", "unset it")
    return Check("cores", True, text)


def _runtimes() -> Check:
    files = library.openmp_runtimes()
    if len(files) < 2:
        return Check("OpenMP runtimes", True, files[0] if files else "none loaded yet")
    detail = f"{len(files)} in this process: {' '.join(files)}"
    remedy = "their threads compete: run polysci and the other library one after the other, or "
    return Check("OpenMP runtimes", False, detail, remedy + "in processes of their own")


def _cache_directory() -> Check:
    path = folder.dir_of_settings()
    problem = folder.problem_of(path)
    if problem:
        fault, _, remedy = problem.partition("; ")
        return Check("cache directory", False, f"{path}: {fault}", remedy)
    if os.statvfs(path).f_flag & os.ST_NOEXEC:
        remedy = "set POLYSCI_CACHE_DIR to a directory that allows execution"
        return Check("cache directory", False, f"{path}: mounted noexec", remedy)
    mode = path.stat().st_mode & 0o777
    return Check("cache directory", True, f"{path}: mode {mode:04o}, {eviction.usage(path)}")


def _free_space() -> Check:
    places = [
        path for path in (folder.dir_of_settings(), Path(tempfile.gettempdir())) if path.is_dir()
    ]
    free = {path: shutil.disk_usage(path).free for path in places}
    text = ", ".join(f"{path}: {size / (1 << 30):.1f} GiB" for path, size in free.items())
    full = [str(path) for path, size in free.items() if size < LOW_SPACE]
    remedy = f"make room in {' and '.join(full)}" if full else ""
    return Check("free space", not full, text or "nowhere to look", remedy)


def _packages() -> Check:
    versions = {name: _version(name) for name in ("polysci", *PACKAGES)}
    text = ", ".join(f"{name} {version or 'absent'}" for name, version in versions.items())
    absent = [name for name, version in versions.items() if version is None]
    remedy = f"{sys.executable} -m pip install {' '.join(absent)}" if absent else ""
    return Check("Python packages", not absent, f"Python {sys.version.split()[0]}, {text}", remedy)


def _peer(name: str, remedy: str) -> Check:
    """An optional package, looked up but not imported; its absence is no error."""
    if importlib.util.find_spec(name) is None:
        return Check(name, True, "not installed", f"to have it: {remedy}")
    return Check(name, True, _version(name) or "installed, version unknown")


def _onednn() -> Check:
    """The library's file, which is not loaded as a wheel's; its absence is no error."""
    try:
        return Check("onednn", True, ", ".join(map(str, find_libraries())))
    except UnsupportedError:
        return Check("onednn", True, "not installed", f"to have it: {INSTALL}")


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _permissions(target: Target) -> Iterator[Check]:
    """Yield whether the kernel lets a process have what it must ask for, where the CPU has it."""
    for permission in permissions():
        if any(word.startswith(permission.prefix) for word in target.withheld):
            yield Check(permission.title, False, permission.denied, permission.remedy)
        elif any(word.startswith(permission.prefix) for word in target.features):
            yield Check(permission.title, True, permission.allowed)
