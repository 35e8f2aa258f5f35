"""Our network in a process of its own: ``python -m polysci.network.service``."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from polysci.measure.disturbance import observe
from polysci.measure.network_samples import LoadedModel, ModelService, mean_seconds, measure_samples
from polysci.network.runner import cut_results, restore
from polysci.numerics import arrays as aligned
from polysci.numerics.arrays import Array
from polysci.runtime.worker_process import serve


class Compiled(ModelService):
    """The operations; a process loads one network."""

    operations: Final = ("load", "sample")

    def load(self, folder: str, inputs: str, outputs: str) -> dict[str, Any]:
        """Load what ``runner.save`` wrote to ``folder`` and run it on the .npz of ``inputs``.

        ``outputs`` names the .npz to write, as arr_0... ``peak_bytes``: as the peers count it.
        """
        with np.load(inputs) as file:
            arrays_in = [aligned.copy(file[f"arr_{index}"]) for index in range(len(file.files))]
        loaded, peak = measure_samples(partial(_load_model, Path(folder), arrays_in))
        arrays = loaded.outputs()
        self.keep(loaded, arrays, outputs)
        return {"peak_bytes": peak, "outputs": len(arrays)}

    def sample(self, warm_up_s: float, min_sample_s: float) -> dict[str, Any]:
        """Return seconds a run, of runs that fill ``min_sample_s``, after such of ``warm_up_s``.

        Beside them the shares of a ``Sample`` that this process knows.
        """
        mean_seconds(self._run, warm_up_s)
        seconds, shares = observe(lambda: mean_seconds(self._run, min_sample_s))
        return {"seconds": seconds, **shares}


def _load_model(folder: Path, arrays: list[Array]) -> LoadedModel:
    runner = restore(folder)
    results = runner.results()
    run = runner.bind(runner.context(), arrays, results)

    def outputs() -> list[Array]:
        return [array.copy() for array in cut_results(runner.outputs, results).values()]

    return LoadedModel(run, outputs)


def main() -> None:
    """Answer questions until stdin ends."""
    service = Compiled()
    serve(service, service.operations)


if __name__ == "__main__":
    main()
