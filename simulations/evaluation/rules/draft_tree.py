"""Draft trees: the drafter's guesses at the next tokens, as one tree a picture.

Dynamic (EAGLE-2, arXiv:2406.16858): each level expands the nodes whose paths the drafter finds
most likely; in the end the most likely of all nodes are kept. Static (EAGLE, LANTERN++): a fixed
number of children at each depth, drawn without replacement.
"""

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from fleet.decoding.sampling import Sharpening, law, sharpen
from fleet.models.branches import Branches
from simulations.evaluation.tree_attention import ROOT, Nodes

Indices = NDArray[np.int64]
Laws = NDArray[np.float64]
Kind = TypeVar("Kind", bound=np.generic)


@dataclass(frozen=True, slots=True, eq=False)
class DraftTree:
    """One tree; a parent stands before its children.

    Attributes:
        tokens: [M].
        parents: [M], `ROOT` for those that follow the settled tokens.
        laws: The drafter's law [V] at the root and at each node that has children.
    """

    tokens: Indices
    parents: Indices
    laws: dict[int, Laws]

    def children(self, node: int) -> Indices:
        """The nodes that follow `node`, in the order in which they are to be judged."""
        return np.flatnonzero(self.parents == node)


def grow_dynamic(
    device: Branches,
    pictures: Indices,
    first: Laws,
    sampling: Sharpening,
    shape: tuple[int, int, int],
) -> list[DraftTree]:
    """Trees of `pictures` from the laws [b, V] of their next tokens.

    `shape`: nodes kept, depth, and width: how many nodes a level expands, and how many children
    each of them gets.
    """
    keep, depth, width = shape
    size = len(pictures)
    values, tokens = _best(first[:, None], width)  # [b, width]
    parents = np.full(tokens.shape, ROOT)
    all_tokens, all_parents, all_values = [tokens], [parents], [values]
    expanded = np.full(tokens.shape, ROOT)  # index among the run nodes of each node's parent
    nodes, run, level = Nodes(device, pictures), 0, 0
    for _ in range(depth - 1):
        chosen = np.argsort(-values, axis=1, kind="stable")[:, :width]
        picked = _take(tokens, chosen)
        found = law(sharpen(nodes.run(picked, _take(expanded, chosen)), sampling))
        likely, tokens = _best(found.astype(np.float64), width)  # [b, width * width]
        values = likely * np.repeat(_take(values, chosen), width, axis=1)
        expanded = np.repeat(np.arange(run, run + width), width)[None].repeat(size, axis=0)
        all_parents.append(np.repeat(level + chosen, width, axis=1))
        level += all_tokens[-1].shape[1]
        run += width
        all_tokens.append(tokens)
        all_values.append(values)
    codes, before, worth = (
        np.concatenate(part, axis=1) for part in (all_tokens, all_parents, all_values)
    )
    return [_rerank(codes[row], before[row], worth[row], keep) for row in range(size)]


def grow_static(
    device: Branches,
    pictures: Indices,
    first: Laws,
    sampling: Sharpening,
    children: tuple[int, ...],
    rngs: list[np.random.Generator],
) -> list[DraftTree]:
    """Trees with `children[d]` children at depth d, drawn without replacement."""
    laws = first[:, None]
    tokens = np.zeros((len(pictures), 0), np.int64)
    parents, owners, nodes = tokens.copy(), np.array([ROOT]), Nodes(device, pictures)
    kept: list[dict[int, Laws]] = [{} for _ in rngs]
    for depth, count in enumerate(children):
        for row in range(len(rngs)):
            kept[row] |= dict(zip(owners.tolist(), laws[row], strict=True))
        drawn = np.stack(
            [_without_replacement(*each, count) for each in zip(laws, rngs, strict=True)]
        )
        before = np.broadcast_to(np.repeat(owners, count), drawn.shape)
        owners = np.arange(tokens.shape[1], tokens.shape[1] + drawn.shape[1])
        tokens = np.concatenate([tokens, drawn], axis=1)
        parents = np.concatenate([parents, before], axis=1)
        if depth + 1 < len(children):
            laws = law(sharpen(nodes.run(drawn, before), sampling)).astype(np.float64)
    return [DraftTree(*each) for each in zip(tokens, parents, kept, strict=True)]


def _rerank(tokens: Indices, parents: Indices, values: Laws, keep: int) -> DraftTree:
    """The `keep` most likely nodes. A path is never likelier than its beginning, so they hang
    together; ties go to the node that was found first."""
    best = np.argsort(-values, kind="stable")[:keep]
    place = np.full(len(tokens), ROOT)
    place[best] = np.arange(len(best))
    before = np.where(parents[best] == ROOT, ROOT, place[parents[best]])
    return DraftTree(tokens[best], before, {})


def _best(laws: Laws, width: int) -> tuple[Laws, Indices]:
    """The `width` largest of laws [b, n, V], as [b, n * width] values and codes."""
    found = torch.from_numpy(laws).topk(width, dim=-1)
    return found.values.flatten(1).numpy(), found.indices.flatten(1).numpy()


def _without_replacement(laws: Laws, rng: np.random.Generator, count: int) -> Indices:
    """`count` different codes from each of laws [n, V], in the order drawn: [n * count].

    Exponential clocks: the first `count` of E / q are draws without replacement.
    """
    with np.errstate(divide="ignore"):
        clocks = rng.exponential(size=laws.shape) / laws
    return np.argsort(clocks, axis=-1, kind="stable")[:, :count].flatten()


def _take(values: NDArray[Kind], index: Indices) -> NDArray[Kind]:
    return np.take_along_axis(values, index, axis=1)
