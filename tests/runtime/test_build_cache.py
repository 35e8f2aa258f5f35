"""The build cache: keys, hits, digests, sharing, eviction."""

import json
import os
import shutil
import subprocess
import sys
import time

import pytest

from polysci.errors import BuildError
from polysci.runtime.build import cache, eviction
from polysci.runtime.build.compiler import default_flags
from polysci.runtime.build.library import load

PLAIN = default_flags(openmp=False)


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """One cache for the module, so that the header is compiled once."""
    yield (path := tmp_path_factory.mktemp("cache"))
    shutil.rmtree(path)


@pytest.fixture(autouse=True)
def root(shared, monkeypatch):
    """The cache directory, without the entries of the test before."""
    monkeypatch.setenv("POLYSCI_CACHE_DIR", str(shared))
    monkeypatch.delenv("CC", raising=False)
    yield shared
    for path in cache_entries(shared):
        eviction._remove(path, float("inf"))


def cache_entries(root):
    folder = root / "builds"
    return sorted(folder.iterdir()) if folder.exists() else []


def text(value):
    return f"int value(void);\nint value(void) {{ return {value}; }}\n"


def value(path):
    return load(path, "int value(void);").lib.value()


def test_the_same_text_is_compiled_once(root):
    path = cache.build(text(1), flags=PLAIN)
    assert value(path) == 1
    stat = path.stat()
    assert cache.build(text(1), flags=PLAIN) == path
    assert path.stat() == stat
    assert len(cache_entries(root)) == 1


def test_the_key_covers_text_flags_and_compiler(root, monkeypatch):
    paths = {cache.build(text(1), flags=PLAIN), cache.build(text(2), flags=PLAIN)}
    paths.add(cache.build(text(1), flags=(*PLAIN, "-O2")))
    monkeypatch.setenv("CC", "cc -DX=1")
    paths.add(cache.build(text(1), flags=PLAIN))
    assert len(paths) == len(cache_entries(root)) == 4


def test_an_entry_explains_itself():
    path = cache.build(text(3), flags=PLAIN)
    entry = json.loads((path.parent / "entry.json").read_text())
    assert entry["so"] == path.name
    assert entry["flags"] == list(PLAIN)
    assert (path.parent / "source.c").read_text() == text(3)
    assert sorted(p.name for p in path.parent.iterdir()) == sorted(
        ["entry.json", "source.c", path.name]
    )


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x10
    path.write_bytes(data)


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize(
    "damage",
    [
        flip,
        lambda path: os.truncate(path, 100),
        lambda path: os.truncate(path, 0),
        lambda path: path.unlink(),
        lambda path: os.truncate(path.parent / "entry.json", 20),
        lambda path: (path.parent / "entry.json").unlink(),
        lambda path: (path.parent / "entry.json").write_bytes(b"\xff\x00"),
        lambda path: (path.parent / "entry.json").write_text('{"so": "", "sha256": ""}'),
        lambda path: (path.parent / "entry.json").write_text('{"so": 5, "sha256": ""}'),
        lambda path: (path.parent / "entry.json").write_text("[]"),
    ],
    ids=[
        "flip",
        "cut",
        "empty",
        "lost",
        "cut-entry",
        "lost-entry",
        "binary-entry",
        "no-so",
        "odd-so",
        "list",
    ],
)
def test_a_damaged_entry_is_compiled_again_under_a_new_name(damage, caplog):
    path = cache.build(text(4), flags=PLAIN)
    damage(path)
    again = cache.build(text(4), flags=PLAIN)
    assert again != path and value(again) == 4
    assert "compiling it again" in caplog.text
    assert cache.build(text(4), flags=PLAIN) == again


def test_code_that_is_loaded_is_not_what_a_rebuilt_entry_returns():
    path = cache.build(text(5), flags=PLAIN)
    old = load(path, "int value(void);")
    os.truncate(path.parent / "entry.json", 0)
    again = cache.build(text(5), flags=PLAIN)
    assert load(again, "int value(void);").lib.value() == old.lib.value() == 5


def test_many_texts_at_once(root):
    texts = [text(n % 3) for n in range(6)]
    paths = cache.build_many(texts, flags=PLAIN, jobs=2)
    assert [value(path) for path in paths] == [0, 1, 2, 0, 1, 2]
    assert len(cache_entries(root)) == 3


def test_one_bad_text_among_many_is_reported(root):
    with pytest.raises(BuildError, match="mistake"):
        cache.build_many([text(1), text("mistake"), text(2)], flags=PLAIN)
    assert value(cache.build(text(1), flags=PLAIN)) == 1


