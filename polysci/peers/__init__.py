"""Other libraries, timed beside ours: each in a worker process of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal

Scope = Literal["layers", "networks"]
REMEDY: Final = "pip install 'polysci[peers]'"

_OPERATORS: Final = ("conv", "conv3d", "conv_backward_data", "conv_backward_weights", "matmul")


@dataclass(frozen=True, slots=True)
class Peer:
    """A library to compare with: its service ``module:class`` and the command that installs it.

    ``runs`` says what its service runs: single layers, or whole networks. ``operators`` are the
    rows of ``ops.OPS`` that it has, of those that are single layers. A peer without ``package``
    finds its library itself, when it is opened; ``takes_library``: its user may name the file.
    """

    name: str
    package: str
    service: str
    runs: Scope = "layers"
    install: str = REMEDY
    operators: tuple[str, ...] = ("conv",)
    takes_library: bool = False


PEERS: Mapping[str, Peer] = MappingProxyType(
    {
        peer.name: peer
        for peer in (
            Peer("torch", "torch", "polysci.peers.pytorch.service:PyTorch", operators=_OPERATORS),
            Peer(
                "onednn", "", "polysci.peers.onednn.service:OneDNN",
                operators=(*_OPERATORS, "conv1d"), takes_library=True,
            ),
            Peer(
                "onnxruntime", "onnxruntime",
                "polysci.peers.networks.onnxruntime:OnnxRuntime", "networks",
            ),
            Peer("openvino", "openvino", "polysci.peers.networks.openvino:OpenVINO", "networks"),
            Peer(
                "torch.nn", "torch", "polysci.peers.networks.torch_modules:TorchModules", "networks"
            ),
        )
    }
)  # fmt: skip
