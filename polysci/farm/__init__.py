"""Searches on many machines, through dask.distributed.

Needs the extra: ``pip install 'polysci[farm]'``.
"""

try:
    import distributed as _distributed
except ModuleNotFoundError as error:
    if error.name not in ("distributed", "dask"):
        raise
    raise ModuleNotFoundError(
        "polysci.farm needs dask.distributed: pip install 'polysci[farm]'", name=error.name
    ) from None

from polysci.farm.cluster import Farm, FarmMachine, FarmTasks, connect
from polysci.farm.tuning import FarmResult, optimize_all

__all__ = [
    "Farm",
    "FarmMachine",
    "FarmResult",
    "FarmTasks",
    "connect",
    "optimize_all",
]
del _distributed
