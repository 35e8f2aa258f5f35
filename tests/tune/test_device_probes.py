"""Probes of devices do the work that they are said to: what they compute counts it."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from polysci.runtime.backend import Backend
from polysci.runtime.backends import backend_of
from polysci.target.isas import DEVICE_ISAS
from polysci.target.machine import COPIES, WRITES
from polysci.target.target import KIB, MIB, Memory, Target
from polysci.tune import device_probes
from polysci.tune.device_probes import (
    CHAINS,
    Cores,
    DeviceProbe,
    Groups,
    ProbeFile,
    launches_file,
    probe_files,
)
from tests.support.any_device import at_hand
from tests.support.cuda_emulation import NAME as EMULATED

TURNS = 3
SMALL = (Memory("L1", 32 * KIB), Memory("L2", 64 * KIB, cores=0))
MEMORY = Memory("memory", MIB * 8, cores=0, kind="global")
LOCAL = Memory("local", 48 * KIB, kind="local")


@pytest.fixture(autouse=True)
def small_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_probes, "LEAST_BYTES", MIB)
    monkeypatch.setattr(device_probes, "GROUPS", 1)


def target_on(name: str, *, grouped: bool) -> tuple[Target, Backend]:
    """A device with small memories, as one of groups or of cores."""
    from polysci.runtime.backends import backend_named

    backend = backend_named(name)
    (target,) = backend.targets()
    memories = (*SMALL, *[LOCAL] * grouped, MEMORY)
    isa = DEVICE_ISAS["opencl4"] if grouped and name.startswith("opencl") else target.isa
    return replace(target, isa=isa, memories=memories, cores=2), backend


def outputs(backend: Backend, file: ProbeFile, probe: DeviceProbe, turns: int = TURNS) -> list[Any]:
    """The buffers of floats after a run of so many turns, which began as ones."""
    path = backend.build(file.text, symbols=[it.name for it in file.probes])
    library = backend.load(path, "")
    arrays = [np.ones(-(-size // 4), np.float32) for size in probe.sizes]
    places = [library.copy_in("float32")(array) for array in arrays]
    library.function(probe.name)(turns, *places)
    assert library.copy_out
    for place, array in zip(places, arrays, strict=True):
        library.copy_out(place, array)
    return arrays


def work_of(target: Target, probe: DeviceProbe, arrays: list[Any]) -> float:
    """What a turn did, by the numbers that it left: operations of a unit, or bytes."""
    (_, y), grouped = arrays, target.local is not None
    move = probe.name.partition("_")[0]
    if move in ("writes", "copies"):
        changed = np.count_nonzero(y == TURNS - 1) if move == "writes" else y.size
        return 4.0 * changed * (2 if move == "copies" else 1)
    first = sum(range(CHAINS if move == "products" else 4))
    sums = (y[y != 1] - first) / TURNS  # of each lane of each item: ones are untouched
    if move == "products":
        return float(2 * sums.sum() / (target.cores if grouped else 1))
    units = 1 if probe.figure == "memory_all" or not grouped else target.cores
    return float(4 * sums.sum() / units)


@pytest.mark.parametrize(("name", "grouped"), [
    ("opencl:0", False), pytest.param("opencl:0", True, marks=pytest.mark.exhaustive),
    pytest.param(EMULATED, True, marks=pytest.mark.exhaustive),
])  # fmt: skip
def test_rates_are_those_of_the_work_that_is_done(name: str, grouped: bool) -> None:
    with at_hand(name):
        target, backend = target_on(name, grouped=grouped)
        file = (Groups(target) if grouped else Cores(target)).rates()
        figures = {probe.figure for probe in file.probes}
        assert {"peak", "memory_all", WRITES, COPIES} <= figures
        assert ("local" in figures, "l2" in figures) == (grouped, not grouped)
        for probe in file.probes:
            if probe.figure == "local":
                continue  # what it reads are other numbers
            arrays = outputs(backend, file, probe)
            assert work_of(target, probe, arrays) == probe.amount, probe.name


def test_groups_read_their_memory_as_often_as_is_counted() -> None:
    with at_hand("opencl:0"):
        target, backend = target_on("opencl:0", grouped=True)
        file = Groups(target).rates()
        (probe,) = (it for it in file.probes if it.figure == "local")
        _, y = outputs(backend, file, probe)
        items = np.arange(device_probes.ITEMS)[:, None, None]
        turn, read = np.arange(TURNS)[:, None], np.arange(device_probes.SHARED_READS)
        places = items + turn + read * device_probes.ITEMS
        sums = (places % device_probes.SHARED).sum((1, 2)) + 6
        assert np.array_equal(y.reshape(-1, device_probes.ITEMS, 4)[0, :, 0], sums)
        assert probe.amount == 16.0 * device_probes.SHARED_READS * device_probes.ITEMS


@pytest.mark.parametrize("name", ["opencl:0", pytest.param(EMULATED, marks=pytest.mark.exhaustive)])
def test_products_of_words_are_exact(name: str) -> None:
    with at_hand(name):
        target, backend = target_on(name, grouped=True)
        (file, *_) = Groups(target).products()
        (probe,) = file.probes
        _, y = outputs(backend, file, probe)
        item = np.arange(y.size // 4)
        b = (item.astype(np.uint32) * np.uint32(0x01030507)).view(np.int8).reshape(-1, 4)
        word, sums = item.astype(np.uint32), np.full(item.shape, sum(range(CHAINS)))
        for _ in range(TURNS):
            word = word * np.uint32(1664525) + np.uint32(1013904223)
            for chain in range(CHAINS):
                a = (word + np.uint32(chain)).view(np.int8).reshape(-1, 4)
                sums = sums + (a.astype(int) * b).sum(1)
        assert np.array_equal(y.view(np.int32)[::4], sums)


@pytest.mark.exhaustive
def test_products_of_matrices_of_warps_are_counted() -> None:
    with at_hand(EMULATED):
        target, backend = target_on(EMULATED, grouped=True)
        (_, file) = Groups(target).products()
        (probe,) = file.probes
        _, first = outputs(backend, file, probe, 1)
        _, second = outputs(backend, file, probe, 2)
        assert (second > first).any()
        warps = device_probes.ITEMS // 32
        assert probe.amount == warps * 8 * 2 * 16 * 8 * 16


@pytest.mark.exhaustive
def test_register_tiles_of_cores_run() -> None:
    """Each adds its products: twice as many turns give twice the sums."""
    with at_hand("opencl:0"):
        target, backend = target_on("opencl:0", grouped=False)
        files = list(Cores(target).products())
        names = [probe.name for file in files for probe in file.probes]
        assert len(names) == len(set(names)) > 60
        file = files[0]
        for probe in file.probes:
            once, twice = (outputs(backend, file, probe, turns)[2] for turns in (1, 2))
            assert np.array_equal(2 * once, twice) and (once > 0).all()


def test_launches_do_the_same_work() -> None:
    with at_hand("opencl:0"):
        target, backend = target_on("opencl:0", grouped=False)
        file = launches_file(target)
        one, many = file.probes
        assert np.array_equal(outputs(backend, file, one)[1], outputs(backend, file, many)[1])


def test_files_of_probes_name_each_figure_once() -> None:
    with at_hand("opencl:0"):
        target, _ = target_on("opencl:0", grouped=False)
        figures = [probe.figure for file in probe_files(target) for probe in file.probes]
        assert len(figures) == len(set(figures))
        assert backend_of(target).name == target.backend
