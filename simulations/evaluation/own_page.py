"""Each method at its own best sampling, as a page of its own; written, never edited."""

from simulations.evaluation import page, report
from simulations.evaluation.jobs import Studio
from simulations.evaluation.methods import Method, cloud_only, device_only
from simulations.evaluation.order import Order
from simulations.evaluation.own import at_edge, candidates, own_best
from simulations.evaluation.sampling_rule import SamplingRule
from simulations.evaluation.search import ranked_rules
from simulations.evaluation.study import Plan, Study, rate_of

_HEAD = (
    """# Each method at its own best sampling

Written by `python -m simulations evaluate --stage own`; definitions are in
[evaluation.md](evaluation.md#on-the-pages-only); all methods at one sampling rule are in
[results.md](results.md).

"""
    + page.ORIGIN
    + """| pictures | {others} of each method, the same captions and seeds for all |
| seeds | {seeds} |
| calls asked for | {calls} |
| rules tried | {rules} |
| tried on | {searched} other captions each |

"""
)


def publish_own(order: Order, plan: Plan, studio: Studio, study: Study) -> None:
    """Search, draw what is missing, and write the page."""
    assert order.page is not None
    ends = [cloud_only(plan.rules["cloud"]), device_only(plan.rules["device"])]
    wanted = [(each, plan.others) for each in (*ends, plan.shipped.method)]
    cloud, device, ours = studio.draw(wanted, study.assignment)
    methods = study.between(plan, ours)
    best = own_best(order, plan, studio, study, methods, rate_of(plan, ours))
    rows = [
        study.row(end, sample, cloud, (cloud, device))
        for end, sample in zip(ends, (cloud, device), strict=True)
    ]
    found = study.at_own_best(plan, (cloud, device), best)
    rows += [each.row for each in found]
    tried = candidates(ranked_rules(order.search_path), plan.shipped.sampling)
    head = _HEAD.format(
        **page.origin(order.work),
        others=order.others,
        seeds=order.seeds,
        calls=page.calls(order.budget, len(study.matching_captions().rows), found),
        searched=order.searched,
        rules="; ".join(map(str, tried)),
    )
    order.page.write_text(head + report.markdown(rows) + _edges(best, tried), encoding="utf-8")


def _edges(best: list[Method], tried: list[SamplingRule]) -> str:
    names = [f"`{each.name}` ({each.sampling.temperature:g})" for each in at_edge(best, tried)]
    if not names:
        return "\nNo best lies at the lowest or the highest temperature tried.\n"
    return (
        f"\nAt the lowest or the highest temperature tried, so perhaps not at their best:"
        f" {', '.join(names)}.\n"
    )
