"""Train networks: forward pass, backward pass and update as one C library."""

from polysci.graph.optimizers import SGD, Adam
from polysci.training.gradcheck import gradcheck
from polysci.training.trainer import Trainer, compile_training

__all__ = ["SGD", "Adam", "Trainer", "compile_training", "gradcheck"]
