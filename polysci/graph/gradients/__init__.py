"""Gradient rules, one function an operator: gradients of its outputs to those of its inputs."""
