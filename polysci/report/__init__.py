"""One page about a network: its layers' schedules, rates and bounds, and where time goes."""

from polysci.report.model import Report, ReportLayer, layer_of
from polysci.report.page import page

__all__ = ["Report", "ReportLayer", "layer_of", "page"]
