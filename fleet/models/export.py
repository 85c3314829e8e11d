"""ONNX graphs of what a device runs: caption, one token, picture."""

import math
import warnings
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
import torch
from onnx_ir.passes.common import ClearMetadataAndDocStringPass
from torch import Tensor, nn

from fleet.models.image_tokenizer import ImageTokenizer, to_pixels
from fleet.models.interval_feature import FeatureProjection
from fleet.models.interval_head import IntervalHead, feature_scalars, interval_law, scores
from fleet.models.onnx_operations import OPERATIONS, kth_largest
from fleet.models.transformer import Transformer, TransformerConfig

OPSET = 20

CAPTION_INPUTS = ("caption",)
CAPTION_OUTPUTS = ("value", "log_n", "start")
# The outputs of a caption graph are inputs of the step graph; this one too, of a model with one.
SKETCH = "sketch"
STEP_OUTPUTS = ("rows", "drawn", "scores", "feature", "hidden", "logits", "guided_hidden")
_WORTH_HALVING = 1024  # numbers
DECODER_INPUTS = ("tokens",)
DECODER_OUTPUTS = ("picture",)


class CaptionGraph(nn.Module):
    """A caption i64 [C] to its condition, with the caption (row 0) and without (row 1)."""

    def __init__(self, transformer: Transformer) -> None:
        super().__init__()
        self.transformer = transformer

    def forward(self, caption: Tensor) -> tuple[Tensor, ...]:
        """Return value [L, 2, H, head_dim], log_n [1], start [2, D] and a sketch [T, D] if any."""
        withheld = torch.tensor([False, True])
        condition = self.transformer.condition(caption.expand(2, -1), withheld)
        whole = (condition.value, condition.log_n[:1], condition.start)
        return whole if condition.sketch is None else (*whole, condition.sketch[0])


class CaptionInputs(NamedTuple):
    """What the step graph is given of a caption."""

    value: Tensor  # [L, 2, H, hd]
    log_n: Tensor  # [1]
    start: Tensor  # [2, D]
    sketch: Tensor | None  # [T, D]


class TokenStep(nn.Module):
    """One token of one picture, from the token before it to the draw and what is said of it.

    The cache holds the tokens before; the caller writes the rows that come out at the position
    of the token that went in. At position 0 no token goes in: the condition's start state
    predicts, and the rows mean nothing.
    """

    codes: Tensor

    def __init__(
        self,
        head: IntervalHead,
        projection: FeatureProjection,
        codes: Tensor,  # [V, d], each of length one
    ) -> None:
        super().__init__()
        self.head = head
        self.projection = projection
        self.register_buffer("codes", codes)

    def forward(  # noqa: PLR0913 - the graph's inputs
        self,
        token: Tensor,  # i64 [1], the token at position - 1; ignored at position 0
        position: Tensor,  # i64 [1], the position that is drawn
        cache: list[Tensor],  # keys and values of each layer [2 (with, without caption), H, T, hd]
        value: Tensor,  # [L, 2, H, hd]
        log_n: Tensor,  # [1]
        start: Tensor,  # [2, D]
        noise: Tensor,  # [V]
        temperature: Tensor,  # [1]
        guidance: Tensor,  # [1]
        top_k: Tensor,  # i64 [1], 0: no cut
        score: Tensor,  # i64 [1], which score the feature compares with the threshold
        threshold: Tensor,  # [1]
        sketch: Tensor | None = None,  # [T, D], of the branch with the caption
    ) -> tuple[Tensor, ...]:
        """Return what the bundle promises, in the order of `STEP_OUTPUTS`.

        rows [L, 2, 2, H, head_dim], drawn [1], scores [6], feature [48], hidden [D], the guided
        logits [V], and the hidden state [D] that these are the center of.
        """
        past = (position - 1).clamp(min=0)
        condition = CaptionInputs(value, log_n, start, sketch)
        hidden, rows = self._backbone(token.clamp(min=0), past, cache, condition)
        hidden = torch.where(position[:, None] > 0, hidden, start)
        logits, radius = self.head.center(hidden), self.head.radius(hidden[:1])
        center = _guide(logits[:1], logits[1:], guidance)
        law = interval_law(center, radius)
        said = scores(law, self.codes)
        drawn = (_sharpen(center, temperature, top_k) + noise).argmax(dim=-1)
        deciding = said[0, score]
        # An infinite threshold has no margin.
        limit = torch.where(threshold.isinf(), deciding, threshold)
        scalars = feature_scalars(law, drawn, deciding, limit)
        feature = self.projection(scalars, hidden[:1])
        # The center is linear, so the guided logits are those of the guided hidden state.
        guided = _guide(hidden[:1], hidden[1:], guidance)
        return rows, drawn, said[0], feature[0], hidden[0], center[0], guided[0]

    def _backbone(
        self,
        token: Tensor,
        past: Tensor,
        cache: list[Tensor],
        condition: CaptionInputs,
    ) -> tuple[Tensor, Tensor]:
        """Return hidden states [2, D] and new rows of the token at position `past`."""
        raise NotImplementedError


