"""An agent on a device model as large as LlamaGen's B: its draft loop, the bare graph, the memory.

Weights are random. So large a step reads its weights from memory once a token, and the rate at
which this machine reads memory is its limit.
"""

import json
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from torch import nn

from edge_agent.bundle_device import BundleDevice
from fleet.models.bundle import (
    CAPTION_GRAPH,
    DECODER_GRAPH,
    STEP_GRAPH,
    VOCABULARY,
    Bundle,
    write_bundle,
)
from fleet.models.caption import PAD, UNKNOWN
from fleet.models.export import StepGraph, export_caption, export_decoder, export_step
from fleet.models.formats.llamagen import SIZES
from fleet.models.image_tokenizer import ImageTokenizer, ImageTokenizerConfig
from fleet.models.interval_feature import FeatureProjection
from fleet.models.interval_head import IntervalHead
from fleet.models.onnx_weights import in_int8
from fleet.models.signing import generate_key
from fleet.models.transformer import Transformer, TransformerConfig
from fleet.prediction import SCORE_NAMES
from fleet.protocol.arrays import FEATURE_BYTES
from simulations.bench_device import CAPTION, bare, by_turns, draft_loop, order_of
from simulations.real_size.bench import CODES, GRID, RANK

_WORDS = (PAD, UNKNOWN, *CAPTION.replace(":", "").split())
_PROBES = 32
_PROBED_BYTES = 1 << 28  # far beyond any cache


@dataclass(frozen=True, slots=True)
class LargeDevice:
    """One way to run the step, on one thread; ratios are to the other subjects of the same run."""

    subject: str
    megabytes: float  # weights and cache that a step reads
    p50_ms: float  # processor time of a guided step
    loop_is: float  # the draft loop's tokens/s over the subject's
    of_memory: float  # the rate at which it reads over that at which this machine reads


def bench(name: str, *, pictures: int) -> list[LargeDevice]:
    """Measures the subjects and the memory by turns.

    Args:
        name: A size of LlamaGen's, such as "B"; it takes about five times its weights in memory.
        pictures: Whole ones of each subject.
    """
    torch.set_num_threads(1)
    with TemporaryDirectory() as folder:
        bundle = random_bundle(Path(folder), _config(name))
        device, order = BundleDevice(bundle), order_of(bundle.manifest)
        # One session for both: a second one has its weights elsewhere in memory, and a step of a
        # model of this size takes some hundredths more or less by where they lie.
        model = device.model
        small = in_int8(bundle.read(STEP_GRAPH))
        subjects = {
            "draft loop of the agent": draft_loop(device, order),
            "bare onnxruntime, same graph": bare(model, order),
            "bare onnxruntime, int8 by blocks": bare(model.with_step_graph(small), order),
        }
        sizes = _bytes_read(bundle, len(small))
        times, memory = by_turns(subjects, device.size, pictures), _memory()
    costs, ratios = np.median(times, axis=1), np.median(times / times[0], axis=1)
    return [
        LargeDevice(
            subject=f"{name}, {subject}",
            megabytes=size / 1e6,
            p50_ms=cost * 1e3,
            loop_is=ratio,
            of_memory=size / cost / memory,
        )
        for subject, size, cost, ratio in zip(subjects, sizes, costs, ratios, strict=True)
    ]


def random_bundle(folder: Path, config: TransformerConfig) -> Bundle:
    """Write a signed bundle of random weights into `folder` and open it as an agent does."""
    torch.manual_seed(1)
    transformer = Transformer(config)
    nn.init.normal_(transformer.output.weight, std=0.03)
    codes = nn.functional.normalize(torch.randn(config.vocab_size, 8), dim=-1)
    head = IntervalHead(transformer.output, RANK)
    graph = StepGraph(transformer, head, FeatureProjection(config.dim), codes)
    # Drafting decodes no picture, so a small decoder does.
    tokenizer = ImageTokenizer(ImageTokenizerConfig(codebook_size=config.vocab_size))
    files = {
        STEP_GRAPH: export_step(graph),
        CAPTION_GRAPH: export_caption(transformer),
        DECODER_GRAPH: export_decoder(tokenizer, config.n_token),
        VOCABULARY: json.dumps({"words": list(_WORDS)}).encode(),
    }
    fields = {
        "family": "random",
        "cloud_version": "0" * 16,
        "grid": config.grid,
        "picture_size": config.grid * tokenizer.config.downsampling,
        "vocab_size": config.vocab_size,
        "caption_positions": config.caption_length,
        "layers": config.n_layer,
        "heads": config.n_head,
        "head_dim": config.head_dim,
        "sampling": {"temperature": 1.0, "top_k": 0, "guidance": 7.5},
        "score": SCORE_NAMES[0],
        "thresholds": dict.fromkeys(SCORE_NAMES, 0.0),
        "budget": 0.3,
        "prefix_tokens": 0,
        "feature_scale": (1.0,) * FEATURE_BYTES,
    }
    private, public = folder / "signing.key", folder / "signing.pub"
    generate_key(private, public)
    write_bundle(folder / "bundle", fields, files, private)
    return Bundle.open(folder / "bundle", public)


def _config(name: str) -> TransformerConfig:
    size = next(each for each in SIZES if each.name == name)
    return TransformerConfig(
        n_layer=size.layers,
        n_head=size.heads,
        dim=size.dim,
        ffn=-(-int(8 * size.dim / 3) // 256) * 256,
        vocab_size=CODES,
        grid=GRID,
        n_word=len(_WORDS),
    )


def _bytes_read(bundle: Bundle, small: int) -> tuple[int, int, int]:
    """Bytes that a step of each subject reads: the graph but for its table, and the cache."""
    manifest = bundle.manifest
    graph = len(bundle.read(STEP_GRAPH))
    table = manifest.vocab_size * manifest.width
    cache = 4 * manifest.layers * 2 * 2 * manifest.tokens * manifest.width
    whole = graph - 4 * table + cache
    return whole, whole, small - table + cache


def _memory() -> float:
    """Return bytes/s at which one thread reads memory."""
    probe, reads = np.ones(_PROBED_BYTES // 4, np.float32), list[float]()
    for _ in range(_PROBES):
        begun = time.process_time()
        np.dot(probe, probe)
        reads.append(time.process_time() - begun)
    return _PROBED_BYTES / statistics.median(reads)
