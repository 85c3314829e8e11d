"""A device model for a large cloud model: one layer on the cloud's own tables (after EAGLE).

A state says what the token at a position is like, and predicts it. The layer makes the next state
from the token that was drawn and the state that predicted it (arXiv:2401.15077; for images LANTERN,
arXiv:2410.03355): h_{t+1} = Layer(fc[E(x_t); h_t]). In training h_t is the cloud's; on a device it
is the drafter's own, except for the first one, which comes with the caption.
"""

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fleet.errors import InvalidInputError
from fleet.models.conditions import Condition, Prompt
from fleet.models.interval_head import IntervalHead
from fleet.models.layers import Attention, FeedForward, TransformerBlock
from fleet.models.masks import span_bias
from fleet.models.transformer import Transformer, TransformerConfig, output_norm, rotation_of
from fleet.protocol.condition import SentCondition

# What stays as the cloud has it, and is neither trained nor stored with what is.
_FROZEN = ("body.tok_embeddings.", "head.center.")


@dataclass(frozen=True)
class Start:
    """What a drafter is told of a caption or class: the cloud's, or as a device receives it."""

    value: Tensor  # [B, D], the last layer's virtual value of the condition
    log_n: Tensor  # [B], its attention bias
    state: Tensor  # [B, D], the cloud's state that predicts the first token

    @classmethod
    def of(cls, condition: Condition | Prompt) -> "Start":
        """Take from a cloud model's condition what a drafter needs.

        A prompt does not collapse: the mean of its values in the cloud's last layer stands for it,
        as one position that counts once.
        """
        if isinstance(condition, Condition):
            return cls(condition.value[-1].flatten(1), condition.log_n, condition.start)
        valid = condition.valid[:, None, :, None]  # [B, 1, C, 1]
        summed = (condition.rows[-1, 1] * valid).sum(dim=2)  # [B, H, hd]
        mean = summed / condition.lengths[:, None, None].type_as(summed)
        return cls(mean.flatten(1), torch.zeros_like(mean[:, 0, 0]), condition.start)

    @property
    def sent(self) -> SentCondition:
        """Return how two rows, with and without caption, travel to a device."""
        value, state = (each.float().cpu().numpy() for each in (self.value, self.state))
        return SentCondition(value, float(self.log_n[0]), state)

    def at(self, rows: Tensor) -> "Start":
        """Return the start of some rows."""
        return Start(self.value[rows], self.log_n[rows], self.state[rows])


class DrafterBody(nn.Module):
    """The layer, with the token table in front of it and the norm behind."""

    rotation: Tensor  # [C + T, head_dim / 2, 2]

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        dim = config.dim
        self.tok_embeddings = nn.Embedding(config.vocab_size, dim)
        self.fc = nn.Linear(2 * dim, dim, bias=False)
        self.condition = nn.Linear(dim, dim, bias=False)
        attention = Attention(dim, config.n_head, qk_norm=config.qk_norm)
        feed_forward = FeedForward(dim, config.ffn)
        self.block = TransformerBlock(attention, feed_forward, eps=config.norm_eps, dropout=0.0)
        self.norm = output_norm(config)
        self.register_buffer("rotation", rotation_of(config), persistent=False)

    def forward(self, tokens: Tensor, states: Tensor, start: Start) -> Tensor:
        """Return the states [B, N, D] that predict the tokens at positions 1 to N.

        Args:
            tokens: [B, N], the picture's first tokens.
            states: [B, N, D], what predicted each of them; `start.state` is the first.
            start: Of the B rows' captions.
        """
        length = tokens.shape[1]
        x = self.join(tokens, states)
        first = self.config.caption_length
        q, k, v = self.block.project(x, self.rotation[first : first + length])
        keys = torch.cat([torch.zeros_like(k[:, :, :1]), k], dim=2)
        values = torch.cat([self.virtual(start.value).type_as(v), v], dim=2)
        bias = span_bias(start.log_n[:, None], 0, length).type_as(q)
        mixed = F.scaled_dot_product_attention(q, keys, values, attn_mask=bias)
        hidden: Tensor = self.norm(self.block.finish(x, mixed))
        return hidden

    @torch.no_grad()
    def own_states(self, tokens: Tensor, states: Tensor, start: Start, depth: int) -> Tensor:
        """Return states [B, N, D] as the drafter makes them `depth` tokens after the cloud's.

        Each pass puts the states of the pass before in place of the cloud's, so a state is made
        from one that is a step farther from the cloud's.
        """
        for _ in range(depth):
            made = self(tokens, states, start)
            states = torch.cat([start.state[:, None].type_as(made), made[:, :-1]], dim=1)
        return states

    def join(self, tokens: Tensor, states: Tensor) -> Tensor:
        """Return the layer's input [B, N, D]."""
        embedded = self.tok_embeddings(tokens)
        joined: Tensor = self.fc(torch.cat([embedded, states.type_as(embedded)], dim=-1))
        return joined

    def virtual(self, value: Tensor) -> Tensor:
        """Return a condition's value [B, D] as this layer's attention sees it [B, H, 1, hd]."""
        own: Tensor = self.condition(value.type_as(self.condition.weight))
        return own.view(len(value), self.config.n_head, 1, self.config.head_dim)


