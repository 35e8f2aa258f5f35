"""Working sets: what a loop order keeps between two uses of an element, counted exactly by isl."""

from polysci.polyhedral.working_sets.exact import CONVENTIONS, WorkingSet, working_sets
from polysci.polyhedral.working_sets.order import (
    Order,
    Share,
    order_of_tiles,
    text_order,
    thread_share,
)

__all__ = [
    "CONVENTIONS",
    "Order",
    "Share",
    "WorkingSet",
    "order_of_tiles",
    "text_order",
    "thread_share",
    "working_sets",
]
