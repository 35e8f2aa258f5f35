"""The policy of a cache directory: what a file may say, and what is done without one."""

import json
from pathlib import Path

import pytest

from polysci.errors import SpecError
from polysci.runtime.policy import FILE, Policy, read_policy


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("POLYSCI_CACHE_DIR", str(tmp_path))
    tmp_path.chmod(0o700)
    return tmp_path / FILE


def test_everything_is_done_without_a_file(file: Path) -> None:
    assert read_policy() == Policy(True, True, True)


def test_a_file_says_what_is_not_done(file: Path) -> None:
    file.write_text(json.dumps({"first_runs": False, "disturbance": True}))
    assert read_policy() == Policy(first_runs=False)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("{", "not JSON"),
        ("[" * 100000, "not JSON"),
        ("[]", "expected an object with members of first_runs, kept_networks, disturbance"),
        ('{"firstruns": false}', "expected an object with members of"),
        ('{"first_runs": 0}', "first_runs: expected true or false"),
    ],
)
def test_a_file_that_is_no_policy_is_refused_by_name(file: Path, text: str, fault: str) -> None:
    file.write_text(text)
    with pytest.raises(SpecError, match=f"{FILE}: {fault}"):
        read_policy()


def test_others_do_not_decide(file: Path) -> None:
    file.write_text('{"first_runs": false}')
    file.parent.chmod(0o777)
    assert read_policy().first_runs
