"""The token model: LlamaGen's architecture and parameter names, for classes and captions, any size.

The condition (class or caption) is a prefix whose queries and keys are exactly zero, since its
rotary cosines and sines are zero. Its tokens therefore attend uniformly, and everything after it
sees the whole prefix as one virtual position: key 0, attention bias log(n), the mean of n values.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fleet.models.caption import PAD_ID

NORM_EPS = 1e-5
ROPE_BASE = 10000.0


@dataclass(frozen=True)
class TransformerConfig:
    """Sizes of a token model.

    With classes (`n_class` above 0) the condition is one class, with words (`n_word`) a caption's
    word ids, with neither a caption's ready features.
    """

    n_layer: int
    n_head: int
    dim: int
    ffn: int
    vocab_size: int
    grid: int
    n_word: int
    caption_length: int = 16
    caption_dim: int = 128
    dropout: float = 0.0
    n_class: int = 0

    @property
    def head_dim(self) -> int:
        """Return the width of one attention head."""
        return self.dim // self.n_head

    @property
    def n_token(self) -> int:
        """Return the number of tokens of one image."""
        return self.grid * self.grid


@dataclass(frozen=True)
class Condition:
    """A caption, collapsed to what decoding needs of it; exact, not an approximation."""

    value: Tensor  # [L, B, H, head_dim], mean of the valid caption positions' values
    log_n: Tensor  # [B], the log of their number: the virtual position's attention bias
    start: Tensor  # [B, D], output hidden state of the last caption position


class RMSNorm(nn.Module):
    """Root mean square normalisation, in fp32 whatever the input."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        scale = torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + NORM_EPS)
        return (wide * scale).type_as(x) * self.weight


