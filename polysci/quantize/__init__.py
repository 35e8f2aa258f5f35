"""Quantised copies of ONNX models: ranges from data, QuantizeLinear around layers, and the loss."""

from polysci.quantize.model import QuantizedModel, quantize_model

__all__ = ["QuantizedModel", "quantize_model"]
