"""Names of weights in the layout of transformers' decoders, and LlamaGen's for the same."""

import re

import torch

from fleet.models.formats.files import Weights

_OUTER = {
    "model.embed_tokens.": "tok_embeddings.",
    "model.cls_embedding.": "cls_embedding.",
    "model.norm.": "norm.",
    "lm_head.": "output.",
}
_INNER = {
    "self_attn.q_proj.": "attention.wq.",
    "self_attn.k_proj.": "attention.wk.",
    "self_attn.v_proj.": "attention.wv.",
    "self_attn.o_proj.": "attention.wo.",
    "self_attn.q_norm.": "attention.q_normalization.",
    "self_attn.k_norm.": "attention.k_normalization.",
    "mlp.gate_proj.": "feed_forward.w1.",
    "mlp.down_proj.": "feed_forward.w2.",
    "mlp.up_proj.": "feed_forward.w3.",
    "input_layernorm.": "attention_norm.",
    "post_attention_layernorm.": "ffn_norm.",
}
_PART = re.compile(r"\.attention\.w[qkv]\.weight$")
_LAYER = re.compile(r"model\.(layers\.\d+\.)(.*)")


def is_transformers_layout(weights: Weights) -> bool:
    """Whether the names are those of transformers' decoders."""
    return "model.embed_tokens.weight" in weights


def native_names(weights: Weights) -> Weights:
    """Return weights under LlamaGen's names; names that are not transformers' stay."""
    return {_native(name): value for name, value in weights.items()}


def fuse_qkv(weights: Weights) -> Weights:
    """Return weights with the queries', keys' and values' matrices of each layer as one."""
    fused = {name: value for name, value in weights.items() if not _PART.search(name)}
    for name in weights:
        if name.endswith(".wq.weight"):
            parts = [name.replace(".wq.", f".{part}.") for part in ("wq", "wk", "wv")]
            if all(part in weights for part in parts):
                whole = torch.cat([weights[part] for part in parts])
                fused[name.replace(".wq.", ".wqkv.")] = whole
    return fused


def interleaved(weights: Weights, heads: int) -> Weights:
    """Undo transformers' order of queries and keys, whose halves turn together, not neighbours."""
    turned = {}
    for name, value in weights.items():
        if name.endswith((".wq.weight", ".wk.weight")):
            value = value.unflatten(0, (heads, 2, -1)).transpose(1, 2).flatten(0, 2)
        elif "_normalization." in name:
            value = value.unflatten(-1, (2, -1)).transpose(-2, -1).flatten(-2)
        turned[name] = value
    return turned


def _native(name: str) -> str:
    if match := _LAYER.fullmatch(name):
        layer, rest = match.groups()
        return layer + _replaced(rest, _INNER)
    return _replaced(name, _OUTER)


def _replaced(name: str, table: dict[str, str]) -> str:
    for old, new in table.items():
        if name.startswith(old):
            return new + name.removeprefix(old)
    return name
