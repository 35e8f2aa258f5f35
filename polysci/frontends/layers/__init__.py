"""Models as lists of layers, by PyTorch's names: ``[Linear(784, 10), ReLU()]``."""

from polysci.frontends.layers.feedforward import (
    ELU,
    GELU,
    Hardswish,
    LeakyReLU,
    Mish,
    ReLU,
    Sigmoid,
    SiLU,
    Softplus,
    Tanh,
)
from polysci.frontends.layers.feedforward import AdaptiveAvgPool2dLayer as AdaptiveAvgPool2d
from polysci.frontends.layers.feedforward import AvgPool2dLayer as AvgPool2d
from polysci.frontends.layers.feedforward import BatchNorm1dLayer as BatchNorm1d
from polysci.frontends.layers.feedforward import BatchNorm2dLayer as BatchNorm2d
from polysci.frontends.layers.feedforward import Conv1dLayer as Conv1d
from polysci.frontends.layers.feedforward import Conv2dLayer as Conv2d
from polysci.frontends.layers.feedforward import ConvTranspose2dLayer as ConvTranspose2d
from polysci.frontends.layers.feedforward import DropoutLayer as Dropout
from polysci.frontends.layers.feedforward import FlattenLayer as Flatten
from polysci.frontends.layers.feedforward import GroupNormLayer as GroupNorm
from polysci.frontends.layers.feedforward import LayerNormLayer as LayerNorm
from polysci.frontends.layers.feedforward import LinearLayer as Linear
from polysci.frontends.layers.feedforward import MaxPool2dLayer as MaxPool2d
from polysci.frontends.layers.feedforward import ResidualLayer as Residual
from polysci.frontends.layers.feedforward import RMSNormLayer as RMSNorm
from polysci.frontends.layers.feedforward import SoftmaxLayer as Softmax
from polysci.frontends.layers.model import Layer, build_model
from polysci.frontends.layers.recurrent import GRU, LSTM, RNN

__all__ = [
    "ELU", "GELU", "GRU", "LSTM", "RNN", "AdaptiveAvgPool2d", "AvgPool2d", "BatchNorm1d",
    "BatchNorm2d", "Conv1d", "Conv2d", "ConvTranspose2d", "Dropout", "Flatten", "GroupNorm",
    "Hardswish", "Layer", "LayerNorm", "LeakyReLU", "Linear", "MaxPool2d", "Mish", "RMSNorm",
    "ReLU", "Residual", "SiLU", "Sigmoid", "Softmax", "Softplus", "Tanh", "build_model",
]  # fmt: skip
