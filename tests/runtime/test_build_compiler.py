"""Compilers: which one is found, how their failures read, what their output must be."""

import fcntl
import logging
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from polysci.errors import BuildError
from polysci.printers.headers import attribute
from polysci.runtime.build import compiler, precompiled
from polysci.runtime.build.compiler import (
    CompileTimeoutError,
    compile_shared,
    default_flags,
    find_compiler,
    lacks_openmp,
    without_openmp,
)
from polysci.runtime.build.elf import fault_of
from polysci.runtime.build.library import load
from polysci.target.host import detect
from polysci.target.isas import ISAS

TEXT = "int answer(void);\nint answer(void) { return 42; }\n"
PLAIN = default_flags(openmp=False)
WARNINGS = ("-Wall", "-Wextra", "-Werror")


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """Make CC a shell script that says who it is and otherwise does as told."""
    real = shutil.which("cc")

    def make(body, *, version="fake 1.0"):
        path = tmp_path / "fake-cc"
        path.write_text(
            f"#!/bin/sh\nreal={real}\n"
            f'case "$*" in *--version*) echo "{version}"; exit;; esac\n'
            'case "$*" in *-dumpmachine*) echo machine; exit;; esac\n'
            'out() { while [ "$1" != -o ]; do shift; done; echo "$2"; }\n'
            f"{body}\n"
        )
        path.chmod(0o700)
        monkeypatch.setenv("CC", str(path))
        return path

    return make


def test_the_flags_are_safe_for_ieee_arithmetic():
    for openmp in (True, False):
        flags = default_flags(openmp)
        assert not any("fast" in flag or flag.startswith("-march") for flag in flags)
        assert "-ffp-contract=off" in flags
    assert without_openmp(default_flags(True)) == default_flags(False)


def test_a_text_becomes_a_library(tmp_path):
    compile_shared(TEXT, (*PLAIN, *WARNINGS), tmp_path / "a.so")
    library = load(tmp_path / "a.so", "int answer(void);")
    assert library.lib.answer() == 42
    assert str(library) == str(tmp_path / "a.so")


@pytest.mark.parametrize("name", ["gcc", "clang"])
def test_every_isa_attribute_compiles_without_a_warning(tmp_path, monkeypatch, name):
    if shutil.which(name) is None:
        pytest.skip(f"no {name}")
    if not detect().has("sse2"):
        pytest.skip("the attributes are for x86")
    monkeypatch.setenv("CC", name)
    ours = [isa for isa in ISAS.values() if isa.machine in ("", "x86_64")]
    text = "".join(f"{attribute(isa)} int f_{isa}(void);\n" for isa in ours)
    text += "".join(
        f"{attribute(isa)} int f_{isa}(void) {{ return {isa.registers}; }}\n" for isa in ours
    )
    compile_shared(text, (*PLAIN, *WARNINGS), tmp_path / "a.so")


def test_the_identity_says_which_compiler_it_is(monkeypatch):
    monkeypatch.delenv("CC", raising=False)
    found = find_compiler()
    assert found.identity.count(" | ") == 2
    assert str(found.path.resolve()) in str(found)


def test_the_identity_changes_with_the_program_and_its_options(fake, monkeypatch):
    path = fake("exit 1")
    first = find_compiler()
    assert "fake 1.0" in first.identity
    monkeypatch.setenv("CC", f"{path} -m64 '-Da=b c'")
    second = find_compiler()
    assert second.options == ("-m64", "-Da=b c")
    assert second.identity != first.identity
    monkeypatch.setenv("CC", str(path))
    fake("exit 1", version="fake 2.0.1")
    assert "fake 2.0.1" in find_compiler().identity


def test_no_compiler_says_how_to_get_one(monkeypatch, tmp_path):
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BuildError, match=r"no C compiler \(cc, gcc, clang\) .*apt install gcc"):
        find_compiler()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("no-such-cc", "CC='no-such-cc': no such program; .* or unset CC"),
        ("gcc 'open", "No closing quotation"),
        ("false", "false is no working C compiler: .*exited with status 1"),
    ],
)
def test_a_wrong_cc_is_named(monkeypatch, value, message):
    monkeypatch.setenv("CC", value)
    with pytest.raises(BuildError, match=message):
        find_compiler()


def test_a_failure_shows_the_first_error_and_a_command_that_repeats_it(tmp_path):
    text = "#warning not this\n" + TEXT.replace("42", "fourty_two") + "int b = c;\n" * 20
    with pytest.raises(BuildError) as caught:
        compile_shared(text, PLAIN, tmp_path / "a.so")
    said = str(caught.value).splitlines()
    assert said[0] == f"the C compiler {find_compiler().path} exited with status 1"
    assert "fourty_two" in said[1] and "error" in said[1]
    assert len(said) < 20 and "more lines" in said[-2]
    assert said[-1].startswith("to repeat: ")
    again = subprocess.run(said[-1][11:], shell=True, capture_output=True, text=True, check=False)
    assert again.returncode and "fourty_two" in again.stderr


def test_a_missing_symbol_is_an_error_of_the_linker(tmp_path):
    text = "int g(void);\nint f(void);\nint f(void) { return g(); }\n"
    with pytest.raises(BuildError, match=r"undefined reference to [`']?g"):
        compile_shared(text, PLAIN, tmp_path / "a.so")


def test_a_crash_of_the_compiler_is_named(fake, tmp_path):
    fake("kill -SEGV $$")
    with pytest.raises(BuildError, match=r"the C compiler \S+fake-cc crashed with SIGSEGV"):
        compile_shared(TEXT, PLAIN, tmp_path / "a.so")


