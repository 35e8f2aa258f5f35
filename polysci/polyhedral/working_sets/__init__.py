"""Working sets: what a loop order keeps between two uses of an element, counted exactly by isl."""

from polysci.polyhedral.working_sets.exact import CONVENTIONS, WorkingSet, working_sets
from polysci.polyhedral.working_sets.order import (
    Order,
    Share,
    text_order,
    thread_share,
    tiled_order,
)

__all__ = [
    "CONVENTIONS",
    "Order",
    "Share",
    "WorkingSet",
    "text_order",
    "thread_share",
    "tiled_order",
    "working_sets",
]