class Drafter(nn.Module):
    """A body, and an interval head whose center is the cloud's output layer."""

    def __init__(self, config: TransformerConfig, rank: int) -> None:
        super().__init__()
        self.body = DrafterBody(config)
        center = nn.Linear(config.dim, config.vocab_size, bias=bool(config.head_hidden))
        self.head = IntervalHead(center, rank)

    @classmethod
    def of(cls, cloud: Transformer, rank: int) -> "Drafter":
        """Make a drafter of a cloud model's tables, last layer and norm, in fp32.

        Raises:
            InvalidInputError: The model's states are of another width than its layers.
        """
        config = cloud.config
        if config.head_hidden not in (0, config.dim):
            raise InvalidInputError(
                f"a drafter's states are as wide as its layer: {config.dim} numbers, not"
                f" {config.head_hidden}"
            )
        drafter = cls(replace(config, n_layer=1), rank)
        body, tables = drafter.body, (drafter.body.tok_embeddings, drafter.head.center)
        sources = (cloud.tok_embeddings, cloud.output, cloud.blocks[-1], cloud.norm)
        for own, source in zip((*tables, body.block, body.norm), sources, strict=True):
            own.load_state_dict(source.state_dict())
        with torch.no_grad():
            nn.init.eye_(body.condition.weight)
            # Token and state count alike at first: a stream inside the cloud holds both. Behind a
            # hidden layer a state is no such stream, and enters as it is learned.
            body.fc.weight.copy_(torch.eye(config.dim).repeat(1, 2))
            if config.head_hidden:
                body.fc.weight[:, config.dim :].zero_()
        for table in tables:
            table.requires_grad_(False)
        return drafter

    @torch.no_grad()
    def all_states(self, tokens: Tensor, start: Start) -> Tensor:
        """Return the states [B, T, D] that predict each of a picture's tokens, all its own."""
        before, first = tokens[:, :-1], start.state[:, None].float()
        nothing = first.expand(-1, before.shape[1], -1)
        states = self.body.own_states(before, nothing, start, before.shape[1])
        return torch.cat([first, self.body(before, states, start)], dim=1)

    def trained(self) -> dict[str, Tensor]:
        """Return the weights that are not the cloud's."""
        weights = self.state_dict()
        return {name: w for name, w in weights.items() if not name.startswith(_FROZEN)}

    @torch.no_grad()
    def load_trained(self, weights: dict[str, Tensor]) -> None:
        """Take weights as `trained` returned them.

        Raises:
            InvalidInputError: They are those of another size.
        """
        own = self.trained()
        shapes = {name: value.shape for name, value in weights.items()}
        if shapes != {name: value.shape for name, value in own.items()}:
            raise InvalidInputError("these are the weights of a drafter of another size")
        for name, value in own.items():
            value.copy_(weights[name])
