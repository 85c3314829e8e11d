"""Each method at its own best sampling rule, found on captions that no table is made of."""

from dataclasses import replace

import numpy as np

from simulations.evaluation.budget import PARTS, matched
from simulations.evaluation.captions import Assignment, search_captions
from simulations.evaluation.jobs import Studio
from simulations.evaluation.methods import Method
from simulations.evaluation.metrics import Features, Standard, squared_discrepancy
from simulations.evaluation.order import Order
from simulations.evaluation.rules.rounds import Chain, Tree
from simulations.evaluation.sampling_rule import SamplingRule
from simulations.evaluation.search import ranked_rules
from simulations.evaluation.study import Plan, Study

BEST_OF_CLOUD = 3  # of the cloud's rules; the device's best and the shipped one join them


def own_best(
    order: Order, plan: Plan, studio: Studio, study: Study, methods: list[Method], rate: float
) -> list[Method]:
    """The methods at their own best rules, each asking about a share `rate` behind the prefix.

    `methods` have the thresholds at which they ask so under the shipped rule.
    """
    rules = candidates(ranked_rules(order.search_path), plan.shipped.sampling)
    assignment = search_captions(study.pictures, order.searched, study.assignment)
    searched = (assignment, study.standard, study.real)
    best = best_settings(studio, methods, rules, rate, searched)
    at_once = PARTS[1:]  # few captions say no more than the thresholds of the shipped rule
    return matched(studio, best, None, rate, study.matching_captions(), at_once)


def candidates(tables: dict[str, list[SamplingRule]], shipped: SamplingRule) -> list[SamplingRule]:
    """The rules worth trying for a method between the two ends; first the cloud's best.

    Of rules that differ in the cut alone the better one is tried.
    """
    ranked: dict[tuple[float, float], SamplingRule] = {}
    for rule in tables["cloud"]:
        ranked.setdefault((rule.temperature, rule.guidance), rule)
    rules = [*list(ranked.values())[:BEST_OF_CLOUD], shipped, *tables["device"][:1]]
    return list(dict.fromkeys(rules))


def best_settings(
    studio: Studio,
    methods: list[Method],
    rules: list[SamplingRule],
    rate: float,
    searched: tuple[Assignment, Standard, Features],
) -> list[Method]:
    """The methods, each at the rule at which its pictures are nearest to the real ones.

    What has the cloud's law has its best rule, `rules[0]`, without a search. Scores are of the
    laws before temperature and cut, so thresholds are matched to `rate` only where guidance is
    another. `searched`: the captions to try on, and the real features with their standard.
    """
    assignment, standard, real = searched
    found = {m.name: (-np.inf, replace(m, sampling=rules[0])) for m in methods if is_lossless(m)}
    searching = [method for method in methods if method.name not in found]
    for rule in rules:
        tried = [replace(method, sampling=rule) for method in searching]
        if any(rule.guidance != method.sampling.guidance for method in searching):
            tried = matched(studio, tried, None, rate, assignment, parts=(1.0,))
        samples = studio.draw([(each, len(assignment.rows)) for each in tried], assignment)
        for each, sample in zip(tried, samples, strict=True):
            distance = squared_discrepancy(real, standard.apply(sample.features))
            if distance < found.get(each.name, (np.inf, each))[0]:
                found[each.name] = distance, each
    return [found[method.name][1] for method in methods]


def at_edge(methods: list[Method], rules: list[SamplingRule]) -> list[Method]:
    """The methods that were searched and whose best has the lowest or highest temperature tried."""
    tried = [rule.temperature for rule in rules]
    edges = {min(tried), max(tried)}
    return [m for m in methods if not is_lossless(m) and m.sampling.temperature in edges]


def is_lossless(method: Method) -> bool:
    """Whether every token has the cloud's law."""
    rule = method.rule
    return isinstance(rule, Chain) or (isinstance(rule, Tree) and rule.relaxation is None)
