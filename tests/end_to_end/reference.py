"""What the fleet must draw, by definition: both models at every position, no network.

Independent of hub and agent: no sessions, windows, requests, rollbacks.
"""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from fleet.decoding.accept import START, Decision, Policy, decide, follow, score_of
from fleet.decoding.sampling import draw, sharpen
from fleet.decoding.uncertainty import quantise_features, restore_features
from fleet.models.bundle import CLOUD_FOLDER, DEVICE_FOLDER, PUBLIC_KEY, Bundle
from fleet.models.caption import pad_left
from fleet.models.onnx_model import DeviceModel, ImageDecoder
from fleet.models.torch_model import CloudModel
from tests.end_to_end.teacher import Teacher

PREFIX, LOCAL, VERIFIED, CORRECTED = range(4)


@dataclass(frozen=True, slots=True, eq=False)
class Reference:
    """A picture as it must be."""

    tokens: NDArray[np.int64]  # [T]
    decisions: NDArray[np.uint8]  # [T]
    scores: NDArray[np.float64]  # [T], of the policy's score
    image: NDArray[np.uint8]  # [side, side, 3]


@cache
def bundle(models: Path) -> Bundle:
    """The device bundle, opened once."""
    return Bundle.open(models / DEVICE_FOLDER, models / PUBLIC_KEY)


@cache
def _device(models: Path) -> DeviceModel:
    return DeviceModel.load(bundle(models))


@cache
def _cloud(models: Path) -> CloudModel:
    torch.set_num_threads(1)
    return CloudModel.load(models / CLOUD_FOLDER)


@cache
def reference(models: Path, caption: str, seed: int, policy: Policy, prefix: int) -> Reference:
    """The picture of `caption` with `seed`, in the bundle's sampling, with interval features."""
    device, cloud = _device(models), _cloud(models)
    manifest = device.manifest
    words = device.vocabulary.encode(caption)
    state = device.begin(words, seed=seed, sampling=manifest.sampling, policy=policy)
    row = np.array([pad_left(words, manifest.caption_positions)], np.int64)
    teacher = Teacher(cloud.engine, row, manifest.sampling.guidance)
    scale = np.array(manifest.feature_scale, np.float32)
    tokens = np.zeros(manifest.tokens, np.int64)
    decisions = np.zeros(manifest.tokens, np.uint8)
    scores, track = np.zeros(manifest.tokens), START
    for position in range(manifest.tokens):
        before = int(tokens[position - 1]) if position else -1
        prediction = device.step(state, position, before)
        own = int(draw(sharpen(teacher.logits(), manifest.sampling), state.noise[position]))
        scores[position] = score_of(prediction, policy, seed)
        accepts = decide(policy, scores[position], position, track) is Decision.ACCEPT
        local = position >= prefix and accepts
        if position >= prefix:
            track = follow(policy, track, not local)
        tokens[position] = prediction.token if local else own
        if position >= prefix:
            kept = VERIFIED if own == prediction.token else CORRECTED
            decisions[position] = LOCAL if local else kept
        added = None
        if local:
            sent = restore_features(quantise_features(prediction.feature[None], scale), scale)
            with torch.inference_mode():
                added = cloud.interval_feature(torch.from_numpy(sent))
        if position + 1 < manifest.tokens:
            teacher.push(tokens[position : position + 1], added)
    image = ImageDecoder.load(bundle(models)).decode(tokens)
    return Reference(tokens, decisions, scores, image)
