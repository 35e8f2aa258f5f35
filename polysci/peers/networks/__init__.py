"""Libraries that run whole ONNX models, each at its best, beside our compiled network."""
