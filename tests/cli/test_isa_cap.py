"""--isa and POLYSCI_ISA: what they cap, through the command line and from Python."""

import argparse
import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from polysci import compile, optimize
from polysci.cli import COMMANDS, parser
from polysci.errors import SpecError
from polysci.ops import parse_problem
from polysci.runtime.measurement import host_of
from polysci.target.host import detect
from polysci.target.isas import ISAS, caps, up_to
from polysci.target.machine import assume_rates
from polysci.tune.calibrate import load_rates, machine_path
from polysci.tune.wisdom import Wisdom
from tests.support import command
from tests.support.rates import write_rates

LAYER = "mb1ic8ih10oc24oh10kh3ph1"
PLANS = {
    "portable": "k:4 p q:5 > brgemm_portable_f32_5x4",
    "avx2": "k:8 p q:5 > brgemm_avx2_f32_5x8",
    "avx512": "k:16 p q:5 > brgemm_avx512_f32_5x16",
}
pytestmark = pytest.mark.isa("avx2")
avx512 = pytest.mark.isa("avx512")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache directory with assumed rates for every instruction set, and no cap."""
    monkeypatch.setenv("POLYSCI_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("POLYSCI_ISA", raising=False)
    tmp_path.chmod(0o700)
    for isa in detect().allowed:
        machine_path(detect(isa)).write_text(assume_rates(detect(isa)).to_json())
    return tmp_path


def polysci(*words: str, cap: str = "") -> subprocess.CompletedProcess[str]:
    return command.polysci(*words, POLYSCI_ISA=cap)


def layer(*words: str, cap: str = "") -> dict[str, object]:
    """What optimize says of the layer."""
    ran = polysci("optimize", LAYER, "--json", *words, cap=cap)
    assert ran.returncode == 0, ran.stderr
    found: dict[str, object] = json.loads(ran.stdout.splitlines()[0])
    return found


def records(*isas: str) -> None:
    """What measuring them left: the better the faster."""
    for at, isa in enumerate(isas):
        target = detect(isa)
        Wisdom().record(
            parse_problem(LAYER, "nhwc").key, 1, target.isa.features, "measure", PLANS[isa],
            1e-5 / (at + 1), host=host_of(target), isa=isa,
        )  # fmt: skip


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("option", "variable", "taken"),
    [
        ("avx2", "", "avx2"),
        ("", "avx2", "avx2"),
        ("portable", "avx2", "portable"),
        ("avx2", "portable", "portable"),
    ],
)
def test_the_lower_cap_counts(cache: Path, option: str, variable: str, taken: str) -> None:
    words = ["--isa", option] if option else []
    found = layer("--level", "estimate", *words, cap=variable)
    assert f"_{taken}_" in str(found["schedule"])


@avx512
def test_a_record_belongs_to_its_instruction_set(cache: Path) -> None:
    records("portable", "avx2", "avx512")
    for isa in ("portable", "avx2", "avx512"):
        rates = assume_rates(detect(isa))
        assert layer("--level", "wisdom-only", "--isa", isa)["peak_gflops"] is None  # assumed
        write_rates(replace(rates, measured=True), detect(isa), "f32")
        found = layer("--level", "wisdom-only", "--isa", isa)
        assert (found["schedule"], found["peak_gflops"]) == (PLANS[isa], rates.peak)
    assert layer("--level", "wisdom-only", cap="avx2")["schedule"] == PLANS["avx2"]
    told = polysci("explain", LAYER, "--isa", "avx2", "--json")
    assert json.loads(told.stdout)["schedule"] == PLANS["avx2"], told.stderr


@pytest.mark.exhaustive
@avx512
def test_a_better_ones_record_is_neither_taken_nor_tried(cache: Path) -> None:
    records("avx512")
    ran = polysci("optimize", LAYER, "--level", "wisdom-only", "--isa", "avx2")
    assert ran.returncode == 1 and "no record for" in ran.stdout + ran.stderr
    result = optimize(parse_problem(LAYER, "nhwc"), "measure", isa="avx2", time_limit=0.1)
    assert result.trials and all("_avx2_" in one.schedule.kernel for one in result.trials)
    assert "avx512" not in result.source.file


@pytest.mark.exhaustive
def test_the_peak_is_that_of_the_capped_one(cache: Path) -> None:
    """The higher of what was calibrated and what is measured now: here the former."""
    target = detect("portable")
    rates = replace(assume_rates(target), peak=12345.0, measured=True)
    machine_path(target).write_text(rates.to_json())
    assert machine_path(target) != machine_path(detect("avx2"))
    assert layer("--isa", "portable", "--time-limit", "0.1")["peak_gflops"] == 12345.0
    peak = layer("--isa", "avx2", "--time-limit", "0.1")["peak_gflops"]
    assert isinstance(peak, float) and 0 < peak < 12345.0
    assert load_rates(target) == rates


def with_isa() -> dict[str, argparse.ArgumentParser]:
    """The commands that take --isa, actions of commands among them."""
    found: dict[str, argparse.ArgumentParser] = {}
    queue = [("", parser())]
    for name, words in queue:
        for action in words._actions:
            if isinstance(action, argparse._SubParsersAction):
                queue += [(f"{name} {key}".strip(), sub) for key, sub in action.choices.items()]
        if "--isa" in words._option_string_actions:
            found[name] = words
    return found


@pytest.mark.exhaustive
def test_every_command_has_the_cap_and_its_help_lists_the_table() -> None:
    found = with_isa()
    names = {module.__name__.rsplit(".", 1)[-1] for module in COMMANDS}
    assert names - {name.split()[0] for name in found} == {"quantize"}  # its file is for any CPU
    for name, words in found.items():
        told = words._option_string_actions["--isa"].help or ""
        assert told.endswith(", ".join(ISAS)), name
        assert "POLYSCI_ISA" in told


@pytest.mark.parametrize("words", [*with_isa()])
def test_an_unknown_one_is_one_clear_error(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        parser().parse_args([*words.split(), "--isa", "avx9"])
    assert end.value.code == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert f"argument --isa: no instruction set 'avx9'; known: {', '.join(ISAS)}" in last


@avx512
@pytest.mark.parametrize("action", ["check", "explain"])
def test_a_schedule_above_the_cap_is_refused(cache: Path, action: str) -> None:
    ran = polysci(action, LAYER, "--schedule", PLANS["avx512"], cap="avx2")
    assert ran.returncode == 2 and ran.stdout == ""
    assert (
        "--schedule: brgemm_avx512_f32_5x16 is above avx2, to which --isa or POLYSCI" in ran.stderr
    )


@avx512
def test_what_the_cap_hides_is_said(cache: Path) -> None:
    told = polysci("machine", "--isa", "avx2").stdout
    assert "ISAs that run" in told and "ISAs that a cap hides" in told
    assert "a cap hides" not in polysci("machine").stdout
    for words, cap, remedy in (
        (("doctor", "--wide"), "avx2", "unset POLYSCI_ISA"),
        (("doctor", "--isa", "avx2", "--wide"), "", "leave out --isa"),
    ):
        told = polysci(*words, cap=cap).stdout
        hidden = ", ".join(map(str, reversed(detect("avx2").hidden)))
        assert f"avx2 (portable, scalar as well), capped; the cap hides {hidden}" in told
        assert f": {remedy}\n" in told
    assert "capped" not in polysci("doctor").stdout


@avx512
def test_wisdom_lists_what_is_allowed(cache: Path) -> None:
    records("portable", "avx2", "avx512")
    assert len(polysci("wisdom", "list").stdout.splitlines()) == 1 + 3
    told = polysci("wisdom", "list", "--isa", "avx2").stdout
    assert len(told.splitlines()) == 1 + 2 and "avx512" not in told


@pytest.mark.exhaustive
def test_from_python(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prim = compile(LAYER, "estimate", isa="portable")
    assert "_portable_" in prim.schedule.kernel
    with pytest.raises(SpecError, match="isa 'avx2': the target has one"):
        optimize(parse_problem(LAYER, "nhwc"), "estimate", target=detect(), isa="avx2")
    with pytest.raises(SpecError, match="no instruction set 'mmx'; known: scalar, portable, "):
        compile(LAYER, "estimate", isa="mmx")
    monkeypatch.setenv("POLYSCI_ISA", "portable")
    assert "_portable_" in compile(LAYER, "estimate", isa="avx2").schedule.kernel
    assert list(caps("avx2").values()) == [ISAS["avx2"], ISAS["portable"]]
    assert detect().allowed == up_to(ISAS["portable"]) and ISAS["avx2"] in detect().hidden


@pytest.mark.exhaustive
@avx512
def test_an_export_of_several_obeys_the_cap(cache: Path, tmp_path: Path) -> None:
    out = tmp_path / "net"
    words = ("export", LAYER, "-o", str(out), "--level", "estimate", "--isas")
    for option, cap, setter in (((), "avx2", "POLYSCI_ISA"), (("--isa", "avx2"), "", "--isa")):
        ran = polysci(*words, "avx2,avx512", *option, cap=cap)
        assert ran.returncode == 2
        assert f"--isas: avx512 is above avx2, the cap of {setter}" in ran.stderr
    for given, told in (("avx9", "known: scalar, portable"), ("avx2,avx2", "stands there twice")):
        assert told in polysci(*words, given).stderr
    assert "one instruction set" in polysci(*words, "avx2", "--python").stderr
    assert not out.exists()
    assert polysci(*words, "portable,avx512,avx2").returncode == 0
    ran = subprocess.run(["make", "-C", str(out), "check"], capture_output=True, text=True)
    assert "choice: 3 passed" in ran.stdout and "\n9 passed, 0 failed\n" in ran.stdout, ran.stderr
