"""Searches on many machines, through dask.distributed."""

from polysci.farm.cluster import Farm, FarmError, FarmMachine, FarmTasks, connect
from polysci.farm.tuning import FarmResult, optimize_all

__all__ = [
    "Farm",
    "FarmError",
    "FarmMachine",
    "FarmResult",
    "FarmTasks",
    "connect",
    "optimize_all",
]
