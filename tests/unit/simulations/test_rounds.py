"""Chains and trees: a tree's logits are its paths' logits; rounds draw what forwards would."""

import numpy as np
import pytest
import torch

from fleet.decoding.residual import acceptance, correction
from fleet.decoding.sampling import draw, guide, law, sharpen
from fleet.models.branches import Branches
from fleet.models.transformer import Transformer
from simulations.evaluation.decoder import decode
from simulations.evaluation.family import Family
from simulations.evaluation.methods import Method
from simulations.evaluation.moment import CORRECTED, PREFIX, VERIFIED, Luck
from simulations.evaluation.rules.candidates import REFUSED, choose
from simulations.evaluation.rules.draft_tree import grow_dynamic, grow_static
from simulations.evaluation.rules.rounds import Chain, Relaxation, Tree
from simulations.evaluation.sampling_rule import SamplingRule
from simulations.evaluation.tree_attention import ROOT, Nodes
from tests.unit.simulations.families import GRID, VOCAB, tiny_family

TOKENS = GRID * GRID
RULE = SamplingRule(temperature=0.8, top_k=10, guidance=1.5)
SMALL = Tree(keep=9, depth=3, width=3)


@pytest.fixture(scope="module")
def family() -> Family:
    return tiny_family()


@torch.inference_mode()
def path_logits(model: Transformer, words: np.ndarray, path: list[int], scale: float) -> np.ndarray:
    """Guided logits [V] after a path of tokens, from one pass without any cache."""
    rows, past = torch.from_numpy(words), torch.tensor([path], dtype=torch.int64)
    sides = [model(past, rows, torch.tensor([w]))[1][:, -1].numpy() for w in (False, True)]
    guided: np.ndarray = guide(sides[0], sides[1], scale)[0]
    return guided


def started(model: Transformer, family: Family, tokens: list[list[int]]) -> Branches:
    branches = Branches.of_words(model, family.words(["a b", "c"]), 1.5)
    for column in np.array(tokens).T:
        branches.push(column)
    return branches


@pytest.mark.parametrize("at_once", [True, False])
def test_every_node_of_a_tree_has_the_logits_of_its_path(family: Family, at_once: bool) -> None:
    settled = [[3, 7, 1], [0, 4, 9]]
    parents = np.array([[ROOT, ROOT, 0, 2, 1, 0]] * 2)
    tokens = np.random.default_rng(0).integers(0, VOCAB, parents.shape)
    nodes = Nodes(started(family.cloud, family, settled), np.array([0, 1]))

    parts = [slice(0, 6)] if at_once else [slice(0, 2), slice(2, 3), slice(3, 6)]
    found = np.concatenate([nodes.run(tokens[:, p], parents[:, p]) for p in parts], axis=1)

    words = family.words(["a b", "c"])
    for row in range(2):
        for node in range(6):
            path: list[int] = []
            place = node
            while place != ROOT:
                path.insert(0, int(tokens[row, place]))
                place = int(parents[row, place])
            expected = path_logits(family.cloud, words[row : row + 1], settled[row] + path, 1.5)
            np.testing.assert_allclose(found[row, node], expected, atol=1e-4)


def test_a_tree_of_some_pictures_leaves_the_others_and_the_cache_alone(family: Family) -> None:
    branches = started(family.cloud, family, [[3, 7], [0, 4]])
    before = branches.logits()

    alone = Nodes(branches, np.array([1])).run(np.array([[5]]), np.array([[ROOT]]))
    both = Nodes(branches, np.array([0, 1])).run(np.array([[5], [5]]), np.array([[ROOT], [ROOT]]))

    np.testing.assert_allclose(alone[0], both[1], atol=1e-5)
    np.testing.assert_array_equal(before, branches.logits())


