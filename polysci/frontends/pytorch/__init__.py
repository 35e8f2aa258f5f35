"""Programs of torch.export as graphs: ATen's operators become the graph's, one function a kind."""
