"""Values of operators in NumPy, of those that ONNX lacks or whose reference is wrong."""
