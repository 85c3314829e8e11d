"""The token model: LlamaGen's architecture and parameter names, for classes and captions, any size.

The condition (class or caption) is a prefix whose queries and keys are exactly zero, since its
rotary cosines and sines are zero. Its tokens therefore attend uniformly, and everything after it
sees the whole prefix as one virtual position: key 0, attention bias log(n), the mean of n values.
"""

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fleet.models.caption import PAD_ID
from fleet.models.conditions import (
    CaptionEmbedding,
    ClassEmbedding,
    Condition,
    Prompt,
    PromptEmbedding,
)
from fleet.models.layers import (
    NORM_EPS,
    ROPE_BASE,
    Attention,
    FeedForward,
    HiddenHead,
    RMSNorm,
    TransformerBlock,
    grid_rotation,
    line_rotation,
)
from fleet.models.masks import prefix_bias, prefix_mask, span_bias
from fleet.models.sketch import CaptionSketch

ConditionEmbedding = CaptionEmbedding | ClassEmbedding | PromptEmbedding


@dataclass(frozen=True)
class TransformerConfig:
    """Sizes of a token model.

    With classes (`n_class` above 0) the condition is one class, with words (`n_word`) a caption's
    word ids, with neither a caption's ready features. With `has_prompt` it is a prompt of at most
    `caption_length` of `n_word` text tokens, which the image's tokens follow in one row
    (Chameleon); `qk_norm` normalises queries and keys of each head.

    With `head_hidden` the output has a hidden layer of that width before it, and a bias (Janus).

    To an image's tokens each position of a caption counts `caption_weight` times in attention: its
    key is zero, so three or four words are lost among 256 tokens otherwise.

    With `sketch_slots` captions of words have a sketch of so many vectors, `sketch_width` wide.
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
    has_prompt: bool = False
    qk_norm: bool = False
    norm_eps: float = NORM_EPS
    rope_base: float = ROPE_BASE
    caption_weight: int = 1
    head_hidden: int = 0
    sketch_slots: int = 0
    sketch_width: int = 64

    @property
    def head_dim(self) -> int:
        """Return the width of one attention head."""
        return self.dim // self.n_head

    @property
    def lead(self) -> int:
        """Return how many cells of a cache come before the image's: all of a prompt, or one."""
        return self.caption_length if self.has_prompt else 1

    @property
    def n_token(self) -> int:
        """Return the number of tokens of one image."""
        return self.grid * self.grid


