"""Searches on many machines, through dask.distributed."""

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
