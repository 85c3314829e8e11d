"""From the results at equal calls to everything that the page shows."""

from simulations.evaluation import findings, page
from simulations.evaluation.catalogue import CLOUD, DEVICE, OURS
from simulations.evaluation.jobs import Sample, Studio
from simulations.evaluation.latency_page import step_costs
from simulations.evaluation.order import Order
from simulations.evaluation.own import own_best
from simulations.evaluation.search import told
from simulations.evaluation.standard import Judges
from simulations.evaluation.study import CEILING, Plan, Result, Study, rate_of


def publish(
    order: Order,
    plan: Plan,
    studio: Studio,
    study: Study,
    results: list[Result],
    judges: Judges | None,
) -> None:
    """Draw and measure what the table does not need, and write page, figures and Parquet."""
    assert order.page is not None
    figures = order.page.with_suffix("")
    figures.mkdir(parents=True, exist_ok=True)
    by_name = {result.method.name: result for result in results}
    ours, ends = by_name[OURS], (by_name[CLOUD].sample, by_name[DEVICE].sample)
    own = _own(order, plan, studio, study, results, ends) if order.own else []
    costs = step_costs(order)
    scorer = findings.judge(studio, study, order.work, order.out)
    captions = study.assignment.captions
    lines = findings.lines(results, "equal calls", scorer, captions, costs)
    lines += findings.lines(own, "own best", scorer, captions, costs)
    whole = findings.Findings(
        lines=findings.by_standard(lines, judges, study),
        real=findings.on_real_pictures(studio, study, scorer),
        intervals=findings.look_at_intervals(order.work, study, ours, figures),
    )
    findings.draw_figures(figures, whole, study)
    page.write_parquet(order.out / "evaluation.parquet", whole)
    facts = _facts(order, study, results) | {"gap": study.discrimination(*ends)}
    page.write_page(order.page, whole, facts)


def _own(
    order: Order,
    plan: Plan,
    studio: Studio,
    study: Study,
    results: list[Result],
    ends: tuple[Sample, Sample],
) -> list[Result]:
    """The ends as they are, and the methods between them at their own best rules."""
    fixed = {CLOUD, DEVICE, CEILING}
    methods = [result.method for result in results if result.method.name not in fixed]
    ours = next(result for result in results if result.method.name == OURS)
    at_ends = [result for result in results if result.method.name in {CLOUD, DEVICE}]
    best = own_best(order, plan, studio, study, methods, rate_of(plan, ours.sample))
    return [*at_ends, *study.at_own_best(plan, ends, best)]


def _facts(order: Order, study: Study, results: list[Result]) -> dict[str, object]:
    return {
        **page.origin(order.work),
        "pictures": order.pictures,
        "others": order.others,
        "seeds": order.seeds,
        "calls": page.calls(order.budget, len(study.matching_captions().rows), results),
        "searched": told(order.search_path),
    }
