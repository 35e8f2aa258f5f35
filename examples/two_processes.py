"""Train a small network with PyTorch's DistributedDataParallel and polysci's operators.

Two processes with half of every batch each have the losses of one process with all of it.

    python examples/two_processes.py
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import torch
from torch import Tensor, distributed, multiprocessing, nn
from torch.nn.parallel import DistributedDataParallel

import polysci.torch as ps

STEPS, BATCH, CLASSES = 20, 16, 4


class SmallNetwork(nn.Module):
    """Two convolutions and a linear layer, all computed by polysci."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 16, 3)
        self.classes = nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = ps.conv2d(x, self.first.weight, self.first.bias, stride=2, padding=1).relu()
        x = ps.conv2d(x, self.second.weight, self.second.bias, padding=1).relu()
        return ps.linear(x.mean((2, 3)), self.classes.weight, self.classes.bias)


def train(rank: int, processes: int, folder: str) -> None:
    """Learn a share of one batch, the same in every step; rank 0 writes the losses down."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model: nn.Module = SmallNetwork()
    x, target = torch.randn(BATCH, 3, 16, 16), torch.randint(0, CLASSES, (BATCH,))
    share = slice(rank * BATCH // processes, (rank + 1) * BATCH // processes)
    if processes > 1:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # both processes are on this machine
        distributed.init_process_group(
            "gloo", f"file://{folder}/store", rank=rank, world_size=processes
        )
        model = DistributedDataParallel(model)
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.5), []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x[share]), target[share])
        loss.backward()
        optimizer.step()
        loss = loss.detach()
        if processes > 1:
            distributed.all_reduce(loss)
        losses.append(loss.item() / processes)
    if not rank:
        torch.save(losses, Path(folder) / f"losses{processes}")
    if processes > 1:
        distributed.destroy_process_group()


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for processes in (1, 2):
            multiprocessing.spawn(train, (processes, folder), nprocs=processes)
        alone, together = (torch.load(Path(folder) / f"losses{count}") for count in (1, 2))
    print(f"loss {alone[0]:.3f}, after {STEPS} steps {alone[-1]:.3f}")
    difference = max(abs(one - other) for one, other in zip(alone, together, strict=True))
    print(f"largest difference of two processes from one: {difference:.1e}")


if __name__ == "__main__":
    main()
