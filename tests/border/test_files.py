"""Files that are none, or that never end."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

import polysci
from polysci.border.files import read_named, read_stored
from polysci.errors import SpecError, WisdomError
from polysci.ops import layer_lists
from polysci.runtime.build import cache
from polysci.target import machine_file
from polysci.target.host import detect
from polysci.tune import calibrate, context

READERS: dict[str, tuple[str, Callable[[str], object]]] = {
    "network": ("onnx", polysci.compile_network),
    "nest": ("c", polysci.Nest),
    "list": ("txt", lambda path: layer_lists.load(path, "nhwc", "f32")),
    "machine": ("toml", machine_file.read),
    "notation": ("tc", polysci.compile_network),
}
DEEP = "[" * 100_000 + "]" * 100_000


@pytest.mark.parametrize("what", READERS)
def test_a_name_with_a_nul_byte(what: str) -> None:
    ending, reader = READERS[what]
    with pytest.raises(SpecError, match="cannot be read: the name holds a NUL byte"):
        reader(f"a\0b.{ending}")


@pytest.mark.parametrize("what", READERS)
def test_a_device(what: str, tmp_path: Path) -> None:
    ending, reader = READERS[what]
    link = tmp_path / f"zero.{ending}"
    link.symlink_to("/dev/zero")
    with pytest.raises(SpecError, match="expected a regular file or a shell's pipe"):
        reader(str(link))


RECORDS = {
    "records": ("json", lambda path: polysci.Wisdom().import_(path, lambda _: None)),
    "wisdom": ("sqlite", lambda path: polysci.Wisdom(path).list()),
    "program": ("pt2", polysci.compile_network),
}


@pytest.mark.parametrize("what", [*READERS, *RECORDS])
def test_a_pipe_without_a_writer(what: str, tmp_path: Path) -> None:
    if what == "program":
        pytest.importorskip("torch")
    ending, reader = (READERS | RECORDS)[what]
    pipe = tmp_path / f"pipe.{ending}"
    os.mkfifo(pipe)
    with pytest.raises((SpecError, WisdomError), match=r"a shell's pipe|no such file|disk I/O"):
        reader(str(pipe))


def test_the_pipe_of_a_shell() -> None:
    reading, writing = os.pipe()
    os.write(writing, b"mb1ic8ih6oc8kh3\n")
    os.close(writing)
    assert read_named(f"/dev/fd/{reading}") == b"mb1ic8ih6oc8kh3\n"
    os.close(reading)


def test_limits_and_kinds(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"four")
    assert read_named(path, 4) == read_stored(path) == b"four"
    with pytest.raises(OSError, match="expected at most 3 bytes"):
        read_stored(path, 3)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="expected a regular file"):
        read_stored(tmp_path / "pipe")
    with pytest.raises(IsADirectoryError):
        read_named(tmp_path)


TEXT = "int f(void);\nint f(void) { return 3; }\n"


@pytest.mark.parametrize("name", ["entry.json", "so"])
def test_a_pipe_in_the_cache_is_built_anew(name: str) -> None:
    path = cache.build(TEXT + f"/* {name} */\n")
    victim = path if name == "so" else path.with_name(name)
    victim.unlink()
    os.mkfifo(victim)
    assert cache.build(TEXT + f"/* {name} */\n").is_file()


def test_deeply_nested_json_in_the_cache() -> None:
    path = cache.build(TEXT)
    path.with_name("entry.json").write_text(DEEP)
    assert cache.build(TEXT) != path
    assert json.loads(cache.build(TEXT).with_name("entry.json").read_text())


@pytest.mark.parametrize("damage", [lambda path: os.mkfifo(path), lambda p: p.write_text(DEEP)])
def test_stored_rates_and_weights_that_are_damaged(
    damage: Callable[[Path], object], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("POLYSCI_CACHE_DIR", str(tmp_path / "cache"))
    target = detect()
    for path in (calibrate.machine_path(target), context.weights_path(target)):
        damage(path)
    assert calibrate.load_rates(target) is None and context.load_weights(target) is None
