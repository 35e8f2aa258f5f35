"""Layers with their schedules -> files that work without polysci: a C project, a Python package."""

from polysci.export.layer_project import check_c, export_c
from polysci.export.layers import ExportedLayer, TunedProblem
from polysci.export.python_package import check_python, export_python

__all__ = ["ExportedLayer", "TunedProblem", "check_c", "check_python", "export_c", "export_python"]