def test_a_failing_source_is_kept_where_the_message_says(root):
    with pytest.raises(BuildError) as caught:
        cache.build(text("mistake"), flags=PLAIN)
    command = str(caught.value).rpartition("to repeat: ")[2]
    again = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert again.returncode and "mistake" in again.stderr
    assert not [path for path in cache_entries(root) if path.name.startswith(".")]


def test_a_probe_loads_new_code_in_another_process(root):
    crash = "#include <stdlib.h>\n__attribute__((constructor)) static void f(void) { abort(); }\n"
    with pytest.raises(BuildError, match=r"cannot be loaded: .* crashed with SIGABRT"):
        cache.build(crash, flags=PLAIN, probe=True)
    assert cache_entries(root) == []
    assert value(cache.build(text(6), flags=PLAIN, probe=True)) == 6


SHARE = """
import sys
from polysci.runtime.build import cache, library
sys.stdin.readline()
path = cache.build(sys.argv[1], flags=sys.argv[2:])
print(path, library.load(path, "int value(void);").lib.value())
"""


@pytest.mark.exhaustive
def test_sixteen_processes_build_the_same_text(root):
    many = [
        subprocess.Popen(
            [sys.executable, "-c", SHARE, text(7), *PLAIN],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(16)
    ]
    for process in many:
        process.stdin.write("go\n")
        process.stdin.flush()
    answers = [process.communicate(timeout=60) for process in many]
    assert {err for _, err in answers} == {""}
    assert {out for out, _ in answers} == {f"{cache.build(text(7), flags=PLAIN)} 7\n"}
    assert len(cache_entries(root)) == 1


def age(path, seconds):
    then = time.time() - seconds
    os.utime(path, (then, then))


def test_eviction_takes_the_least_recently_used(root):
    paths = [cache.build(text(n), flags=PLAIN) for n in range(4)]
    for path, hours in zip(paths, (5, 4, 3, 2), strict=True):
        age(path.parent, hours * 3600)
    assert cache.build(text(0), flags=PLAIN) == paths[0]  # used now
    used = eviction.usage(root)
    one = sum(map(eviction._size, paths[1].parent.iterdir()))
    assert eviction.evict(root, limit=used.size - one - 1) == 2
    assert [path.exists() for path in paths] == [True, False, False, True]
    assert eviction.usage(root).entries == used.entries - 2


def test_eviction_spares_what_was_used_lately(root):
    path = cache.build(text(0), flags=PLAIN)
    assert eviction.evict(root, limit=0) == 0
    assert path.exists()
    assert eviction.evict(root, limit=1 << 40, keep_s=0) == 0
    assert path.exists()


def test_an_entry_used_while_it_is_evicted_comes_back(root):
    path = cache.build(text(0), flags=PLAIN)
    assert not eviction._remove(path.parent, time.time() - 60)
    assert value(path) == 0


def test_remains_of_killed_builds_are_swept(root):
    cache.build(text(0), flags=PLAIN)
    old, young = root / "builds/.new-old", root / "builds/.new-young"
    for path in (old, young):
        path.mkdir()
        (path / "source.c").write_text("")
    age(old, 2 * eviction.KEEP_S)
    eviction.evict(root)
    assert young.exists() and not old.exists()


def test_a_build_under_way_is_not_swept(root):
    cache.build(text(0), flags=PLAIN)
    with eviction.scratch_in(root / "builds") as live:
        age(live, 2 * eviction.KEEP_S)  # however slow it is
        eviction.sweep(root)
        assert live.exists()
        left = root / "builds/.new-left"
        left.mkdir()
        age(left, 120)
        eviction.sweep(root)
        assert live.exists() and not left.exists()
    assert not live.exists()


def test_a_process_that_finds_its_build_sweeps_too(root):
    path, left = cache.build(text(0), flags=PLAIN), root / "builds/.new-left"
    left.mkdir()
    age(left, 120)
    cache._sweep_once.cache_clear()  # as in another process
    assert cache.build(text(0), flags=PLAIN) == path and not left.exists()


def test_clear_takes_the_cache_and_nothing_else(root):
    cache.build(text(0), flags=PLAIN)
    (root / "wisdom.sqlite").write_text("precious")
    assert cache.clear() >= 1
    assert eviction.usage(root).entries == 0
    assert (root / "wisdom.sqlite").read_text() == "precious"
    assert value(cache.build(text(0), flags=PLAIN)) == 0
    assert str(eviction.usage(root)).endswith("MiB")
