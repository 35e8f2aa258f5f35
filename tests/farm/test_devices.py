"""Workers that take times on devices, and records of what they find."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from distributed import Client, LocalCluster

from polysci.errors import FarmError
from polysci.farm import connect, optimize_all
from polysci.ops.matmul import Matmul
from polysci.runtime.backends import device_named
from polysci.runtime.measurement import host_of
from polysci.tune import optimize
from polysci.tune.wisdom import Wisdom
from tests.farm.test_workers import scheduler, workers
from tests.support.any_device import at_hand
from tests.support.command import done, polysci

PROBLEM = Matmul(12, 16, 32)


@pytest.fixture(scope="module")
def device() -> Iterator[str]:
    with at_hand("opencl:0") as name:
        yield name


def cluster(**resources: int) -> LocalCluster:
    """A worker with these resources, in a thread of this process."""
    return LocalCluster(
        n_workers=1, threads_per_worker=1, processes=False, resources=resources,
        dashboard_address=":0",
    )  # fmt: skip


def test_times_of_a_device_are_recorded_by_it(device: str, tmp_path: Path) -> None:
    wisdom, target = Wisdom(tmp_path / "farm.sqlite"), device_named(device)
    assert target is not None
    with cluster(**{"timing": 1, f"device-{device}": 1}) as local, Client(local) as client:
        farm = connect(client)
        (machine,) = farm.machines
        assert machine.is_device and machine.target == target
        (found,) = optimize_all([PROBLEM], farm, wisdom=wisdom, time_limit=8)
    assert found.result is not None, found.fault
    assert found.result.threads == target.cores and "opencl" in str(found.result.schedule)
    records = wisdom.list()
    assert records and {record.host for record in records} == {host_of(target)}
    assert all("OpenCL" in record.compiler or "Portable" in record.compiler for record in records)
    again = optimize(PROBLEM, "wisdom-only", target.cores, target=target, wisdom=wisdom)
    assert again.schedule == found.result.schedule


def test_a_device_that_is_not_there_is_named(device: str) -> None:
    why = r"no device opencl:97; there are: opencl:0 "
    with (
        cluster(**{"timing": 1, "device-opencl:97": 1}) as local,
        Client(local) as client,
        pytest.raises(FarmError, match=why),
    ):
        connect(client)
    ran = polysci("farm", "worker", "tcp://127.0.0.1:1", "--device", "opencl:97")
    assert ran.returncode == 1
    assert ran.stderr.startswith("polysci: error: no device opencl:97; there are: opencl:0 ")


@pytest.mark.exhaustive
def test_the_command_starts_a_worker_for_a_device(device: str, tmp_path: Path) -> None:
    with scheduler(tmp_path) as (_, address), workers(address, {}, words=("--device", device)):
        with Client(address) as client:
            client.wait_for_workers(1)
        row = json.loads(done("farm", "status", address, "--json"))
        assert row["machine"].startswith(f"{device} ") and row["timing"] == "1"
        problem = ["mb1ic8ih7oc8kh1", "--level", "measure", "--time-limit", "10"]
        table = done("optimize", *problem, "--scheduler", address)
        assert "opencl" in table and "FAILED" not in table
