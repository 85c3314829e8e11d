"""The convolutional VQ image tokenizer: LlamaGen's names; LlamaGen's and Chameleon's layouts."""

from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

NORM_EPS = 1e-6


@dataclass(frozen=True)
class ImageTokenizerConfig:
    """Sizes of the tokenizer.

    With `attention` there is one block in the middle, and with `level_attention` one after each
    residual block of the lowest resolution (LlamaGen; Chameleon has none). With `unit_codes`
    codes and features have length one (LlamaGen; Chameleon takes them as they are).
    """

    channels: int = 16
    channel_multipliers: tuple[int, ...] = (1, 2, 6)
    encoder_blocks: int = 1
    decoder_blocks: int = 1
    latent_channels: int = 96
    codebook_size: int = 1024
    code_width: int = 8
    norm_groups: int = 8
    attention: bool = False
    level_attention: bool = True
    unit_codes: bool = True

    @property
    def levels_attend(self) -> bool:
        """Return whether the lowest resolution attends after each block."""
        return self.attention and self.level_attention

    @property
    def downsampling(self) -> int:
        """Return how many pixels one token spans in each direction."""
        return int(2 ** (len(self.channel_multipliers) - 1))

    @property
    def widths(self) -> list[int]:
        """Return the channels of each level, full resolution first."""
        return [self.channels * factor for factor in self.channel_multipliers]


