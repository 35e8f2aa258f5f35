"""One page about a network: its layers' schedules, rates and bounds, and where time goes."""

from polysci.report.model import Layer, Report, layer_of
from polysci.report.page import page

__all__ = ["Layer", "Report", "layer_of", "page"]