def test_a_dynamic_tree_holds_the_likeliest_paths(family: Family) -> None:
    """Against all paths of the same search, laid out by brute force."""
    branches = started(family.device, family, [[3, 7], [0, 4]])
    first = law(sharpen(branches.logits(), RULE)).astype(np.float64)

    tree = grow_dynamic(branches, np.array([0, 1]), first, RULE, (9, 3, 3))[1]

    words = family.words(["c"])

    def best(path: tuple[int, ...]) -> list[tuple[float, int]]:
        logits = path_logits(family.device, words, [0, 4, *path], 1.5)
        found = law(sharpen(logits, RULE))
        return sorted(((float(found[k]), k) for k in range(VOCAB)), reverse=True)[:3]

    level: dict[tuple[int, ...], float] = {(code,): value for value, code in best(())}
    everything = dict(level)
    for _ in range(2):
        chosen = sorted(level, key=lambda path: -level[path])[:3]
        level = {(*p, code): level[p] * value for p in chosen for value, code in best(p)}
        everything |= level
    expected = sorted(everything, key=lambda path: -everything[path])[:9]
    assert {_path(tree, node) for node in range(9)} == set(expected)
    assert all(parent < node for node, parent in enumerate(tree.parents))


def _path(tree: object, node: int) -> tuple[int, ...]:
    tokens, parents = tree.tokens, tree.parents  # type: ignore[attr-defined]
    above = () if parents[node] == ROOT else _path(tree, int(parents[node]))
    return (*above, int(tokens[node]))


def test_a_static_tree_has_its_shape_and_no_child_twice(family: Family) -> None:
    branches = started(family.device, family, [[3, 7], [0, 4]])
    first = law(sharpen(branches.logits(), RULE)).astype(np.float64)
    rngs = [np.random.default_rng(row) for row in range(2)]

    tree = grow_static(branches, np.array([0, 1]), first, RULE, (3, 2, 1), rngs)[0]

    assert len(tree.tokens) == 3 + 6 + 6
    for node in (ROOT, *range(9)):
        children = tree.tokens[tree.children(node)]
        assert len(children) == (3 if node == ROOT else 2 if node < 3 else 1)
        assert len(set(children)) == len(children)
        assert tree.laws[node].sum() == pytest.approx(1.0)
    logits = path_logits(family.device, family.words(["a b"]), [3, 7, int(tree.tokens[0])], 1.5)
    np.testing.assert_allclose(tree.laws[0], law(sharpen(logits, RULE)), atol=1e-5)


def test_a_chain_draws_what_rounds_of_real_forwards_draw(family: Family) -> None:
    """Speculative sampling in rounds: drafts first, then one forward of the cloud over them."""
    method, seeds = Method("speculative", Chain(3), RULE), [5, 6]
    drawn = decode(family, method, ["a b", "c"], seeds)

    for row, caption in enumerate(["a b", "c"]):
        words = family.words([caption])
        luck = Luck([seeds[row]], TOKENS, VOCAB)
        tokens: list[int] = []
        starts: list[int] = []
        while len(tokens) < TOKENS:
            starts.append(len(tokens))
            tokens += _round(family, words, luck, tokens)
        assert drawn.tokens[row].tolist() == tokens[:TOKENS]
        assert np.flatnonzero(drawn.sent[row]).tolist() == starts


def _round(family: Family, words: np.ndarray, luck: Luck, tokens: list[int]) -> list[int]:
    start, drafted_from = len(tokens), []
    drafts: list[int] = []
    for position in range(start, min(start + 3, TOKENS)):
        logits = sharpen(path_logits(family.device, words, tokens + drafts, 1.5), RULE)
        drafts.append(int(draw(logits, luck.shared[0, position])))
        drafted_from.append(law(logits).astype(np.float64))
    with torch.inference_mode():
        past = torch.tensor([tokens + drafts])
        sides = [
            family.cloud(past, torch.from_numpy(words), torch.tensor([w]))[1][0, start:].numpy()
            for w in (False, True)
        ]
    judged = sharpen(guide(sides[0], sides[1], 1.5), RULE)
    for place, token in enumerate(drafts):
        position = start + place
        p, q = law(judged[place]).astype(np.float64), drafted_from[place]
        if luck.uniforms[0, position, 0] >= acceptance(p, q, 1.0)[token]:
            with np.errstate(divide="ignore"):
                left = np.log(correction(p[None], q[None], 1.0)[0])
            return [*drafts[:place], int(draw(left, luck.other[0, position]))]
    if start + 3 >= TOKENS:
        return drafts
    return [*drafts, int(draw(judged[3], luck.shared[0, start + 3]))]


