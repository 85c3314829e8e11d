"""The figures that papers report, by the networks that they name, where their weights are given.

Nothing is fetched: FID's Inception comes as the TorchScript file `inception-2015-12-05.pt` of
StyleGAN's authors, which clean-fid takes too: called with uint8 pictures and `return_features=True`
it gives 2048 numbers. CLIP and HPSv2 are folders of `transformers`' `CLIPModel` with a processor.
"""

import hashlib
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image

from fleet.errors import InvalidInputError
from simulations.evaluation.metrics import frechet_distance

NAMES = {"fid": "FID", "clip": "CLIP score", "hpsv2": "HPSv2"}
_BATCH = 16

Pixels = NDArray[np.uint8]  # [N, H, W, 3]
Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class Judges:
    """The networks that were given.

    Attributes:
        inception: Pictures to features [N, 2048], or None.
        likeness: By name, pictures and captions to the cosine [N] of each with its own.
    """

    inception: Callable[[Pixels], Floats] | None
    likeness: Mapping[str, Callable[[Pixels, Sequence[str]], Floats]]

    def figures(
        self, real: Pixels, made: Pixels, captions: Sequence[str]
    ) -> dict[str, float | None]:
        """The figures by name in `NAMES`; None where a network was not given.

        FID is of features as they are, against as many real pictures as were made: below 2048
        of them it is no estimate of anything, but still compares sets of one size. The CLIP
        score is 100 times the mean cosine, cut at 0 (arXiv:2104.08718, without its 2.5), HPSv2's
        100 times the mean one (arXiv:2306.09341).
        """
        found: dict[str, float | None] = dict.fromkeys(NAMES)
        if self.inception is not None:
            features = (self.inception(each).astype(np.float64) for each in (real, made))
            found["fid"] = frechet_distance(*features)
        for name, likeness in self.likeness.items():
            cosine = likeness(made, captions)
            kept = cosine.clip(min=0) if name == "clip" else cosine
            found[name] = 100 * float(kept.mean())
        return found


def open_judges(weights: Mapping[str, Path], kept: Path) -> Judges | None:
    """The networks of `weights` by name in `NAMES`, or None if there are none.

    What they say of a set of pictures is kept in the folder `kept`.

    Raises:
        InvalidInputError: Some weights cannot be read, or are others.
    """
    if not weights:
        return None
    inception = None
    if "fid" in weights:
        inception = _kept(kept, weights["fid"], _inception(weights["fid"]))
    likeness = {
        name: _kept(kept, path / "model.safetensors", _clip(path))
        for name, path in weights.items()
        if name != "fid"
    }
    return Judges(inception, likeness)


def _inception(path: Path) -> Callable[[Pixels], Floats]:
    try:
        with (
            warnings.catch_warnings()
        ):  # torch would rather have other files than the published one
            warnings.simplefilter("ignore", DeprecationWarning)
            network = torch.jit.load(str(path), map_location="cpu").eval()
    except (RuntimeError, ValueError) as error:
        raise InvalidInputError(
            f"{path} is no TorchScript file: FID takes inception-2015-12-05.pt"
        ) from error

    @torch.inference_mode()
    def features(pictures: Pixels) -> Floats:
        parts = torch.tensor(pictures).permute(0, 3, 1, 2).split(_BATCH)
        return np.concatenate([network(part, return_features=True).numpy() for part in parts])

    return features


def _clip(folder: Path) -> Callable[[Pixels, Sequence[str]], Floats]:
    try:
        from transformers import CLIPModel, CLIPProcessor
    except ImportError as error:
        raise InvalidInputError("CLIP and HPSv2 need transformers: install 'text'") from error
    try:
        model = CLIPModel.from_pretrained(folder, local_files_only=True).eval()
        processor = CLIPProcessor.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError) as error:
        raise InvalidInputError(
            f"{folder} holds no CLIPModel with its processor, as transformers saves them"
        ) from error

    @torch.inference_mode()
    def likeness(pictures: Pixels, captions: Sequence[str]) -> Floats:
        found = []
        for start in range(0, len(pictures), _BATCH):
            part = slice(start, start + _BATCH)
            given: Any = processor(
                text=list(captions[part]),
                images=[Image.fromarray(each) for each in pictures[part]],
                return_tensors="pt",
                padding=True,
                truncation=True,
            )
            said = model(**given)
            found.append(F.cosine_similarity(said.image_embeds, said.text_embeds).numpy())
        return np.concatenate(found)

    return likeness


def _kept(folder: Path, weights: Path, network: Callable[..., Floats]) -> Callable[..., Floats]:
    """The network, whose answers are kept by its weights and what it was asked."""
    version = hashlib.sha256(weights.read_bytes()).digest() if weights.exists() else b""

    def answer(pictures: Pixels, captions: Sequence[str] = ()) -> Floats:
        digest = hashlib.sha256(version)
        digest.update(pictures.tobytes())
        digest.update("\n".join(captions).encode())
        path = folder / f"{digest.hexdigest()[:16]}.npy"
        if not path.exists():
            found = network(pictures, captions) if captions else network(pictures)
            folder.mkdir(parents=True, exist_ok=True)
            np.save(path.with_suffix(".partial.npy"), found)
            path.with_suffix(".partial.npy").replace(path)
        answered: Floats = np.load(path)
        return answered

    return answer