class StepGraph(TokenStep):
    """The step of a transformer of any number of layers."""

    def __init__(
        self,
        transformer: Transformer,
        head: IntervalHead,
        projection: FeatureProjection,
        codes: Tensor,
    ) -> None:
        super().__init__(head, projection, codes)
        self.transformer = transformer
        # Last, so that the output layer, which both have, goes by the head's name in the graph.
        del self.head
        self.head = head

    def _backbone(
        self,
        token: Tensor,
        past: Tensor,
        cache: list[Tensor],
        condition: CaptionInputs,
    ) -> tuple[Tensor, Tensor]:
        model, value, log_n = self.transformer, condition.value, condition.log_n
        rotation = model.rotation[model.config.caption_length + past]
        x = model.embed(token.expand(2)[:, None])  # [2, 1, D]
        if condition.sketch is not None:
            here = condition.sketch[past]  # [1, D]
            x = x + torch.stack([here, torch.zeros_like(here)])
        rows = []
        for layer, block in enumerate(model.blocks):
            q, k, v = block.project(x, rotation)  # [2, H, 1, head_dim]
            rows.append(torch.stack([k[:, :, 0], v[:, :, 0]]))
            new = (k, v, value[layer][:, :, None])
            before = (cache[2 * layer], cache[2 * layer + 1])
            x = block.finish(x, attend(q, new, before, past, log_n))
        return model.norm(x)[:, 0], torch.stack(rows)


