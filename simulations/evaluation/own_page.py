"""Each method at its own best sampling, as a page of its own; written, never edited."""

from simulations.evaluation import page, report
from simulations.evaluation.catalogue import Setting
from simulations.evaluation.catalogue import method as by_name
from simulations.evaluation.jobs import Studio
from simulations.evaluation.methods import cloud_only, device_only
from simulations.evaluation.order import Order
from simulations.evaluation.own import candidates, own_best
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
    rate = rate_of(plan, ours)
    setting = Setting(plan.shipped, plan.shipped.sampling, rate, ours.tokens.shape[1])
    methods = [plan.shipped.method, *(by_name(name, setting) for name in plan.names)]
    best = own_best(order, plan, studio, study, methods, rate)
    rows = [
        study.row(end, sample, cloud, (cloud, device))
        for end, sample in zip(ends, (cloud, device), strict=True)
    ]
    rows += [found.row for found in study.at_own_best(plan, (cloud, device), best)]
    tried = candidates(ranked_rules(order.search_path), plan.shipped.sampling)
    head = _HEAD.format(
        **page.origin(order.work),
        others=order.others,
        seeds=order.seeds,
        searched=order.searched,
        rules="; ".join(map(str, tried)),
    )
    order.page.write_text(head + report.markdown(rows), encoding="utf-8")
