"""Faults of disks, compilers and users, injected for real: each is survived and explained."""

import ctypes
import functools
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from polysci.errors import BuildError
from polysci.runtime.build import cache, eviction
from polysci.runtime.build.compiler import CompileTimeoutError, default_flags
from polysci.runtime.build.folder import cache_dir, problem_of
from polysci.runtime.build.process import run, together
from tests.support import fakecompiler
from tests.support.command import started
from tests.support.fakecompiler import text, value

PLAIN = default_flags(openmp=False)
PARALLEL = """
int value(void);
int value(void) {
  int n = 0;
  #pragma omp parallel for num_threads(2) reduction(+:n)
  for (int i = 0; i < 8; i++) n += i;
  return n;
}
"""
pytestmark = pytest.mark.usefixtures("root")


NAP = f"7654.{os.getpid()}"  # seconds; names the processes of this run alone


def soon(condition, seconds=10.0):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.02)
    return False


def running(word):
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if word in path.read_bytes().decode(errors="replace").split("\0"):
                found.append(path)
        except OSError:
            continue
    return found


BUILD = """
import logging, os, sys
from polysci.runtime.build import cache, library
logging.basicConfig(format="%(levelname)s %(message)s")
try:
    for number in sys.argv[1:]:
        text = f"int value(void);\\nint value(void) {{ return {number}; }}\\n"
        path = cache.build(text, flags=cache.default_flags(openmp=False))
        print(path, library.load(path, "int value(void);").lib.value())
except cache.BuildError as error:
    print("BuildError", error)
"""


