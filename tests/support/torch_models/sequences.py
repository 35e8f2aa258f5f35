"""Models of texts, sounds, tables and plain vectors."""

from itertools import pairwise
from typing import Any

import torch
from torch import nn

from tests.support.torch_models.blocks import conv

F = nn.functional


class Tagger(nn.Module):
    """A bidirectional LSTM over words."""

    def __init__(self, width: int = 128, hidden: int = 256, words: int = 5000) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.lstm = nn.LSTM(width, hidden, 2, batch_first=True, bidirectional=True)
        self.tags = nn.Linear(2 * hidden, 17)

    def forward(self, words: Any) -> Any:
        return F.log_softmax(self.tags(self.lstm(self.words(words))[0]), -1)


class Encoder(nn.Module):
    """A GRU's states, and its last one for a decoder."""

    def __init__(self, width: int = 128, hidden: int = 256, words: int = 5000) -> None:
        super().__init__()
        self.words, self.gru = nn.Embedding(words, width), nn.GRU(width, hidden, bidirectional=True)
        self.bridge = nn.Linear(2 * hidden, hidden)

    def forward(self, words: Any) -> Any:
        y, last = self.gru(self.words(words).transpose(0, 1))
        return y, torch.tanh(self.bridge(torch.cat([last[-2], last[-1]], 1)))


class CRNN(nn.Module):
    """Text in images: columns of a convolutional network are the steps of an LSTM."""

    def __init__(self, width: int = 64, classes: int = 37) -> None:
        super().__init__()
        self.body = nn.Sequential(conv(1, width), nn.MaxPool2d(2), conv(width, 2 * width),
                                  nn.MaxPool2d((2, 1)), conv(2 * width, 2 * width),
                                  nn.AdaptiveAvgPool2d((1, None)))  # fmt: skip
        self.lstm = nn.LSTM(2 * width, width, bidirectional=True)
        self.last = nn.Linear(2 * width, classes)

    def forward(self, x: Any) -> Any:
        y, _ = self.lstm(self.body(x).squeeze(2).permute(2, 0, 1))
        return self.last(y).log_softmax(2)


class WaveNet(nn.Module):
    """Gated convolutions of growing dilation, causal, with skips."""

    def __init__(self, width: int = 64, depth: int = 8) -> None:
        super().__init__()
        self.first, self.last = nn.Conv1d(1, width, 1), nn.Conv1d(width, 256, 1)
        self.gates = nn.ModuleList(
            nn.Conv1d(width, 2 * width, 2, dilation=1 << at % 6) for at in range(depth)
        )
        self.out = nn.ModuleList(nn.Conv1d(width, 2 * width, 1) for _ in range(depth))

    def forward(self, x: Any) -> Any:
        y, total = self.first(x), 0
        for gate, out in zip(self.gates, self.out, strict=True):
            a, b = gate(F.pad(y, (gate.dilation[0], 0))).chunk(2, 1)
            more, skip = out(torch.tanh(a) * torch.sigmoid(b)).chunk(2, 1)
            y, total = y + more, total + skip
        return self.last(F.relu(total))


class Chomp(nn.Module):
    """Leaves out what lies behind the last step."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count

    def forward(self, x: Any) -> Any:
        return x[:, :, : -self.count].contiguous()


class TCN(nn.Module):
    """Causal convolutions with weight norm, which is a parametrisation."""

    def __init__(self, width: int = 64, depth: int = 4) -> None:
        super().__init__()
        norm = torch.nn.utils.parametrizations.weight_norm
        self.blocks = nn.ModuleList(
            nn.Sequential(norm(nn.Conv1d(width, width, 3, padding=2 << at, dilation=1 << at)),
                          Chomp(2 << at), nn.ReLU(), nn.Dropout(0.1))
            for at in range(depth)
        )  # fmt: skip
        self.last = nn.Linear(width, 10)

    def forward(self, x: Any) -> Any:
        for block in self.blocks:
            x = F.relu(x + block(x))
        return self.last(x[:, :, -1])


class TextCNN(nn.Module):
    """Windows of several widths over words, the largest of each."""

    def __init__(self, width: int = 128, words: int = 5000, filters: int = 100) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.convs = nn.ModuleList(nn.Conv2d(1, filters, (size, width)) for size in (3, 4, 5))
        self.last = nn.Linear(3 * filters, 5)

    def forward(self, words: Any) -> Any:
        x = self.words(words)[:, None]
        parts = [F.relu(layer(x)).squeeze(3) for layer in self.convs]
        pools = [F.max_pool1d(part, part.shape[2]).squeeze(2) for part in parts]
        return self.last(torch.cat(pools, 1))


class CharCNN(nn.Module):
    """Letters, one-hot, through convolutions over time."""

    def __init__(self, width: int = 256, letters: int = 70) -> None:
        super().__init__()
        self.letters = letters
        self.body = nn.Sequential(nn.Conv1d(letters, width, 7), nn.ReLU(), nn.MaxPool1d(3),
                                  nn.Conv1d(width, width, 3), nn.ReLU(), nn.AdaptiveMaxPool1d(1)
        )  # fmt: skip
        self.last = nn.Linear(width, 4)

    def forward(self, letters: Any) -> Any:
        x = (letters[:, None] == torch.arange(self.letters)[None, :, None]).float()
        return self.last(self.body(x.to(self.last.weight.dtype)).flatten(1))


def keywords(width: int = 64, classes: int = 12) -> Any:
    """DS-CNN: spotted words in a spectrum."""
    layers = [nn.Conv2d(1, width, (10, 4), 2, (5, 1), bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    for _ in range(4):
        layers += [conv(width, width, groups=width), conv(width, width, 1)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, classes))


class NCF(nn.Module):
    """Users and things: factors beside an MLP."""

    def __init__(self, width: int = 64, users: int = 1000, things: int = 2000) -> None:
        super().__init__()
        self.users, self.things = (nn.ModuleList(nn.Embedding(count, width) for _ in range(2))
                                   for count in (users, things))  # fmt: skip
        self.mlp = nn.Sequential(nn.Linear(2 * width, width), nn.ReLU(), nn.Linear(width, width))
        self.last = nn.Linear(2 * width, 1)

    def forward(self, pairs: Any) -> Any:
        user, thing = pairs.unbind(1)
        factors = self.users[0](user) * self.things[0](thing)
        deep = self.mlp(torch.cat([self.users[1](user), self.things[1](thing)], 1))
        return torch.sigmoid(self.last(torch.cat([factors, deep], 1))).squeeze(1)


def mlp(*sizes: int) -> Any:
    layers = [part for c, k in pairwise(sizes)
              for part in (nn.Linear(c, k), nn.ReLU())]  # fmt: skip
    return nn.Sequential(*layers[:-1])


class TiedAutoencoder(nn.Module):
    """An MLP and its transpose: the same weights."""

    def __init__(self, c: int = 784, inner: int = 256, code: int = 32) -> None:
        super().__init__()
        self.wide, self.narrow = nn.Linear(c, inner), nn.Linear(inner, code)
        self.shifts = nn.ParameterList([torch.randn(inner), torch.randn(c)])

    def forward(self, x: Any) -> Any:
        y = self.narrow(F.selu(self.wide(x)))
        y = F.selu(F.linear(y, self.narrow.weight.T, self.shifts[0]))
        return torch.sigmoid(F.linear(y, self.wide.weight.T, self.shifts[1]))