def test_a_hanging_compiler_is_killed_with_all_it_started(fake, tmp_path):
    fake("sleep 7654.331 & sleep 7654.331")
    with pytest.raises(
        CompileTimeoutError, match=r"ran longer than 0\.3 s without working and was killed"
    ):
        compile_shared(TEXT, PLAIN, tmp_path / "a.so", timeout=0.3)
    deadline = time.monotonic() + 5
    while left := [p for p in Path("/proc").glob("[0-9]*/cmdline") if b"7654.331" in _read(p)]:
        assert time.monotonic() < deadline, left


def _read(path):
    try:
        return path.read_bytes()
    except OSError:
        return b""


@pytest.mark.parametrize(
    ("damage", "fault"),
    [
        ("truncate -s -1", "truncated"),
        ("truncate -s 5000", "truncated"),
        ("truncate -s 70", "truncated"),
        ("truncate -s 20", "20 bytes are too few"),
        ("truncate -s 0", "0 bytes are too few"),
        ("rm", "No such file"),
        ("$real -x c -c /dev/null -o", "ELF type 1 instead of 3"),
        ("dd if=/dev/zero count=40 status=none of=", "no little-endian 64-bit ELF header"),
    ],
)
def test_an_incomplete_output_is_refused(fake, tmp_path, damage, fault):
    gap = "" if damage.endswith("=") else " "
    fake(f'$real "$@" && {damage}{gap}"$(out "$@")"')
    with pytest.raises(BuildError, match=rf"wrote no usable shared object: .*{fault}"):
        compile_shared(TEXT, PLAIN, tmp_path / "a.so")


def test_every_truncation_of_a_library_is_noticed(tmp_path):
    whole = tmp_path / "a.so"
    compile_shared(TEXT, PLAIN, whole)
    assert fault_of(whole) is None
    data = whole.read_bytes()
    cut = tmp_path / "cut.so"
    for size in [*range(0, len(data), 97), len(data) - 1]:
        cut.write_bytes(data[:size])
        assert fault_of(cut), size
    with pytest.raises(BuildError, match=r"cut\.so: not a usable shared object: truncated"):
        load(cut, "int answer(void);")


def test_a_library_for_another_machine_is_refused(tmp_path):
    compile_shared(TEXT, PLAIN, tmp_path / "a.so")
    data = bytearray((tmp_path / "a.so").read_bytes())
    data[18] ^= 0xFF  # e_machine
    (tmp_path / "a.so").write_bytes(data)
    assert "built for ELF machine" in fault_of(tmp_path / "a.so")


def test_openmp_is_lacking_only_if_all_else_works(fake):
    assert not lacks_openmp(_real())
    fake('case "$*" in *-fopenmp*) exit 1;; esac; $real "$@"')
    assert lacks_openmp(find_compiler())
    fake("exit 1", version="broken")
    assert not lacks_openmp(find_compiler())


def _real():
    return compiler.identified(shutil.which("cc"), ())


INTRINSICS = "#include <immintrin.h>\n" + TEXT


@pytest.fixture(autouse=True)
def no_header(tmp_path):
    yield
    shutil.rmtree(tmp_path / "headers", ignore_errors=True)  # 25 MB a test
    precompiled.forget_all()


@pytest.fixture
def header(tmp_path):
    """A folder with the precompiled header of the default flags."""
    found = precompiled.header_for(_real(), PLAIN, tmp_path / "headers")
    if found is None:
        pytest.skip("this compiler makes no precompiled header")
    return found


@pytest.mark.exhaustive
def test_the_header_is_compiled_once_and_used(tmp_path, header):
    made = header.with_name(header.name + ".gch").stat().st_mtime_ns
    precompiled.forget_all()
    assert precompiled.header_for(_real(), PLAIN, tmp_path / "headers") == header
    assert header.with_name(header.name + ".gch").stat().st_mtime_ns == made
    poisoned = header.parent / header.name
    poisoned.write_text("#error the compiled form is not used\n")
    compile_shared(INTRINSICS, PLAIN, tmp_path / "a.so", compiler=_real(), header=header)


@pytest.mark.exhaustive
def test_a_damaged_header_is_made_again(tmp_path, header):
    compiled = header.with_name(header.name + ".gch")
    data = bytearray(compiled.read_bytes())
    data[len(data) // 2] ^= 1
    compiled.write_bytes(data)
    precompiled.forget_all()
    other = precompiled.header_for(_real(), PLAIN, tmp_path / "headers")
    assert other is not None and other != header


@pytest.mark.exhaustive
def test_a_header_cut_short_by_a_kill_is_not_used(tmp_path, header):
    (header.parent / "sha256").unlink()
    precompiled.forget_all()
    assert precompiled.header_for(_real(), PLAIN, tmp_path / "headers") not in (None, header)


def test_no_header_is_no_trouble(fake, tmp_path, caplog):
    fake('case "$*" in *c-header*) exit 1;; esac; $real "$@"')
    with caplog.at_level(logging.DEBUG):
        assert precompiled.header_for(find_compiler(), PLAIN, tmp_path / "headers") is None
    assert not caplog.records
    assert list((tmp_path / "headers").glob("*-*")) == []
    (tmp_path / "file").write_text("")
    assert precompiled.header_for(find_compiler(), PLAIN, tmp_path / "file") is None


@pytest.mark.exhaustive
def test_while_another_process_makes_the_header_texts_go_without(tmp_path):
    (tmp_path / "headers").mkdir()
    with (tmp_path / "headers/lock").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert precompiled.header_for(_real(), PLAIN, tmp_path / "headers") is None
    assert precompiled.header_for(_real(), PLAIN, tmp_path / "headers") is not None