def test_eagle_draws_what_a_forward_over_its_whole_tree_draws(family: Family) -> None:
    """EAGLE-2 in rounds: grow a tree, one tree-attention forward of the cloud, walk it."""
    seeds = [5, 6]
    drawn = decode(family, Method("EAGLE-2", SMALL, RULE), ["a b", "c"], seeds)

    for row, caption in enumerate(["a b", "c"]):
        words, luck = family.words([caption]), Luck([seeds[row]], TOKENS, VOCAB)
        cloud, device = (
            Branches.of_words(family.cloud, words, 1.5),
            Branches.of_words(family.device, words, 1.5),
        )
        tokens: list[int] = []
        while len(tokens) < TOKENS:
            new = _tree_round(cloud, device, luck)
            for token in new[: TOKENS - len(tokens)]:
                tokens.append(token)
                if len(tokens) < TOKENS:
                    cloud.push(np.array([token]))
                    device.push(np.array([token]))
        assert drawn.tokens[row].tolist() == tokens


def _tree_round(cloud: Branches, device: Branches, luck: Luck) -> list[int]:
    first = law(sharpen(device.logits(), RULE)).astype(np.float64)
    tree = grow_dynamic(device, np.array([0]), first, RULE, (9, 3, 3))[0]
    over_all = Nodes(cloud, np.array([0])).run(tree.tokens[None], tree.parents[None])[0]
    laws = law(sharpen(np.concatenate([cloud.logits(), over_all]), RULE)).astype(np.float64)
    node = ROOT
    new: list[int] = []
    while (position := cloud.position + len(new)) < TOKENS:
        children = tree.children(node)
        choice = choose(laws[node + 1], tree.tokens[children].tolist(), luck.uniforms[0, position])
        if choice.index == REFUSED:
            with np.errstate(divide="ignore"):
                return [*new, int(draw(np.log(choice.left), luck.other[0, position]))]
        node = int(children[choice.index])
        new.append(int(tree.tokens[node]))
    return new


@pytest.mark.parametrize(
    "rule", [Chain(3), SMALL, Tree(children=(3, 2, 1))], ids=["chain", "dynamic", "static"]
)
def test_lossless_rules_have_the_clouds_law(family: Family, rule: Chain | Tree) -> None:
    """Chi-square of the first two tokens of 1,500 pictures against the cloud's own laws."""
    count, sharp = 1500, SamplingRule(0.8, 3, 1.0)
    short = tiny_family()
    captions, seeds = ["a b"] * count, list(range(count))
    tokens = decode(short, Method("x", rule, sharp), captions, seeds).tokens[:, :2]

    cloud = Branches.of_words(family.cloud, family.words(["a b"]), 1.0)
    first = law(sharpen(cloud.logits(), sharp))[0].astype(np.float64)
    expected = np.zeros((VOCAB, VOCAB))
    for code in np.flatnonzero(first):
        then = path_logits(family.cloud, family.words(["a b"]), [int(code)], 1.0)
        expected[code] = first[code] * law(sharpen(then, sharp))
    observed = np.zeros((VOCAB, VOCAB))
    np.add.at(observed, (tokens[:, 0], tokens[:, 1]), 1)
    possible = expected > 0
    assert observed[~possible].sum() == 0
    square = ((observed - count * expected)[possible] ** 2 / (count * expected[possible])).sum()
    freedom = int(possible.sum()) - 1
    assert square < freedom + 4 * np.sqrt(2 * freedom)


def test_a_round_settles_its_accepted_drafts_and_one_more(family: Family) -> None:
    drawn = decode(family, Method("e", SMALL, RULE), ["a b"] * 8, list(range(8)))

    for decisions, sent in zip(drawn.decisions, drawn.sent, strict=True):
        ends = np.isin(decisions, (CORRECTED, PREFIX))
        assert sent[0] == 9
        np.testing.assert_array_equal(sent[1:] > 0, ends[:-1])
        assert set(np.unique(decisions)) <= {PREFIX, VERIFIED, CORRECTED}


def test_lantern_accepts_more_than_eagle(family: Family) -> None:
    relaxed = Tree(keep=9, depth=3, width=3, relaxation=Relaxation(0.5, 0.3))
    captions, seeds = ["a b", "c"] * 8, list(range(16))

    eagle = decode(family, Method("e", SMALL, RULE), captions, seeds)
    lantern = decode(family, Method("l", relaxed, RULE), captions, seeds)

    assert (lantern.sent > 0).sum() < (eagle.sent > 0).sum()
