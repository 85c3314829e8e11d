"""Does a picture show its caption? A small contrastive model of captions and picture features.

Both sides end on the unit sphere of 64 dimensions: the mean of the caption's word vectors, and
the frozen features of EfficientNet-Lite0, standardised, through a narrow layer each. It is
trained on the training split only, with the symmetric cross-entropy of a batch's similarities
(CLIP, arXiv:2103.00020).
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from fleet.models.caption import PAD_ID, CaptionVocabulary, pad_left
from fleet.models.checkpoint import load_checkpoint, load_weights, save_checkpoint

DIM, HIDDEN, STEPS, BATCH, RATE = 64, 256, 400, 256, 2e-3
RIVALS = 100  # captions among which a picture's own one is looked for
_FEATURES, _WORDS = 1280, 16
_NOISE = 0.3  # of the standardised features, against learning the training pictures by heart


class CaptionScorer(nn.Module):
    """Similarities of captions and pictures."""

    mean: Tensor
    deviation: Tensor

    def __init__(self, words: int) -> None:
        super().__init__()
        self.word = nn.Embedding(words, HIDDEN, padding_idx=PAD_ID)
        self.text = nn.Sequential(nn.GELU(), nn.Linear(HIDDEN, DIM))
        self.picture = nn.Sequential(
            nn.Linear(_FEATURES, HIDDEN), nn.GELU(), nn.Dropout(0.3), nn.Linear(HIDDEN, DIM)
        )
        self.log_scale = nn.Parameter(torch.tensor(2.5))
        self.register_buffer("mean", torch.zeros(_FEATURES))
        self.register_buffer("deviation", torch.ones(_FEATURES))

    def captions(self, words: Tensor) -> Tensor:
        """Unit vectors [B, 64] of captions [B, C] of word ids."""
        present = (words != PAD_ID).sum(dim=1, keepdim=True).clamp(min=1)
        mean = self.word(words).sum(dim=1) / present.sqrt()
        return F.normalize(self.text(mean), dim=-1)

    def pictures(self, features: Tensor) -> Tensor:
        """Unit vectors [B, 64] of features [B, 1280]."""
        scaled = (features - self.mean) / self.deviation
        if self.training:
            scaled = scaled + _NOISE * torch.randn_like(scaled)
        return F.normalize(self.picture(scaled), dim=-1)


@dataclass(frozen=True, slots=True)
class Retrieval:
    """How often a picture's own caption is the nearest, or among the five nearest, of all."""

    first: float
    five: float
    among: int
    cosine: float  # mean similarity to the own caption


@dataclass(frozen=True, slots=True)
class Judge:
    """A trained scorer with its vocabulary."""

    scorer: CaptionScorer
    vocabulary: CaptionVocabulary

    @torch.inference_mode()
    def retrieval(self, features: NDArray[np.float32], captions: list[str]) -> Retrieval:
        """Where each picture's caption ranks, in blocks of up to 100 pictures with theirs."""
        size = min(RIVALS, len(captions))
        ranks, own = [], []
        for start in range(0, len(captions) - size + 1, size):
            block = slice(start, start + size)
            shown = self.scorer.pictures(torch.from_numpy(features[block]))
            told = self.scorer.captions(_ids(self.vocabulary, captions[block]))
            likeness = shown @ told.T
            mine = likeness.diagonal()
            ranks.append((likeness > mine[:, None]).sum(dim=1))
            own.append(mine)
        rank = torch.cat(ranks)
        return Retrieval(
            float((rank == 0).float().mean()),
            float((rank < 5).float().mean()),
            size,
            float(torch.cat(own).mean()),
        )


def train(
    path: Path,
    vocabulary: CaptionVocabulary,
    features: NDArray[np.float32],
    captions: list[str],
    steps: int = STEPS,
) -> Judge:
    """The scorer in `path`, or one trained on features [N, 1280] with their captions."""
    scorer = CaptionScorer(len(vocabulary.words))
    if path.exists():
        load_weights(scorer, load_checkpoint(path)["model"])
        return Judge(scorer.eval(), vocabulary)
    rng = np.random.default_rng(0)
    torch.manual_seed(0)
    seen, words = torch.from_numpy(features), _ids(vocabulary, captions)
    scorer.mean.copy_(seen.mean(dim=0))
    scorer.deviation.copy_(seen.std(dim=0).clamp(min=0.1 * float(seen.std(dim=0).median())))
    optimizer = torch.optim.AdamW(scorer.parameters(), lr=RATE, weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=steps)
    scorer.train()
    for _ in range(steps):
        rows = rng.choice(len(seen), min(BATCH, len(seen)), replace=False)
        likeness = scorer.pictures(seen[rows]) @ scorer.captions(words[rows]).T
        scaled, own = likeness * scorer.log_scale.exp(), torch.arange(len(rows))
        loss = F.cross_entropy(scaled, own) + F.cross_entropy(scaled.T, own)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        schedule.step()
    save_checkpoint(path, {"model": scorer.state_dict()})
    return Judge(scorer.eval(), vocabulary)


def _ids(vocabulary: CaptionVocabulary, captions: list[str]) -> Tensor:
    ids = [pad_left(vocabulary.encode_leniently(text), _WORDS) for text in captions]
    return torch.tensor(ids)
