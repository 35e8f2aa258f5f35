"""Inputs that are made up, of numbers that a network can compute with, or read from a file."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from itertools import count
from math import ceil, floor, inf
from os import PathLike
from typing import Any, Final

import numpy as np
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray

from polysci.border.files import open_stored
from polysci.errors import SpecError
from polysci.network.runner import TensorPort, check_inputs
from polysci.numerics.dtypes import array_type, to_bf16
from polysci.program.value_ranges import GUESSED, ValueRange

Array = NDArray[Any]
MOST: Final = 3  # the greatest whole number where nothing binds one


def inputs_of(ports: Sequence[TensorPort], seed: int = 0) -> dict[str, Array]:
    """An array for each input, by its name; the same seed gives the same numbers.

    Real numbers are normally distributed, whole ones of 8 bits any, others 0 to MOST, as far as the
    ports' ranges permit; positions, by the name of the input, count from 0.
    """
    random = np.random.default_rng(seed)
    return {port.name: _example(port, random) for port in ports}


def load_inputs(path: str | PathLike[str], ports: Sequence[TensorPort]) -> dict[str, Array]:
    """The arrays of an .npz file, by the names of the inputs.

    Raises SpecError that names the file and what it lacks, has too much, or has of another type or
    shape. ``arr_0`` and so on, as numpy.savez calls arrays without names, are the inputs in order.
    """
    told = f"{str(path)!r:.200}"
    try:
        with open_stored(path) as opened:
            file = np.load(opened, allow_pickle=False)
            if not isinstance(file, NpzFile):
                raise SpecError(f"input {told}: expected an .npz file of arrays, not one array")
            with file:
                arrays = {name: file[name] for name in file.files}
    except (OSError, EOFError, ValueError, AttributeError, zipfile.BadZipFile) as error:
        raise SpecError(f"input {told}: expected an .npz file of arrays: {error}") from None
    names = [port.name for port in ports]
    numbered = [f"arr_{at}" for at in range(len(names))]
    if set(arrays) == set(numbered) != set(names):
        arrays = {name: arrays[number] for name, number in zip(names, numbered, strict=True)}
    for what, wrong in (("lacks", [*names]), ("has no use for", [*arrays])):
        others = arrays if what == "lacks" else names
        if missing := [name for name in wrong if name not in others]:
            raise SpecError(
                f"input {told}: {what} {missing[0]!r:.200}; expected arrays {names!r:.400}"
            )
    try:
        return {port.name: check_inputs(port, arrays[port.name]) for port in ports}
    except (TypeError, ValueError) as error:
        raise SpecError(f"input {told}: {error}") from None


def _example(port: TensorPort, random: np.random.Generator) -> Array:
    kind = array_type(port.dtype)
    real = kind.kind == "f" or port.dtype == "bf16"
    wanted = port.range or ValueRange()
    if (real or kind.kind == "b") and wanted.weight == GUESSED:
        wanted = ValueRange()  # a comparison need not make a mask of it
    if real and not wanted.whole:
        values = _reals(wanted, port.shape, random)
    else:
        values = _whole_numbers(port, wanted, random)
    return to_bf16(values) if port.dtype == "bf16" else values.astype(kind)


def _reals(wanted: ValueRange, shape: tuple[int, ...], random: np.random.Generator) -> Array:
    """Normal ones, or such on one side of a limit, or even ones between two."""
    if wanted.single:
        return np.full(shape, wanted.low)
    if -inf < wanted.low and wanted.high < inf:
        return random.uniform(wanted.low, wanted.high, shape)
    normal = random.standard_normal(shape)
    if -inf < wanted.low:
        return wanted.low + np.abs(normal)
    return wanted.high - np.abs(normal) if wanted.high < inf else normal


def _whole_numbers(port: TensorPort, wanted: ValueRange, random: np.random.Generator) -> Array:
    low, high = _limits(port, wanted)
    if (
        "position" in port.name.lower()
        and port.shape
        and low <= 0 < port.shape[-1] <= wanted.high + 1
    ):
        return np.broadcast_to(np.arange(port.shape[-1]), port.shape)
    values = random.integers(low, high, port.shape, endpoint=True)
    if not wanted.without:
        return values
    other = next(value for value in count(low) if value not in wanted.without)
    return np.where(np.isin(values, wanted.without), other, values)


def _limits(port: TensorPort, wanted: ValueRange) -> tuple[int, int]:
    """The least and the greatest whole number of an input."""
    kind = array_type(port.dtype)
    least, most = (0, 1) if kind.kind == "b" else (0, MOST)
    if kind.kind in "iu" and kind.itemsize == 1:
        least, most = np.iinfo(kind).min, np.iinfo(kind).max
    if wanted.without and (wanted.low, wanted.high) == (-inf, inf):
        least, most = 0, max(1, floor(max(wanted.without)))
    if -inf < wanted.low:
        least = ceil(wanted.low)
        most = least + MOST
    if wanted.high < inf:
        most = floor(wanted.high)
        least = least if -inf < wanted.low else min(0, most)
    if least < 0 <= most and -inf < wanted.low < wanted.high:
        least = 0  # a place, of which some part of an expression counts from further ahead
    if kind.kind in "iu":
        limits = np.iinfo(kind)
        least, most = (min(max(value, limits.min), limits.max) for value in (least, most))
    if kind.kind == "b":
        least, most = (min(max(value, 0), 1) for value in (least, most))
    return int(least), int(max(least, most))
