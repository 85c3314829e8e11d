"""Each method at its own best sampling rule, found on captions that no table is made of."""

from dataclasses import replace

import numpy as np

from simulations.evaluation.budget import matched
from simulations.evaluation.captions import Assignment, search_captions
from simulations.evaluation.catalogue import Setting, Shipped
from simulations.evaluation.catalogue import method as by_name
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
    """The methods at their own best rules, each asking about a share `rate` behind the prefix."""
    rules = candidates(ranked_rules(order.search_path), plan.shipped.sampling)
    assignment = search_captions(study.pictures, order.searched, study.assignment)
    searched = (assignment, study.standard, study.real)
    return best_settings(studio, methods, rules, plan.shipped, rate, searched)


def candidates(tables: dict[str, list[SamplingRule]], shipped: SamplingRule) -> list[SamplingRule]:
    """The rules worth trying for a method between the two ends; first the cloud's best."""
    rules = [*tables["cloud"][:BEST_OF_CLOUD], shipped, *tables["device"][:1]]
    return list(dict.fromkeys(rules))


def best_settings(
    studio: Studio,
    methods: list[Method],
    rules: list[SamplingRule],
    shipped: Shipped,
    rate: float,
    searched: tuple[Assignment, Standard, Features],
) -> list[Method]:
    """The methods, each at the rule at which its pictures are nearest to the real ones.

    Thresholds are matched to `rate` at every rule. What has the cloud's law has its best rule,
    `rules[0]`, without a search. `searched`: the captions to try on, and the real features with
    their standard.
    """
    assignment, standard, real = searched
    found = {m.name: (-np.inf, replace(m, sampling=rules[0])) for m in methods if is_lossless(m)}
    searching = [method for method in methods if method.name not in found]
    for rule in rules:
        there = replace(shipped, sampling=rule)
        count = len(assignment.rows)
        first = studio.draw([(there.method, count)], assignment)[0]
        setting = Setting(there, rule, rate, first.tokens.shape[1])
        tried = [_at(method, there, setting) for method in searching]
        tried = matched(studio, tried, first, rate, assignment, rounds=1)
        samples = studio.draw([(each, count) for each in tried], assignment)
        for each, sample in zip(tried, samples, strict=True):
            distance = squared_discrepancy(real, standard.apply(sample.features))
            if distance < found.get(each.name, (np.inf, each))[0]:
                found[each.name] = distance, each
    return [found[method.name][1] for method in methods]


def is_lossless(method: Method) -> bool:
    """Whether every token has the cloud's law."""
    rule = method.rule
    return isinstance(rule, Chain) or (isinstance(rule, Tree) and rule.relaxation is None)


def _at(method: Method, shipped: Shipped, setting: Setting) -> Method:
    return shipped.method if method.name == shipped.method.name else by_name(method.name, setting)
