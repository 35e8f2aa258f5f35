"""Networks: ONNX models as graphs of fixed shapes, simplified."""
