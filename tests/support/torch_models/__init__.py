"""Models in plain torch with random weights: families that PyTorch users have, small or whole."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn

from tests.support.torch_models import attention, classifiers, images, sequences


@dataclass(frozen=True, slots=True)
class ModuleCase:
    """A model, its inputs, and what makes both small.

    ``shapes`` are those of the inputs of the whole model, without the batch; ``small_shapes`` of
    the small one. ``words``: of how many an input of integers chooses, 0 for one of reals.
    """

    make: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    small_shapes: tuple[tuple[int, ...], ...]
    small: Mapping[str, Any] = field(default_factory=dict)
    arguments: tuple[int, ...] = ()
    words: tuple[int, int] = (0, 0)

    def module(self, *, small: bool = True) -> Any:
        """In inference; batch norms have statistics as after training."""
        torch.manual_seed(0)
        module = self.make(*self.arguments, **(self.small if small else {})).eval()
        for part in module.modules():
            if isinstance(part, nn.modules.batchnorm._BatchNorm):
                part.running_mean.normal_(0, 0.1)
                part.running_var.uniform_(0.5, 2)
        return module

    def inputs(self, batch: int = 2, *, small: bool = True) -> tuple[Any, ...]:
        torch.manual_seed(1)
        words, shapes = self.words[small], self.small_shapes if small else self.shapes
        return tuple(
            torch.randint(0, words, (batch, *shape)) if words and len(shape) < 2
            else torch.rand(batch)
            if not shape
            else torch.randn(batch, *shape)
            for shape in shapes
        )  # fmt: skip


def _image(make: Any, side: int = 224, own: int = 40, c: int = 3, **small: Any) -> ModuleCase:
    return ModuleCase(make, ((c, side, side),), ((c, own, own - 8 * (own > 32)),), small)


def _text(make: Any, length: int, words: int, **small: Any) -> ModuleCase:
    return ModuleCase(make, ((length,),), ((12,),), {**small, "words": 50}, words=(words, 50))


C, P, A, S = classifiers, images, attention, sequences
_FEW = {"width": 8, "depths": (1, 2, 1), "classes": 10}
_ROWS = ((1, 16, 1, 1, 3), (6, 24, 2, 2, 5))
_ENCODER = {"width": 32, "heads": 4, "depth": 2}
MODULES: Mapping[str, ModuleCase] = {
    "mlp": ModuleCase(S.mlp, ((784,),), ((784,),), {}, (784, 512, 10)),
    "resnet18": _image(C.resnet18, width=8, classes=10),
    "resnet50": _image(C.bottlenecks, **_FEW),
    "resnext50": _image(partial(C.bottlenecks, group=4, inner=2), **{**_FEW, "group": 2}),
    "se_resnet50": _image(partial(C.bottlenecks, squeeze=True), **_FEW),
    "regnet": _image(C.regnet, widths=(16, 32), depths=(1, 2), group=8, classes=10),
    "mobilenet_v2": _image(C.mobilenet_v2, rows=C.V2[:2], first=8, last=64, classes=10),
    "mobilenet_v3": _image(C.mobilenet_v3, rows=C.V3[1:8:2], last=64, head=48, classes=10),
    "efficientnet_b0": _image(C.efficientnet_b0, rows=_ROWS, last=64, classes=10),
    "vgg16": _image(C.vgg16, own=32, width=4, size=32, inner=32, classes=10),
    "alexnet": _image(C.alexnet, own=72, width=8, inner=32, classes=10),
    "squeezenet": _image(C.squeezenet, width=4, classes=10),
    "shufflenet_v2": _image(C.shufflenet_v2, widths=(16, 24, 32), last=64, classes=10),
    "googlenet": _image(C.googlenet, rows=[(8, 8, 12, 4, 8, 4)] * 3, classes=10),
    "xception": _image(C.xception, widths=(16, 24), middle=1, last=32, classes=10),
    "densenet121": _image(C.densenet121, own=48, growth=8, depths=(2, 3), classes=10),
    "convnext_t": _image(C.convnext_t, own=32, widths=(16, 32), depths=(1, 1), classes=10),
    "convmixer": _image(C.convmixer, own=32, width=16, depth=2, size=5, classes=10),
    "unet": _image(P.UNet, 128, width=4, depth=3),
    "diffusion": ModuleCase(
        P.DiffusionUNet, ((3, 64, 64), ()), ((3, 12, 16), ()), {"width": 16}
    ),
    "deeplab": _image(P.DeepLabHead, width=8),
    "fpn": _image(P.FeaturePyramid, width=8, out=8),
    "yolo": _image(P.YoloHead, width=8, classes=3),
    "centernet": _image(P.CenterNetHead, width=8, classes=3),
    "hrnet": _image(P.Fuse, width=8),
    "srcnn": _image(P.srcnn, 128, 24, 1, width=16),
    "edsr": _image(P.edsr, 64, 16, width=8, depth=2),
    "dcgan": ModuleCase(P.dcgan, ((100,),), ((12,),), {"width": 4, "noise": 12}),
    "style_transfer": _image(P.style_transfer, 128, 24, width=4, depth=1),
    "autoencoder": _image(P.autoencoder, 64, 24, width=8),
    "vae": _image(P.VAE, 32, 16, width=8, size=16, latent=6),
    "siamese": ModuleCase(
        P.Siamese, ((3, 96, 96),) * 2, ((3, 24, 20),) * 2, {"width": 8, "out": 12}
    ),
    "volumes": ModuleCase(P.volumes, ((3, 16, 64, 64),), ((3, 8, 16, 12),), {"width": 4}),
    "dqn": ModuleCase(
        P.DuelingDQN, ((4, 84, 84),), ((4, 36, 36),), {"width": 4, "size": 36, "inner": 16}
    ),
    "spatial_transformer": _image(P.STN, 64, 24, width=8),
    "vit_ti": _image(A.ViT, own=32, patch=8, size=32, classes=10, **_ENCODER),
    "swin": _image(A.SwinBlock, own=32, width=16, heads=2, window=2, size=8),
    "bert_mini": _text(A.Bert, 128, 30522, most=20, **_ENCODER),
    "whisper": ModuleCase(
        A.Whisper, ((80, 3000),), ((10, 24),), {**_ENCODER, "mels": 10, "length": 12}
    ),
    "llama": _text(A.Llama, 64, 1000, width=32, heads=4),
    "t5": _text(A.T5, 64, 1000, width=32, heads=4),
    "mixer": _image(A.mixer, own=32, width=16, depth=2, patch=8, size=32),
    "gmlp": ModuleCase(
        A.GatedMLP, ((64, 128),), ((12, 16),), {"width": 16, "inner": 32, "length": 12}
    ),
    "linear_attention": ModuleCase(
        A.LinearAttention, ((256, 256), ()), ((12, 16), ()), {"width": 16}, words=(256, 12)
    ),
    "cross_attention": ModuleCase(
        A.CrossAttention, ((64, 256), (100, 256)), ((6, 16), (9, 16)), {"width": 16}
    ),
    "pointnet": ModuleCase(A.PointNet, ((3, 1024),), ((3, 32),), {"width": 4, "classes": 5}),
    "tagger": _text(S.Tagger, 64, 5000, width=12, hidden=16),
    "gru_encoder": _text(S.Encoder, 64, 5000, width=12, hidden=16),
    "crnn": ModuleCase(S.CRNN, ((1, 32, 128),), ((1, 8, 24),), {"width": 8, "classes": 7}),
    "wavenet": ModuleCase(S.WaveNet, ((1, 4000),), ((1, 40),), {"width": 8, "depth": 3}),
    "tcn": ModuleCase(S.TCN, ((64, 400),), ((8, 30),), {"width": 8, "depth": 3}),
    "textcnn": _text(S.TextCNN, 64, 5000, width=12, filters=6),
    "charcnn": ModuleCase(S.CharCNN, ((1014,),), ((40,),), {"width": 16}, words=(70, 70)),
    "keywords": ModuleCase(S.keywords, ((1, 98, 40),), ((1, 30, 12),), {"width": 8}),
    "ncf": ModuleCase(
        S.NCF, ((2,),), ((2,),), {"width": 8, "users": 30, "things": 30}, words=(1000, 30)
    ),
    "tied_autoencoder": ModuleCase(
        S.TiedAutoencoder, ((784,),), ((20,),), {"c": 20, "inner": 12, "code": 5}
    ),
}  # fmt: skip
