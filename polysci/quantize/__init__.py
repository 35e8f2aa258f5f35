"""Networks in narrow types by data: quantised copies of ONNX models, and weights of products."""

from polysci.quantize.model import QuantizedModel, quantize_model
from polysci.quantize.weights import ChosenWeights, choose_weights

__all__ = ["ChosenWeights", "QuantizedModel", "choose_weights", "quantize_model"]
