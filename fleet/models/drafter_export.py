"""ONNX graphs of a drafter: one token, and the table of a model's classes."""

from dataclasses import replace

import torch
from torch import Tensor, nn

from fleet.models.drafter import Drafter, Start
from fleet.models.export import (
    CAPTION_INPUTS,
    CAPTION_OUTPUTS,
    STEP_OUTPUTS,
    CaptionInputs,
    TokenStep,
    attend,
    export_graph,
    step_example,
)
from fleet.models.interval_feature import FeatureProjection

# A drafter keeps its states where a second layer would keep its keys: the caller writes rows of
# any layer back, so a rollback is what it is for others.
LAYERS = 2
# Words of a class's caption: "class", which may be left out, and its number.
CLASS_WORDS = 2


class DrafterStep(TokenStep):
    """The step graph of a drafter; inputs and outputs are those of a model of two layers."""

    def __init__(self, drafter: Drafter, projection: FeatureProjection, codes: Tensor) -> None:
        super().__init__(drafter.head, projection, codes)
        self.body = drafter.body

    def _backbone(
        self,
        token: Tensor,
        past: Tensor,
        cache: list[Tensor],
        condition: CaptionInputs,
    ) -> tuple[Tensor, Tensor]:
        model, (value, log_n, start, _) = self.body, condition
        # The state that predicted the token was written one cell before the token's own.
        kept = cache[2].index_select(2, (past - 1).clamp(min=0)).flatten(1)  # [2, D]
        state = torch.where(past[:, None] > 0, kept, start)
        x = model.join(token.expand(2)[:, None], state[:, None])
        rotation = model.rotation[model.config.caption_length + past]
        q, k, v = model.block.project(x, rotation)
        new = (k, v, model.virtual(value[0].flatten(1)))
        mixed = attend(q, new, (cache[0], cache[1]), past, log_n)
        hidden = model.norm(model.block.finish(x, mixed))[:, 0]
        layer = torch.stack([k[:, :, 0], v[:, :, 0]])
        states = hidden.view_as(layer[0])
        # Nothing is kept beside them; what is not read would be no input of the graph.
        return hidden, torch.stack([layer, torch.stack([states, cache[3][:, :, 0]])])


class ClassGraph(nn.Module):
    """Word ids i64 [2] that end in a class's to what the drafter needs of it, from tables."""

    values: Tensor
    states: Tensor

    def __init__(self, start: Start, first_word: int, heads: int) -> None:
        """Args are: the cloud's start of each class, "no class" last; the word id of class 0."""
        super().__init__()
        self.first_word = first_word
        self.heads = heads
        self.register_buffer("values", start.value.half())
        self.register_buffer("states", start.state.half())

    def forward(self, caption: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return value [1, 2, H, head_dim], log_n [1] and start [2, D]."""
        number = (caption[-1:] - self.first_word).clamp(min=0)
        rows = torch.cat([number, torch.full_like(number, len(self.values) - 1)])
        value = self.values[rows].float().view(1, 2, self.heads, -1)
        return value, torch.zeros(1), self.states[rows].float()


def export_drafter(graph: DrafterStep) -> bytes:
    """Return the graph of one token."""
    config = graph.body.config
    inputs = step_example(replace(config, n_layer=LAYERS))
    inputs["value"] = torch.zeros(1, 2, config.n_head, config.head_dim)
    return export_graph(graph, inputs, STEP_OUTPUTS)


def export_classes(start: Start, first_word: int, heads: int) -> bytes:
    """Return the caption graph of a class-conditional model."""
    graph = ClassGraph(start, first_word, heads)
    caption = torch.full((CLASS_WORDS,), first_word)
    return export_graph(graph, dict(zip(CAPTION_INPUTS, [caption], strict=True)), CAPTION_OUTPUTS)
