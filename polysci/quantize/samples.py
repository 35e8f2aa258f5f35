"""Samples for calibration: arrays of an .npz file, cut into the inputs of one run each."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from os import PathLike

import numpy as np

from polysci.border.files import open_stored
from polysci.errors import SpecError
from polysci.network.runner import TensorPort
from polysci.numerics.arrays import Array

Sample = Mapping[str, Array]


def read_arrays(path: str | PathLike[str]) -> dict[str, Array]:
    """Return the arrays of an .npz file. Raises SpecError that names the file."""
    where = f"data {str(path)!r:.200}"
    try:
        with open_stored(path) as opened:
            file = np.load(opened, allow_pickle=False)
            if not isinstance(file, np.lib.npyio.NpzFile):
                raise SpecError(f"{where}: expected an .npz file of arrays, not one array")
            with file:
                return {name: file[name] for name in file.files}
    except (OSError, EOFError, ValueError, AttributeError, zipfile.BadZipFile) as error:
        raise SpecError(f"{where}: expected an .npz file of arrays: {error}") from None


def samples_of(arrays: Mapping[str, Array], ports: Sequence[TensorPort]) -> list[Sample]:
    """Return the inputs of each run.

    An array has the shape of its input, for one run; that shape behind an axis of samples; or
    several times the first axis of the input. One of a single sample goes with all samples of
    others. Raises SpecError for arrays that are missing, of no use, empty, or of other shapes.
    """
    names = [port.name for port in ports]
    for what, wrong, others in (("lacks", names, arrays), ("has no use for", arrays, names)):
        if missing := [name for name in wrong if name not in others]:
            raise SpecError(f"data: {what} {missing[0]!r:.200}; expected arrays {names!r:.400}")
    parts = {port.name: _parts(port, np.asarray(arrays[port.name])) for port in ports}
    counts = {name: len(part) for name, part in parts.items()}
    most = max(counts.values(), default=0)
    for name, count in counts.items():
        if count not in (1, most):
            raise SpecError(f"data: {name!r:.200} has {count} samples, another input {most}")
    return [
        {name: part[at if len(part) > 1 else 0] for name, part in parts.items()}
        for at in range(most)
    ]


def _parts(port: TensorPort, array: Array) -> Array:
    """Return an array with an axis of samples before those of the input, of the input's type."""
    shape, where = tuple(port.shape), f"data: {port.name!r:.200}"
    dtype = np.dtype("float32" if port.dtype == "bf16" else port.dtype)
    if array.dtype != dtype and not (array.dtype.kind == dtype.kind == "f"):
        raise SpecError(f"{where} is of {array.dtype}, expected {dtype}")
    if not array.size:
        raise SpecError(f"{where} has shape {array.shape}: no samples")
    if not np.isfinite(array).all() if array.dtype.kind == "f" else False:
        raise SpecError(f"{where} has numbers that are not finite")
    whole = array.astype(dtype, copy=False)
    if array.shape == shape:
        return whole[None]
    if array.shape[1:] == shape:
        return whole
    if shape and array.shape[1:] == shape[1:] and array.shape[0] % shape[0] == 0:
        return whole.reshape(-1, *shape)
    more = f" or (SAMPLES, {', '.join(map(str, shape))})"
    raise SpecError(f"{where} has shape {array.shape}, expected {shape}{more}")
