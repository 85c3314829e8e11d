"""Export of a trained drafter: a signed bundle beside the cloud model that it was made for."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from fleet.decoding.accept import device_only
from fleet.errors import InvalidInputError
from fleet.models.bundle import (
    CAPTION_GRAPH,
    DECODER_GRAPH,
    DEVICE_FOLDER,
    PUBLIC_KEY,
    STEP_GRAPH,
    VOCABULARY,
    Bundle,
    Manifest,
    write_bundle,
)
from fleet.models.caption import PAD, UNKNOWN, CaptionVocabulary
from fleet.models.checkpoint import load_checkpoint
from fleet.models.drafter import Drafter, Start
from fleet.models.drafter_export import (
    CLASS_WORDS,
    LAYERS,
    DrafterStep,
    export_classes,
    export_drafter,
)
from fleet.models.export import export_decoder
from fleet.models.image_tokenizer import ImageTokenizer
from fleet.models.interval_feature import FeatureProjection
from fleet.models.linked import LinkedModel, add_interval_feature
from fleet.models.onnx_model import DeviceModel
from fleet.models.onnx_weights import in_int8
from fleet.models.signing import generate_key, write_public_key
from fleet.prediction import SCORE_NAMES, ScoreName
from fleet.protocol.arrays import FEATURE_BYTES
from fleet.protocol.condition import SentCondition, unpack_condition
from fleet.protocol.messages import Sampling
from fleet.training.budget import Bar
from fleet.training.calibrate import CALL_BUDGET, CALL_SHARE, PREFIX_SHARE
from fleet.training.drafter import CHECKPOINT
from fleet.training.drafter_adapter import Adapter, unit_codes
from fleet.training.drawings import Drawings
from fleet.training.sampling import SamplingRule

Precision = Literal["float32", "int8"]

# The word before a class's number, and the classes' first word id.
_FIRST_WORDS = (PAD, UNKNOWN, "class")


@dataclass(frozen=True)
class DrafterRelease:
    """What a person decides about an export; all else follows from the models."""

    precision: Precision
    score: ScoreName
    sampling: SamplingRule
    pictures: int  # that thresholds are taken along


@dataclass(frozen=True)
class DrafterParts:
    """What an export is made of; without an adapter no interval feature is sent."""

    cloud: LinkedModel
    drafter: Drafter
    tokenizer: ImageTokenizer
    adapter: Adapter | None


def load_drafter(work: Path, cloud: LinkedModel, rank: int) -> Drafter:
    """Read a trained drafter; the cloud's tables come from the cloud.

    Raises:
        InvalidInputError: It was not trained, or for another model.
    """
    if not (work / CHECKPOINT).exists():
        raise InvalidInputError(f"no drafter in {work}: run the train step first")
    drafter = Drafter.of(cloud.engine.transformer, rank)
    drafter.load_trained(load_checkpoint(work / CHECKPOINT)["trained"])
    return drafter.eval()


def export_drafter_bundle(
    folder: Path,
    parts: DrafterParts,
    drawings: Drawings,
    private_key: Path,
    release: DrafterRelease,
    bar: Bar,
) -> Manifest:
    """Write bundle and public key into a linked model's folder, where hub and devices find them.

    Thresholds are quantiles of the scores that the very graph which ships gives along the cloud's
    own drawings: as many tokens lie above one as may be asked about. The cloud's half of an adapter
    goes into the linked model's folder too, which makes the cloud another version.

    Args:
        folder: Of the linked model.
        parts: The models.
        drawings: Those that the drafter was trained on.
        private_key: Signs; made, with its public half, if it is missing.
        release: What a person decides.
        bar: Shows how far it is.

    Raises:
        InvalidInputError: There are too few drawings.
        OutputError: The folder cannot be written.
        BundleError: The key cannot be read.
    """
    if not private_key.exists():
        generate_key(private_key, private_key.with_suffix(".pub"))
    files, fields = _files(parts, release), _fields(parts, release)
    if parts.adapter is not None:
        config = add_interval_feature(folder, parts.adapter.feature)
        fields["cloud_version"] = config.version
    with TemporaryDirectory() as place:
        draft, key = Path(place) / "draft", Path(place) / "draft.pub"
        write_public_key(private_key, key)
        write_bundle(draft, fields, files, private_key)
        model = DeviceModel.load(Bundle.open(draft, key))
        fields["thresholds"] = _thresholds(model, parts.cloud, drawings, release, bar)
    manifest = write_bundle(folder / DEVICE_FOLDER, fields, files, private_key)
    write_public_key(private_key, folder / PUBLIC_KEY)
    return manifest


def class_vocabulary(classes: int) -> CaptionVocabulary:
    """Return the words of captions such as "class 207" and "207"."""
    return CaptionVocabulary((*_FIRST_WORDS, *map(str, range(classes))))


def _files(parts: DrafterParts, release: DrafterRelease) -> dict[str, bytes]:
    cloud, adapter, config = parts.cloud, parts.adapter, parts.cloud.engine.config
    projection = FeatureProjection(config.dim) if adapter is None else adapter.projection
    step = DrafterStep(parts.drafter.float().cpu(), projection, unit_codes(parts.tokenizer))
    graph = export_drafter(step)
    files = {
        STEP_GRAPH: in_int8(graph) if release.precision == "int8" else graph,
        DECODER_GRAPH: export_decoder(parts.tokenizer, config.n_token),
    }
    if config.n_class:
        start, words = Start.of(_all_classes(cloud)), class_vocabulary(config.n_class).words
        files[CAPTION_GRAPH] = export_classes(start, len(_FIRST_WORDS), config.n_head)
        files[VOCABULARY] = (json.dumps({"words": list(words)}) + "\n").encode()
    return files


@torch.inference_mode()
def _all_classes(cloud: LinkedModel) -> Any:
    every = torch.arange(cloud.engine.config.n_class + 1, device=cloud.engine.device)
    return cloud.engine.transformer.condition_classes(every)


def _fields(parts: DrafterParts, release: DrafterRelease) -> dict[str, Any]:
    cloud, tokenizer, adapter = parts.cloud, parts.tokenizer, parts.adapter
    config, rule = cloud.engine.config, release.sampling
    ones = (1.0,) * FEATURE_BYTES
    return {
        "family": cloud.family,
        "cloud_version": cloud.version,
        "grid": config.grid,
        "picture_size": config.grid * tokenizer.config.downsampling,
        "vocab_size": config.vocab_size,
        "caption_positions": CLASS_WORDS if config.n_class else config.caption_length,
        "condition": "words" if config.n_class else "hub",
        "has_features": adapter is not None,
        "layers": LAYERS,
        "heads": config.n_head,
        "head_dim": config.head_dim,
        "sampling": Sampling(
            temperature=rule.temperature, top_k=rule.top_k, guidance=rule.guidance
        ),
        "score": release.score,
        "thresholds": dict.fromkeys(SCORE_NAMES, 0.0),
        "budget": CALL_BUDGET,
        "prefix_tokens": int(PREFIX_SHARE * config.n_token),
        "feature_scale": ones if adapter is None else tuple(adapter.feature.scale.tolist()),
    }


def _thresholds(
    model: DeviceModel,
    cloud: LinkedModel,
    drawings: Drawings,
    release: DrafterRelease,
    bar: Bar,
) -> dict[str, float]:
    rows = drawings.rows("validation")[: release.pictures]
    seen = []
    for index, row in enumerate(rows):
        bar.show(index / len(rows), "thresholds")
        caption = _as_told(model, cloud, drawings.captions[row])
        seen.append(_scores(model, caption, drawings.tokens[row]))
    if not seen:
        raise InvalidInputError("no drawings for validation: draw at least ten pictures")
    quantiles = np.quantile(np.concatenate(seen), 1 - CALL_SHARE, axis=0)
    return dict(zip(SCORE_NAMES, map(float, quantiles), strict=True))


def _as_told(model: DeviceModel, cloud: LinkedModel, caption: str) -> Sequence[int] | SentCondition:
    """Return a caption as the device will have it."""
    if model.manifest.condition == "words":
        return model.vocabulary.encode(caption)
    told = cloud.told(cloud.condition_pair(cloud.captions.encode(caption)))
    return unpack_condition(told, model.manifest.width)


def _scores(
    model: DeviceModel, caption: Sequence[int] | SentCondition, tokens: NDArray[np.int64]
) -> NDArray[np.floating[Any]]:
    """Return the scores [n, 6] of the positions after the prefix of one picture."""
    sampling = model.manifest.sampling
    state = model.begin(caption, seed=0, sampling=sampling, policy=device_only())
    found = [
        model.step(state, position, int(tokens[position - 1]) if position else -1).scores
        for position in range(len(tokens))
    ]
    return np.stack(found[model.manifest.prefix_tokens :])
