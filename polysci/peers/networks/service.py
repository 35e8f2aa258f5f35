"""The workers of these peers: load a model in one of several ways and time it."""

from __future__ import annotations

import contextlib
import importlib
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from polysci.errors import CheckError, PolysciError, UnsupportedError
from polysci.measure.network_samples import ModelService, Way, mean_seconds, measure_samples
from polysci.peers import REMEDY

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class TimingRequest:
    """A model's file, its inputs by name, its free dimensions, threads and element type."""

    model: str
    inputs: Mapping[str, Array]
    dims: Mapping[str, int]
    threads: int
    dtype: str

    def expect(self, names: Sequence[str]) -> None:
        """Raise CheckError unless there is an array for each of the model's inputs."""
        if missing := [name for name in names if name not in self.inputs]:
            raise CheckError(f"{self.model}: input {missing[0]!r:.200} was not given")


class Service(ModelService, ABC):
    """The operations. A process loads one model in one way: threads of another would spin on."""

    package: str
    operations: Final = ("choices", "load", "sample")

    @abstractmethod
    def ways(self, library: Any, request: TimingRequest) -> Mapping[str, Way]:
        """The settings to try, by name, the likely best last.

        Raises UnsupportedError for an element type that the library does not support here.
        """

    def choices(self, **options: Any) -> dict[str, Any]:
        """The names of the ways; the arguments of ``load``."""
        library, request = self._library(), _read_request(**options)
        with self._translate_errors(library, request.model):
            return {"choices": list(self.ways(library, request))}

    def load(self, choice: str, outputs: str, **options: Any) -> dict[str, Any]:
        """Load and run by the way ``choice``; ``outputs`` names the .npz to write, as arr_0...

        ``options``: the model's path, ``dims``, ``threads``, ``dtype`` (f32, bf16), the .npz of the
        ``inputs`` as arr_0... and their ``names``. ``peak_bytes`` is the most resident memory over
        what the process had before, once the library was imported and the inputs were read.
        """
        library, request = self._library(), _read_request(**options)
        with self._translate_errors(library, request.model):
            way = self.ways(library, request)[choice]
            loaded, peak = measure_samples(way)
            arrays = loaded.outputs()
        for index, array in enumerate(arrays):
            if array.dtype.kind not in "biuf":
                raise UnsupportedError(f"output {index} has elements of {array.dtype}")
        self.keep(loaded, arrays, outputs)
        return {"version": _version(library), "peak_bytes": peak, "outputs": len(arrays)}

    def sample(self, warm_up_s: float, min_sample_s: float) -> dict[str, Any]:
        """Seconds a run, of the runs that fill ``min_sample_s``, after such of ``warm_up_s``."""
        mean_seconds(self._run, warm_up_s)
        return {"seconds": mean_seconds(self._run, min_sample_s)}

    def _library(self) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of its own dependencies
            try:
                return importlib.import_module(self.package)
            except (ImportError, OSError) as error:
                raise UnsupportedError(
                    f"{self.package} cannot be imported: {error}; {REMEDY}"
                ) from error

    @contextlib.contextmanager
    def _translate_errors(self, library: Any, model: str) -> Iterator[None]:
        try:
            yield
        except PolysciError:
            raise
        except Exception as error:  # each library has many of its own
            text = " ".join(str(error).split())
            raise CheckError(
                f"{self.package} {_version(library)}: {model}: {type(error).__name__}: {text:.500}"
            ) from error


def _read_request(
    *, model: str, dims: dict[str, int], threads: int, dtype: str, inputs: str, names: list[str]
) -> TimingRequest:
    with np.load(inputs) as file:  # numbered: NumPy has no place for some names
        arrays = {name: file[f"arr_{index}"] for index, name in enumerate(names)}
    return TimingRequest(model, arrays, dims, threads, dtype)


def _version(library: Any) -> str:
    return str(library.__version__).partition("-")[0]  # OpenVINO's has its build behind