class ImageTokenizer(nn.Module):
    """Pictures [B, 3, H, W] in [-1, 1] to code ids [B, h*w] in row-major order, and back."""

    def __init__(self, config: ImageTokenizerConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = Encoder(config)
        self.quant_conv = nn.Conv2d(config.latent_channels, config.code_width, 1)
        self.quantize = Quantizer(config.codebook_size, config.code_width, unit=config.unit_codes)
        self.post_quant_conv = nn.Conv2d(config.code_width, config.latent_channels, 1)
        self.decoder = Decoder(config)

    def features(self, pictures: Tensor) -> Tensor:
        """Return features [B, code_width, h, w] before the lookup, as long as codes are."""
        features: Tensor = self.quant_conv(self.encoder(pictures))
        return F.normalize(features, dim=1) if self.config.unit_codes else features

    def encode(self, pictures: Tensor) -> Tensor:
        """Return the code ids [B, h*w] of pictures."""
        return self.quantize.nearest(self.features(pictures)).flatten(1)

    def decode_features(self, features: Tensor) -> Tensor:
        """Return pictures, unclamped, from code features [B, code_width, h, w]."""
        pictures: Tensor = self.decoder(self.post_quant_conv(features))
        return pictures

    def decode(self, ids: Tensor) -> Tensor:
        """Return pictures clamped to [-1, 1] from the code ids [B, h*w] of a square grid."""
        side = round(ids.shape[1] ** 0.5)
        codes = self.quantize.codes[ids]  # [B, h*w, code_width]
        grid = codes.transpose(1, 2).reshape(ids.shape[0], -1, side, side)
        return self.decode_features(grid).clamp(-1, 1)


class Quantizer(nn.Module):
    """A codebook, on the unit sphere or not."""

    def __init__(self, size: int, width: int, *, unit: bool) -> None:
        super().__init__()
        self.unit = unit
        self.embedding = nn.Embedding(size, width)

    @property
    def codes(self) -> Tensor:
        """Return the codes [size, width], each of length one on the unit sphere."""
        weight = self.embedding.weight
        return F.normalize(weight, dim=-1) if self.unit else weight

    def nearest(self, features: Tensor) -> Tensor:
        """Return the id [B, h, w] of the nearest code of features [B, width, h, w]."""
        alike = features.permute(0, 2, 3, 1) @ self.codes.T
        # On the sphere the nearest code is the one with the largest inner product; elsewhere
        # half the squares of the codes' lengths decide with it.
        return (alike if self.unit else alike - self.codes.square().sum(-1) / 2).argmax(dim=-1)


class ResnetBlock(nn.Module):
    """Two normalised convolutions beside a shortcut."""

    def __init__(self, inputs: int, outputs: int, groups: int) -> None:
        super().__init__()
        self.norm1 = nn.GroupNorm(groups, inputs, eps=NORM_EPS)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.norm2 = nn.GroupNorm(groups, outputs, eps=NORM_EPS)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1)
        if inputs != outputs:
            self.nin_shortcut = nn.Conv2d(inputs, outputs, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.conv1(F.silu(self.norm1(x)))
        h = self.conv2(F.silu(self.norm2(h)))
        shortcut = self.nin_shortcut(x) if hasattr(self, "nin_shortcut") else x
        result: Tensor = shortcut + h
        return result


class AttentionBlock(nn.Module):
    """Single-head attention over all cells of the grid."""

    def __init__(self, channels: int, groups: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(groups, channels, eps=NORM_EPS)
        self.q = nn.Conv2d(channels, channels, 1)
        self.k = nn.Conv2d(channels, channels, 1)
        self.v = nn.Conv2d(channels, channels, 1)
        self.proj_out = nn.Conv2d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        # Of one head [B, 1, h*w, C]: ONNX knows no attention without heads.
        flat = (layer(h).flatten(2).transpose(1, 2)[:, None] for layer in (self.q, self.k, self.v))
        mixed = F.scaled_dot_product_attention(*flat)[:, 0].transpose(1, 2).reshape(x.shape)
        result: Tensor = x + self.proj_out(mixed)
        return result


class Downsample(nn.Module):
    """Halve the resolution; padding only right and below, as LlamaGen does."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.conv(F.pad(x, (0, 1, 0, 1)))
        return result


class Upsample(nn.Module):
    """Double the resolution by repetition and a convolution, which leaves no checkerboard."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.conv(F.interpolate(x, scale_factor=2.0, mode="nearest"))
        return result


class Level(nn.Module):
    """The residual blocks of one resolution, and the change to the next."""

    def __init__(self, widths: tuple[int, int], blocks: int, groups: int, attention: bool) -> None:
        super().__init__()
        inputs, outputs = widths
        sizes = [inputs] + [outputs] * blocks
        self.res = nn.ModuleList(ResnetBlock(a, b, groups) for a, b in pairwise(sizes))
        count = blocks if attention else 0
        self.attn = nn.ModuleList(AttentionBlock(outputs, groups) for _ in range(count))

    def forward(self, x: Tensor) -> Tensor:
        for index, block in enumerate(self.res):
            x = block(x)
            if len(self.attn) > 0:
                x = self.attn[index](x)
        for name in ("downsample", "upsample"):
            if hasattr(self, name):
                x = getattr(self, name)(x)
        return x


def _middle(width: int, config: ImageTokenizerConfig) -> nn.ModuleList:
    """Return the blocks at the lowest resolution: residual, attention or nothing, residual."""
    groups = config.norm_groups
    between = AttentionBlock(width, groups) if config.attention else nn.Identity()
    return nn.ModuleList(
        [ResnetBlock(width, width, groups), between, ResnetBlock(width, width, groups)]
    )


class Encoder(nn.Module):
    """Pictures to latent channels, one level a halving."""

    def __init__(self, config: ImageTokenizerConfig) -> None:
        super().__init__()
        widths = config.widths
        groups, last = config.norm_groups, len(widths) - 1
        self.conv_in = nn.Conv2d(3, widths[0], 3, padding=1)
        self.conv_blocks = nn.ModuleList()
        for index, pair in enumerate(zip([widths[0], *widths], widths, strict=False)):
            attention = config.levels_attend and index == last
            level = Level(pair, config.encoder_blocks, groups, attention)
            if index != last:
                level.downsample = Downsample(pair[1])
            self.conv_blocks.append(level)
        self.mid = _middle(widths[-1], config)
        self.norm_out = nn.GroupNorm(groups, widths[-1], eps=NORM_EPS)
        self.conv_out = nn.Conv2d(widths[-1], config.latent_channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv_in(x)
        for block in [*self.conv_blocks, *self.mid]:
            x = block(x)
        result: Tensor = self.conv_out(F.silu(self.norm_out(x)))
        return result


class Decoder(nn.Module):
    """Latent channels to pictures; `conv_blocks.0` is the lowest resolution."""

    def __init__(self, config: ImageTokenizerConfig) -> None:
        super().__init__()
        widths = config.widths[::-1]
        groups, last = config.norm_groups, len(widths) - 1
        self.conv_in = nn.Conv2d(config.latent_channels, widths[0], 3, padding=1)
        self.mid = _middle(widths[0], config)
        self.conv_blocks = nn.ModuleList()
        for index, pair in enumerate(zip([widths[0], *widths], widths, strict=False)):
            attention = config.levels_attend and index == 0
            level = Level(pair, config.decoder_blocks, groups, attention)
            if index != last:
                level.upsample = Upsample(pair[1])
            self.conv_blocks.append(level)
        self.norm_out = nn.GroupNorm(groups, widths[-1], eps=NORM_EPS)
        self.conv_out = nn.Conv2d(widths[-1], 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv_in(x)
        for block in [*self.mid, *self.conv_blocks]:
            x = block(x)
        result: Tensor = self.conv_out(F.silu(self.norm_out(x)))
        return result


def to_unit(pixels: Tensor) -> Tensor:
    """Map uint8 pictures [B, H, W, 3] to [B, 3, H, W] in [-1, 1]."""
    return pixels.permute(0, 3, 1, 2).float() / 127.5 - 1


def to_pixels(pictures: Tensor) -> Tensor:
    """Map pictures [B, 3, H, W] in [-1, 1] to uint8 [B, H, W, 3]."""
    scaled = ((pictures.clamp(-1, 1) + 1) * 127.5).round()
    return scaled.to(torch.uint8).permute(0, 2, 3, 1)