class CaptionProjection(nn.Module):
    """Two layers from caption features to the model's width."""

    def __init__(self, caption_dim: int, dim: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(caption_dim, dim, bias=False)
        self.fc2 = nn.Linear(dim, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        projected: Tensor = self.fc2(F.gelu(self.fc1(x), approximate="tanh"))
        return projected


class ClassEmbedding(nn.Module):
    """One vector a class; the last row stands for no class."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.embedding_table = nn.Embedding(config.n_class + 1, config.dim)

    def forward(self, classes: Tensor) -> Tensor:
        """Return the prefix [B, 1, D] of classes [B]; `n_class` is no class."""
        embedded: Tensor = self.embedding_table(classes)
        return embedded[:, None]


class CaptionEmbedding(nn.Module):
    """Caption features, of the words if there is a word table, and the features of no caption."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.cap_proj = CaptionProjection(config.caption_dim, config.dim)
        length, width = config.caption_length, config.caption_dim
        self.uncond_embedding = nn.Parameter(torch.randn(length, width) / width**0.5)
        if config.n_word > 0:
            self.word_embedding = nn.Embedding(config.n_word, width)
            self.position_embedding = nn.Embedding(length, width)

    def features(self, captions: Tensor) -> Tensor:
        """Return the features [B, C, caption_dim] of left-padded word ids [B, C]."""
        features: Tensor = self.word_embedding(captions) + self.position_embedding.weight
        return features

    def forward(self, features: Tensor, unconditional: Tensor | None = None) -> Tensor:
        if unconditional is not None:  # [B], True where the caption is withheld
            chosen = unconditional[:, None, None]
            features = torch.where(chosen, self.uncond_embedding.type_as(features), features)
        projected: Tensor = self.cap_proj(features)
        return projected


class Attention(nn.Module):
    """Multi-head attention in two halves, so that every engine mixes rows in its own way."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.n_head = config.n_head
        self.wqkv = nn.Linear(config.dim, 3 * config.dim, bias=False)
        self.wo = nn.Linear(config.dim, config.dim, bias=False)

    def project(self, x: Tensor, rotation: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return rotated queries, rotated keys and values, each [B, H, T, head_dim]."""
        batch, length, dim = x.shape
        q, k, v = self.wqkv(x).split(dim, dim=-1)
        shape = (batch, length, self.n_head, dim // self.n_head)
        q, k = rotate(q.view(shape), rotation), rotate(k.view(shape), rotation)
        return q.transpose(1, 2), k.transpose(1, 2), v.view(shape).transpose(1, 2)

    def merge(self, mixed: Tensor) -> Tensor:
        """Return the output [B, T, D] of mixed values [B, H, T, head_dim]."""
        merged: Tensor = self.wo(mixed.transpose(1, 2).flatten(2))
        return merged


class FeedForward(nn.Module):
    """SwiGLU."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.w1 = nn.Linear(config.dim, config.ffn, bias=False)
        self.w3 = nn.Linear(config.dim, config.ffn, bias=False)
        self.w2 = nn.Linear(config.ffn, config.dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.w2(F.silu(self.w1(x)) * self.w3(x))
        return result


class TransformerBlock(nn.Module):
    """One layer: `project` before the attention, `finish` after it."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.attention = Attention(config)
        self.feed_forward = FeedForward(config)
        self.attention_norm = RMSNorm(config.dim)
        self.ffn_norm = RMSNorm(config.dim)
        self.dropout = nn.Dropout(config.dropout)

    def project(self, x: Tensor, rotation: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values [B, H, T, head_dim] of the layer's input [B, T, D]."""
        return self.attention.project(self.attention_norm(x), rotation)

    def finish(self, x: Tensor, mixed: Tensor) -> Tensor:
        """Return the layer's output from its input and the mixed values [B, H, T, head_dim]."""
        x = x + self.dropout(self.attention.merge(mixed))
        result: Tensor = x + self.dropout(self.feed_forward(self.ffn_norm(x)))
        return result


class Transformer(nn.Module):
    """The token model; `forward` for training, `condition` and `span` for decoding."""

    rotation: Tensor  # [C + T, head_dim / 2, 2]

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.cls_embedding: CaptionEmbedding | ClassEmbedding
        self.cls_embedding = _condition_embedding(config)
        self.tok_embeddings = nn.Embedding(config.vocab_size, config.dim)
        self.layers = nn.ModuleList(TransformerBlock(config) for _ in range(config.n_layer))
        self.norm = RMSNorm(config.dim)
        self.output = nn.Linear(config.dim, config.vocab_size, bias=False)
        table = rotation_table(config.caption_length, config.grid, config.head_dim)
        self.register_buffer("rotation", table, persistent=False)
        self._initialise()

    @property
    def blocks(self) -> list[TransformerBlock]:
        """Return the layers, typed."""
        return [block for block in self.layers if isinstance(block, TransformerBlock)]

    @property
    def captions(self) -> CaptionEmbedding:
        """Return what embeds captions, of a model that has them."""
        assert isinstance(self.cls_embedding, CaptionEmbedding)
        return self.cls_embedding

    @property
    def classes(self) -> ClassEmbedding:
        """Return what embeds classes, of a model that has them."""
        assert isinstance(self.cls_embedding, ClassEmbedding)
        return self.cls_embedding

    def forward(
        self,
        tokens: Tensor,  # [B, T], the image's first T tokens
        captions: Tensor,  # [B, C] word ids, left-padded
        unconditional: Tensor | None = None,  # [B], True where the caption is withheld
        input_feature: Tensor | None = None,  # [B, T, D], added to the token embeddings
    ) -> tuple[Tensor, Tensor]:
        """Return hidden states [B, T + 1, D] and logits [B, T + 1, V] of tokens 0 to T."""
        features, valid = self.captions.features(captions), captions != PAD_ID
        return self.forward_features(tokens, features, valid, unconditional, input_feature)

    def forward_features(
        self,
        tokens: Tensor,  # [B, T]
        features: Tensor,  # [B, C, caption_dim]
        valid: Tensor,  # [B, C], False at padding
        unconditional: Tensor | None = None,
        input_feature: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Do what `forward` does, from ready caption features."""
        hidden = self.hidden_features(tokens, features, valid, unconditional, input_feature)
        return hidden, self.output(hidden).float()

    def hidden(
        self, tokens: Tensor, captions: Tensor, unconditional: Tensor | None = None
    ) -> Tensor:
        """Return the hidden states [B, T + 1, D] alone, for those who need few of the logits."""
        features, valid = self.captions.features(captions), captions != PAD_ID
        return self.hidden_features(tokens, features, valid, unconditional)

    def hidden_features(
        self,
        tokens: Tensor,
        features: Tensor,
        valid: Tensor,
        unconditional: Tensor | None = None,
        input_feature: Tensor | None = None,
    ) -> Tensor:
        """Do what `hidden` does, from ready caption features."""
        prefix = self.captions(features, unconditional)
        return self.hidden_prefix(prefix, valid, tokens, input_feature)

    def hidden_prefix(
        self,
        prefix: Tensor,  # [B, C, D], an embedded condition
        valid: Tensor,  # [B, C]
        tokens: Tensor,  # [B, T]
        input_feature: Tensor | None = None,
    ) -> Tensor:
        """Do what `hidden` does, from an embedded condition."""
        x = torch.cat([prefix, self.embed(tokens, input_feature)], dim=1)
        length = x.shape[1]
        mask = prefix_mask(valid, length)
        for block in self.blocks:
            q, k, v = block.project(x, self.rotation[:length])
            x = block.finish(x, F.scaled_dot_product_attention(q, k, v, attn_mask=mask))
        hidden: Tensor = self.norm(x[:, self.config.caption_length - 1 :])
        return hidden

    def embed(self, tokens: Tensor, input_feature: Tensor | None = None) -> Tensor:
        """Return the token embeddings [B, T, D] plus the input feature."""
        embedded: Tensor = self.tok_embeddings(tokens)
        return embedded if input_feature is None else embedded + input_feature

    def condition(self, captions: Tensor, unconditional: Tensor | None = None) -> Condition:
        """Collapse left-padded captions [B, C] of word ids."""
        features, valid = self.captions.features(captions), captions != PAD_ID
        return self.condition_features(features, valid, unconditional)

    def condition_features(
        self, features: Tensor, valid: Tensor, unconditional: Tensor | None = None
    ) -> Condition:
        """Do what `condition` does, from features [B, C, caption_dim] and validity [B, C]."""
        return self.condition_prefix(self.captions(features, unconditional), valid)

    def condition_classes(self, classes: Tensor) -> Condition:
        """Collapse classes [B]; `n_class` is no class, the unconditional branch of guidance."""
        prefix = self.classes(classes)
        return self.condition_prefix(prefix, torch.ones_like(prefix[:, :, 0], dtype=torch.bool))

    def condition_prefix(self, x: Tensor, valid: Tensor) -> Condition:
        """Do what `condition` does, from an embedded condition [B, C, D]."""
        # Caption position i attends uniformly to the valid positions up to i, and itself.
        weights = prefix_mask(valid, x.shape[1]).type_as(x)  # [B, 1, C, C]
        weights = weights / weights.sum(dim=-1, keepdim=True)
        values = []
        for block in self.blocks:
            _, _, v = block.project(x, self.rotation[: x.shape[1]])
            mixed = weights @ v
            # The last position sees every valid one: its mixture is the virtual value.
            values.append(mixed[:, :, -1])
            x = block.finish(x, mixed)
        start = self.norm(x[:, -1])
        return Condition(torch.stack(values), valid.sum(dim=1).float().log(), start)

    def span(
        self,
        tokens: Tensor,  # [B, T], the tokens at positions P to P + T - 1 of the image
        past: Tensor,  # [L, 2, B, H, P, head_dim], keys and values of the tokens before
        condition: Condition,
        input_feature: Tensor | None = None,  # [B, T, D]
    ) -> tuple[Tensor, Tensor]:
        """Return hidden states [B, T, D] and the new rows [L, 2, B, H, T, head_dim].

        Hidden state i predicts the token at position P + i + 1.
        """
        length = tokens.shape[1]
        first = self.config.caption_length + past.shape[4]
        rotation = self.rotation[first : first + length]
        bias = span_bias(condition.log_n, past.shape[4], length)
        x, rows = self.embed(tokens, input_feature), []
        for block, before, value in zip(self.blocks, past, condition.value, strict=True):
            q, k, v = block.project(x, rotation)
            rows.append(torch.stack([k, v]))
            keys = torch.cat([torch.zeros_like(k[:, :, :1]), before[0], k], dim=2)
            values = torch.cat([value[:, :, None], before[1], v], dim=2)
            mixed = F.scaled_dot_product_attention(q, keys, values, attn_mask=bias)
            x = block.finish(x, mixed)
        hidden: Tensor = self.norm(x)
        return hidden, torch.stack(rows)

    def _initialise(self) -> None:
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)
        nn.init.zeros_(self.output.weight)


def _condition_embedding(config: TransformerConfig) -> CaptionEmbedding | ClassEmbedding:
    return ClassEmbedding(config) if config.n_class else CaptionEmbedding(config)


def rotate(x: Tensor, rotation: Tensor) -> Tensor:
    """Turn interleaved pairs of x [B, T, H, head_dim] by the table [T, head_dim / 2, 2]."""
    pairs = x.float().unflatten(-1, (-1, 2))
    cos, sin = rotation[:, None, :, 0], rotation[:, None, :, 1]
    first, second = pairs[..., 0], pairs[..., 1]
    turned = torch.stack([first * cos - second * sin, second * cos + first * sin], dim=-1)
    return turned.flatten(-2).type_as(x)


def rotation_table(caption_length: int, grid: int, head_dim: int) -> Tensor:
    """Return cosines and sines [C + grid², head_dim / 2, 2]; zeros, not identity, for captions."""
    half = head_dim // 2
    frequencies = ROPE_BASE ** (-torch.arange(0, half, 2).float() / half)
    angles = torch.arange(grid).float()[:, None] * frequencies  # [grid, head_dim / 4]
    rows = angles[:, None].expand(grid, grid, -1)
    columns = angles[None, :].expand(grid, grid, -1)
    cells = torch.cat([rows, columns], dim=-1).flatten(0, 1)  # [grid², head_dim / 2]
    table = torch.stack([cells.cos(), cells.sin()], dim=-1)
    return torch.cat([torch.zeros(caption_length, half, 2), table])


def prefix_mask(valid: Tensor, length: int) -> Tensor:
    """Return what may be attended to [B, 1, length, length]: causal, no padding, always itself."""
    causal = torch.ones(length, length, dtype=torch.bool, device=valid.device).tril()
    columns = F.pad(valid, (0, length - valid.shape[1]), value=True)[:, None, :]
    itself = torch.eye(length, dtype=torch.bool, device=valid.device)
    return (causal & columns | itself)[:, None]


def span_bias(log_n: Tensor, past: int, length: int) -> Tensor:
    """Return the attention bias [B, 1, length, 1 + past + length] of a span after `past` rows."""
    causal = torch.full((length, length), float("-inf"), device=log_n.device).triu(1)
    seen = F.pad(causal, (past, 0))[None, None].expand(log_n.shape[0], 1, -1, -1)
    virtual = log_n[:, None, None, None].expand(-1, 1, length, 1)
    return torch.cat([virtual, seen], dim=-1)


def guide(conditional: Tensor, unconditional: Tensor, guidance: float) -> Tensor:
    """Return guided logits, LlamaGen's formula; a guidance of 1 or less is no guidance."""
    if guidance <= 1:
        return conditional
    return unconditional + (conditional - unconditional) * guidance