class DecoderGraph(nn.Module):
    """Tokens i64 [T] to a picture u8 [H, W, 3]."""

    def __init__(self, tokenizer: ImageTokenizer) -> None:
        super().__init__()
        self.tokenizer = tokenizer

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the picture."""
        return to_pixels(self.tokenizer.decode(tokens[None]))[0]


def export_caption(transformer: Transformer) -> bytes:
    """Return the caption graph."""
    caption = torch.zeros(transformer.config.caption_length, dtype=torch.int64)
    caption[-1] = 1
    graph, sketched = CaptionGraph(transformer), (SKETCH,) if transformer.sketch else ()
    inputs = dict(zip(CAPTION_INPUTS, [caption], strict=True))
    return export_graph(graph, inputs, CAPTION_OUTPUTS + sketched)


def export_step(graph: StepGraph) -> bytes:
    """Return the graph of one token."""
    return export_graph(graph, step_example(graph.transformer.config), STEP_OUTPUTS)


def export_decoder(tokenizer: ImageTokenizer, tokens: int) -> bytes:
    """Return the graph from the tokens of a square grid to its picture."""
    example = {"tokens": torch.zeros(tokens, dtype=torch.int64)}
    return export_graph(DecoderGraph(tokenizer), example, DECODER_OUTPUTS)


def quantise(graph: bytes) -> bytes:
    """Return a graph with the weights of its matrix products in int8, activations as they come.

    Dynamic quantisation: one scale a tensor of weights, activations scaled at each run.
    """
    from onnxruntime.quantization import QuantType, quantize_dynamic

    with TemporaryDirectory() as folder:
        source, target = Path(folder) / "graph.onnx", Path(folder) / "int8.onnx"
        source.write_bytes(graph)
        quantize_dynamic(
            source, target, op_types_to_quantize=["MatMul"], weight_type=QuantType.QInt8
        )
        return target.read_bytes()


def store_halves(graph: bytes) -> bytes:
    """Return a graph whose large weights lie in fp16; a runtime widens them once, as it loads."""
    from onnx import TensorProto, helper, load_from_string, numpy_helper

    model = load_from_string(graph)
    casts = []
    for weight in model.graph.initializer:
        if weight.data_type == TensorProto.FLOAT and math.prod(weight.dims) >= _WORTH_HALVING:
            name, values = weight.name, numpy_helper.to_array(weight)
            weight.CopyFrom(numpy_helper.from_array(values.astype(np.float16), f"{name}_half"))
            casts.append(helper.make_node("Cast", [weight.name], [name], to=TensorProto.FLOAT))
    nodes = [*casts, *model.graph.node]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    content: bytes = model.SerializeToString()
    return content


def step_example(config: TransformerConfig) -> dict[str, Tensor | list[Tensor]]:
    """Return inputs of the step graph, all of the right shape and type."""
    heads = (config.n_head, config.head_dim)
    sketch = {SKETCH: torch.zeros(config.n_token, config.dim)} if config.sketch_slots else {}
    # No tensor twice: the exporter takes one that comes again for the same input.
    return {
        "token": torch.ones(1, dtype=torch.int64),
        "position": torch.ones(1, dtype=torch.int64),
        "cache": [
            torch.zeros(2, config.n_head, config.n_token, config.head_dim)
            for _ in range(2 * config.n_layer)
        ],
        "value": torch.zeros(config.n_layer, 2, *heads),
        "log_n": torch.zeros(1),
        "start": torch.zeros(2, config.dim),
        "noise": torch.zeros(config.vocab_size),
        "temperature": torch.ones(1),
        "guidance": torch.ones(1),
        "top_k": torch.zeros(1, dtype=torch.int64),
        "score": torch.zeros(1, dtype=torch.int64),
        "threshold": torch.ones(1),
        **sketch,
    }


def export_graph(
    graph: nn.Module, inputs: Mapping[str, Tensor | list[Tensor]], outputs: tuple[str, ...]
) -> bytes:
    """Return any module as a graph with these inputs, by example, and outputs."""
    with TemporaryDirectory() as folder, torch.no_grad(), warnings.catch_warnings():
        # torch's exporter uses what torch itself has deprecated.
        warnings.simplefilter("ignore", FutureWarning)
        path = Path(folder) / "graph.onnx"
        program = torch.onnx.export(
            graph.eval(),
            tuple(inputs.values()),
            input_names=_input_names(inputs),
            output_names=list(outputs),
            opset_version=OPSET,
            dynamo=True,
            custom_translation_table=OPERATIONS,
            verbose=False,
        )
        assert program is not None
        # The exporter notes source files and lines at each node: paths of one machine.
        ClearMetadataAndDocStringPass()(program.model)
        program.save(path, external_data=False)
        return path.read_bytes()


def attend(
    q: Tensor,  # [2, H, 1, hd]
    new: tuple[Tensor, Tensor, Tensor],  # key and value of the token, value of the condition
    cache: tuple[Tensor, Tensor],  # [2, H, T, hd]
    past: Tensor,  # [1]
    log_n: Tensor,  # [1]
) -> Tensor:
    """Mix values [2, H, 1, hd] over the condition, the token itself and those before it.

    Keys and values stay as they lie in the cache: the product is keys times query, so nothing is
    transposed or copied.
    """
    k, v, condition = new
    q = q * q.shape[-1] ** -0.5
    own = (q * k).sum(dim=-1, keepdim=True)  # [2, H, 1, 1]
    before = (cache[0] @ q.transpose(2, 3)).transpose(2, 3)  # [2, H, 1, T]
    unseen = torch.arange(cache[0].shape[2], device=q.device) >= past
    before = before.masked_fill(unseen, float("-inf"))
    bias = log_n.expand_as(own)
    weights = torch.cat([bias, own, before], dim=-1).softmax(dim=-1)
    mixed = weights[..., :1] * condition + weights[..., 1:2] * v
    return mixed + weights[..., 2:] @ cache[1]


def _guide(cond: Tensor, uncond: Tensor, guidance: Tensor) -> Tensor:
    return torch.where(guidance > 1, uncond + guidance * (cond - uncond), cond)


def _sharpen(logits: Tensor, temperature: Tensor, top_k: Tensor) -> Tensor:
    """Return logits [1, V] over the temperature, -inf outside the top k; ties are kept."""
    scaled = logits / temperature
    size = logits.shape[-1]
    is_cut = (top_k > 0) & (top_k < size)
    least = kth_largest(scaled, torch.where(is_cut, top_k, 1))
    return scaled.masked_fill(is_cut & (scaled < least), float("-inf"))


def _input_names(inputs: Mapping[str, Tensor | list[Tensor]]) -> list[str]:
    """Return the names of all inputs; those of a list are numbered."""
    names = []
    for name, value in inputs.items():
        count = len(value) if isinstance(value, list) else 0
        names += [f"{name}_{index}" for index in range(count)] or [name]
    return names
