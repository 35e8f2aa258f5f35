"""Programs of torch.export as graphs: ATen's operators become ONNX's, one function a kind."""