def build_apart(*numbers, prefix=(), **options):
    """What a process of its own prints and logs while it builds."""
    done = subprocess.run(
        [*prefix, sys.executable, "-c", BUILD, *map(str, numbers)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        **options,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines(), done.stderr


def without_power_over_permissions():
    """For a child of root: obey the permission bits as everyone does (drop CAP_DAC_OVERRIDE)."""
    ctypes.CDLL(None).prctl(24, 1, 0, 0, 0)


@pytest.mark.exhaustive
def test_a_read_only_cache(root):
    root.mkdir(mode=0o500)
    lines, log = build_apart(1, 2, preexec_fn=without_power_over_permissions)
    assert [line.split()[1] for line in lines] == ["1", "2"]
    assert log.count("WARNING") == 1
    assert f"cache directory {root}: it is read-only; make it writable or set" in log
    assert list(root.iterdir()) == []
    assert not Path(lines[0].split()[0]).exists()  # the private directory went with its process


@pytest.mark.exhaustive
def test_a_cache_that_cannot_be_created(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("POLYSCI_CACHE_DIR", str(tmp_path / "file/cache"))
    lines, log = build_apart(1)
    assert lines[0].endswith(" 1")
    assert "Not a directory; set POLYSCI_CACHE_DIR to a directory of yours" in log


def test_a_cache_that_others_may_write_to(root, caplog):
    root.mkdir()
    root.chmod(0o777)
    path = cache.build(text(101), flags=PLAIN)
    assert value(path) == 101 and not path.is_relative_to(root)
    assert "others may write to it (mode 0777)" in caplog.text
    assert f"chmod 700 {root}" in caplog.text
    cache.build(text(102), flags=PLAIN)
    assert len(caplog.records) == 1
    root.chmod(0o700)
    assert cache.build(text(101), flags=PLAIN).is_relative_to(root)


def test_a_cache_below_a_directory_that_all_may_write_to(root, caplog):
    above = root.parent / "above"
    above.mkdir()
    above.chmod(0o777)
    assert f"others may write to {above} above it" in problem_of(above / "cache")
    above.chmod(0o1777)  # as /tmp: nobody renames what belongs to others
    assert problem_of(above / "cache") is None


def test_a_link_of_someone_else_to_a_cache(root):
    root.mkdir(mode=0o700)
    link = root.parent / "link"
    link.symlink_to(root)
    assert problem_of(link) is None
    try:
        os.chown(link, 54321, -1, follow_symlinks=False)
    except OSError:
        pytest.skip("only root may give links away")
    assert "it is a link of user 54321, not yours" in problem_of(link)


def test_a_cache_of_someone_else(root, monkeypatch, caplog):
    root.mkdir(mode=0o700)
    try:
        os.chown(root, 54321, -1)
    except OSError:  # only root may give directories away
        monkeypatch.setenv("POLYSCI_CACHE_DIR", "/proc")
        if Path("/proc").stat().st_uid == os.geteuid():
            pytest.skip("nothing here belongs to someone else")
    path = cache.build(text(103), flags=PLAIN)
    assert value(path) == 103 and not path.is_relative_to(root)
    assert "it belongs to user" in caplog.text
    assert list(root.iterdir()) == []


def test_a_new_cache_is_ours_alone(root):
    assert cache_dir() == root
    assert root.stat().st_mode & 0o777 == 0o700
    assert problem_of(root) is None


def test_without_a_variable_the_users_cache_is_used(monkeypatch, tmp_path):
    monkeypatch.delenv("POLYSCI_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_dir() == tmp_path / "xdg/polysci"


@functools.cache
def small_disk():
    """A command prefix that mounts a file system of 40 KB over the directory given as $0."""
    mount = 'mount -t tmpfs -o size=40k,mode=700 none "$0" && exec "$@"'
    prefix = ("unshare", "-rm", "sh", "-c", mount)
    try:
        done = subprocess.run([*prefix, "/mnt", "true"], capture_output=True, check=False)
    except OSError:
        return None
    return prefix if done.returncode == 0 else None


@pytest.mark.exhaustive
def test_a_full_disk(root):
    if small_disk() is None:
        pytest.skip("this user cannot mount a small file system")
    root.mkdir(mode=0o700)
    lines, log = build_apart(1, 2, prefix=(*small_disk(), str(root)))
    assert [line.split()[1] for line in lines] == ["1", "2"]
    assert f"cache directory {root}: No space left on device; make room there or set" in log


def test_a_disk_that_is_full_for_the_compiler(root, fake, caplog):
    fake(
        f'{fakecompiler.NO_HEADER}\ncase "$*" in *{root}*)'
        ' echo "as: a.o: No space left on device" >&2; exit 1;; esac'
    )
    path = cache.build(text(104), flags=PLAIN)
    assert value(path) == 104 and not path.is_relative_to(root)
    assert "No space left on device; make room there" in caplog.text
    assert [p.name for p in (root / "builds").iterdir()] == []


@pytest.mark.exhaustive
def test_files_may_not_grow_anywhere():
    lines, _ = build_apart(
        1, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
    )
    assert lines[0].startswith("BuildError")
    assert re.search("File too large|[Ff]ile size limit|SIGXFSZ", "\n".join(lines))


def test_a_compiler_that_truncates_its_output(root, fake):
    fake(
        f'{fakecompiler.NO_HEADER}\n$real "$@" || exit\n'
        'while [ "$1" != -o ]; do shift; done; truncate -s -100 "$2"; exit 0'
    )
    with pytest.raises(BuildError, match="wrote no usable shared object: truncated"):
        cache.build(text(105), flags=PLAIN)
    assert [p.name for p in (root / "builds").iterdir()] == []


def test_a_library_without_its_symbols_is_never_kept(root, fake):
    path = fake(fakecompiler.EMPTY)
    with pytest.raises(BuildError, match=rf"{path} wrote no usable .* does not define value;"):
        cache.build(text(111), flags=PLAIN, symbols=("value",))
    with pytest.raises(BuildError, match=r"does not define other, value;"):
        cache.build([text(111), "int x;\n"], flags=PLAIN, symbols=("value", "other"))
    with pytest.raises(BuildError, match=r"does not define value;"):
        cache.build_many([text(111)], flags=PLAIN, symbols=[("value",)])
    assert [p.name for p in (root / "builds").iterdir()] == []
    fake("")
    assert value(cache.build(text(111), flags=PLAIN, symbols=("value",))) == 111


def test_what_a_library_takes_from_others_it_does_not_define(fake):
    other = "int value(void);\nint f(void);\nint f(void) { return value(); }\n"
    flags = [flag for flag in PLAIN if "defs" not in flag]
    assert cache.build(other, flags=flags, symbols=("f",)).is_file()
    with pytest.raises(BuildError, match="does not define value;"):
        cache.build(f"{other}\n", flags=flags, symbols=("f", "value"))


def test_a_compiler_that_hangs(root, fake):
    fake(f"sleep {NAP} & sleep {NAP}")
    start = time.monotonic()
    with pytest.raises(
        CompileTimeoutError, match=r"ran longer than 0\.2 s without working and was killed"
    ):
        cache.build(text(106), flags=default_flags(), timeout=0.2)
    assert time.monotonic() - start < 5
    assert soon(lambda: not running(NAP))
    assert [p.name for p in (root / "builds").iterdir()] == []


def test_a_compiler_that_is_gone_after_it_was_found(root, fake):
    path = fake("")
    value(cache.build(text(107), flags=PLAIN))
    path.unlink()
    with pytest.raises(BuildError, match="no such program"):
        cache.build(text(107), flags=PLAIN)


def test_a_compiler_without_openmp(fake, caplog):
    fake('case "$*" in *-fopenmp*) echo "no omp" >&2; exit 1;; esac')
    for number in range(3):
        source = PARALLEL.replace("i < 8", f"i < {8 + number}")
        assert value(cache.build(source)) == sum(range(8 + number))
    assert [r.getMessage().split(":")[0] for r in caplog.records] == [
        f"{os.environ['CC']} has no working OpenMP"
    ]


def test_a_wrong_text_is_not_blamed_on_openmp(caplog):
    with pytest.raises(BuildError, match="mistake"):
        cache.build(text("mistake"))
    assert not caplog.records


@pytest.mark.exhaustive
def test_a_precompiled_header_that_fails_is_dropped(root, fake):
    fake('case "$*" in *-include*) echo "cannot relocate" >&2; exit 1;; esac')
    assert value(cache.build(fakecompiler.INTRINSICS + text(108), flags=PLAIN)) == 108
    assert list((root / "headers").glob("*-*")) == []


@pytest.mark.exhaustive
def test_a_precompiled_header_that_vanishes_costs_nothing(root):
    cache.build(fakecompiler.INTRINSICS + text(109), flags=PLAIN)
    shutil.rmtree(root / "headers")
    assert value(cache.build(fakecompiler.INTRINSICS + text(110), flags=PLAIN)) == 110


@pytest.mark.exhaustive
def test_a_killed_build_blocks_nobody(root, fake, tmp_path):
    fake(f'{fakecompiler.NO_HEADER}\n[ -e "{tmp_path}/slow" ] && sleep {NAP}')
    (tmp_path / "slow").write_text("")
    with started(sys.executable, "-c", BUILD, "7") as killed:
        assert soon(lambda: running(NAP))
        killed.send_signal(signal.SIGKILL)
        killed.wait()
    (tmp_path / "slow").unlink()
    assert value(cache.build(text(7), flags=PLAIN)) == 7
    remains = [path for path in (root / "builds").iterdir() if path.name.startswith(".new-")]
    assert len(remains) == 1
    eviction.evict(root, keep_s=-1)
    assert not remains[0].exists()
    for path in running(NAP):  # what its compiler had started: nobody was left to end it
        os.kill(int(path.parent.name), signal.SIGKILL)


MANY = """
import sys
from polysci.runtime.build import cache
try:
    cache.build_many([f"int f{n};" for n in range(6)], flags=cache.default_flags(openmp=False))
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.exhaustive
def test_ctrl_c_during_a_batch_ends_at_once_and_leaves_no_compiler(fake):
    fake(f"sleep {NAP}")
    with started(sys.executable, "-c", MANY) as batch:
        assert soon(lambda: running(NAP))
        batch.send_signal(signal.SIGINT)
        assert batch.communicate(timeout=10) == ("interrupted\n", "")
    assert soon(lambda: not running(NAP))


def test_ctrl_c_while_calls_are_handed_out_ends_those_under_way():
    def calls():
        yield lambda: run(["sleep", NAP], timeout=60)
        assert soon(lambda: running(NAP))
        raise KeyboardInterrupt

    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        together(calls(), jobs=2)
    assert time.monotonic() - start < 30 and not running(NAP)


@pytest.mark.exhaustive
def test_a_directory_that_forbids_execution(root):
    mount = 'mount -t tmpfs -o noexec,mode=700 none "$0" && exec "$@"'
    if small_disk() is None:
        pytest.skip("this user cannot mount a file system")
    root.mkdir(mode=0o700)
    lines, _ = build_apart(1, prefix=("unshare", "-rm", "sh", "-c", mount, str(root)))
    assert lines[0].startswith("BuildError cannot load")
    assert "mounted noexec? Set POLYSCI_CACHE_DIR" in lines[0]