class Transformer(nn.Module):
    """The token model; `forward` for training, `condition` and `span` for decoding."""

    rotation: Tensor  # [C + T, head_dim / 2, 2]

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.cls_embedding: ConditionEmbedding
        self.cls_embedding = _condition_embedding(config)
        self.tok_embeddings = nn.Embedding(config.vocab_size, config.dim)
        self.layers = nn.ModuleList(_block(config) for _ in range(config.n_layer))
        self.norm = output_norm(config)
        width, has_bias = config.head_hidden or config.dim, bool(config.head_hidden)
        self.output = nn.Linear(width, config.vocab_size, bias=has_bias)
        self.sketch: CaptionSketch | None = None
        if config.sketch_slots:
            sizes = config.n_word, config.sketch_slots, config.sketch_width
            self.sketch = CaptionSketch(*sizes, config.grid, config.dim)
        self.register_buffer("rotation", rotation_of(config), persistent=False)
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
        added = self._added(captions, unconditional, tokens.shape[1], input_feature)
        return self.forward_features(tokens, features, valid, unconditional, added)

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
        added = self._added(captions, unconditional, tokens.shape[1])
        return self.hidden_features(tokens, features, valid, unconditional, added)

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
        bias = prefix_bias(valid, length, self.config.caption_weight)
        for block in self.blocks:
            q, k, v = block.project(x, self.rotation[:length])
            mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=bias.type_as(q))
            x = block.finish(x, mixed)
        hidden: Tensor = self.norm(x[:, self.config.caption_length - 1 :])
        return hidden

    def embed(self, tokens: Tensor, input_feature: Tensor | None = None) -> Tensor:
        """Return the token embeddings [B, T, D] plus the input feature."""
        embedded: Tensor = self.tok_embeddings(tokens)
        return embedded if input_feature is None else embedded + input_feature.type_as(embedded)

    def condition(self, captions: Tensor, unconditional: Tensor | None = None) -> Condition:
        """Collapse left-padded captions [B, C] of word ids."""
        features, valid = self.captions.features(captions), captions != PAD_ID
        condition = self.condition_features(features, valid, unconditional)
        if self.sketch is None:
            return condition
        return replace(condition, sketch=self.sketch(captions, unconditional))

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
        count = valid.sum(dim=1) * self.config.caption_weight
        return Condition(torch.stack(values), count.float().log(), self.norm(x[:, -1]))

    def prompt(self, prompts: Tensor, valid: Tensor) -> Prompt:
        """Run prompts [B, C] of text tokens, padded on the left; `valid` [B, C] is not padding.

        Positions count tokens, not padding, so the first token of every prompt is at 0.
        """
        assert isinstance(self.cls_embedding, PromptEmbedding)
        x, length = self.cls_embedding(prompts), prompts.shape[1]
        mask = prefix_mask(valid, length)
        rotation = self.rotation[(valid.cumsum(dim=1) - 1).clamp(min=0)]
        rows = []
        for block in self.blocks:
            q, k, v = block.project(x, rotation)
            rows.append(torch.stack([k, v]))
            x = block.finish(x, F.scaled_dot_product_attention(q, k, v, attn_mask=mask))
        return Prompt(torch.stack(rows), valid.sum(dim=1), self.norm(x[:, -1]))

    def span(
        self,
        tokens: Tensor,  # [B, T], the tokens at positions P to P + T - 1 of the image
        past: Tensor,  # [L, 2, B, H, P, head_dim], keys and values of the tokens before
        condition: Condition | Prompt,
        input_feature: Tensor | None = None,  # [B, T, D]
    ) -> tuple[Tensor, Tensor]:
        """Return hidden states [B, T, D] and the new rows [L, 2, B, H, T, head_dim].

        Hidden state i predicts the token at position P + i + 1.
        """
        length, first = tokens.shape[1], past.shape[4]
        rotation = self.turns(condition, first, length)
        bias = span_bias(condition.bias, first, length)
        x, rows = self.embed(tokens, input_feature), []
        if isinstance(condition, Condition) and condition.sketch is not None:
            x = x + condition.sketch[:, first : first + length]
        for block, before, lead in zip(self.blocks, past, condition.cells, strict=True):
            q, k, v = block.project(x, rotation)
            rows.append(torch.stack([k, v]))
            keys = torch.cat([lead[0], before[0], k], dim=2)
            values = torch.cat([lead[1], before[1], v], dim=2)
            mixed = F.scaled_dot_product_attention(q, keys, values, attn_mask=bias.type_as(q))
            x = block.finish(x, mixed)
        hidden: Tensor = self.norm(x)
        return hidden, torch.stack(rows)

    def hidden_after(
        self,
        condition: Condition | Prompt,
        tokens: Tensor,  # [B, T], the image's first tokens
        input_feature: Tensor | None = None,  # [B, T, D]
    ) -> Tensor:
        """Return hidden states [B, T + 1, D] of tokens 0 to T."""
        config = self.config
        empty = condition.start.new_zeros(
            config.n_layer, 2, len(tokens), config.n_head, 0, config.head_dim
        )
        hidden, _ = self.span(tokens, empty, condition, input_feature)
        return torch.cat([condition.start[:, None], hidden], dim=1)

    def turns(self, condition: Condition | Prompt, first: int, length: int) -> Tensor:
        """Return the rotation [(B,) length, head_dim / 2, 2] of positions from `first` on."""
        if isinstance(condition, Condition):
            start = self.config.caption_length + first
            return self.rotation[start : start + length]
        # Positions count tokens: an image begins where its prompt ends.
        places = torch.arange(first, first + length, device=self.rotation.device)
        return self.rotation[condition.lengths[:, None] + places]

    def _added(
        self,
        captions: Tensor,
        unconditional: Tensor | None,
        length: int,
        input_feature: Tensor | None = None,
    ) -> Tensor | None:
        """Return what is added to the embeddings of the first `length` tokens."""
        if self.sketch is None:
            return input_feature
        sketch: Tensor = self.sketch(captions, unconditional)[:, :length]
        return sketch if input_feature is None else sketch + input_feature

    def _initialise(self) -> None:
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)
        nn.init.zeros_(self.output.weight)
        if self.sketch is not None:
            self.sketch.initialise()


def _condition_embedding(config: TransformerConfig) -> ConditionEmbedding:
    if config.has_prompt:
        return PromptEmbedding(config.n_word, config.dim)
    if config.n_class:
        return ClassEmbedding(config.n_class, config.dim)
    return CaptionEmbedding(config.dim, config.caption_dim, config.caption_length, config.n_word)


def _block(config: TransformerConfig) -> TransformerBlock:
    return TransformerBlock(
        Attention(config.dim, config.n_head, qk_norm=config.qk_norm),
        FeedForward(config.dim, config.ffn),
        eps=config.norm_eps,
        dropout=config.dropout,
    )


def output_norm(config: TransformerConfig) -> nn.Module:
    """Return what makes of the last layer's output the state that predicts."""
    if config.head_hidden:
        return HiddenHead(config.dim, config.head_hidden, config.norm_eps)
    return RMSNorm(config.dim, config.norm_eps)


def rotation_of(config: TransformerConfig) -> Tensor:
    """Return the cosines and sines [C + T, head_dim / 2, 2] of all positions, fp32."""
    if config.has_prompt:
        length = config.caption_length + config.n_token
        return line_rotation(length, config.head_dim, config.rope_base)
    return grid_rotation(config.caption_length, config.grid, config.head_dim)


def guide(conditional: Tensor, unconditional: Tensor, guidance: float) -> Tensor:
    """Return guided logits, LlamaGen's formula; a guidance of 1 or less is no guidance."""
    if guidance <= 1:
        return conditional
    return unconditional + (conditional - unconditional) * guidance
