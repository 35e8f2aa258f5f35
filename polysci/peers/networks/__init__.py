"""Libraries that run whole ONNX models, with their fastest settings, to compare with."""
