"""The evaluation from a training folder to its table; each stage goes on where it was stopped."""

import math
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from fleet.decoding.accept import Policy
from fleet.errors import InvalidInputError
from fleet.models.bundle import DEVICE_FOLDER, PUBLIC_KEY, Bundle
from fleet.models.checkpoint import load_tokenizer
from fleet.prediction import SCORE_NAMES
from fleet.training.pictures import load_pictures
from simulations.evaluation import report
from simulations.evaluation.captions import chosen_captions, search_captions
from simulations.evaluation.catalogue import CLOUD, DEVICE, OURS, Shipped, check_names
from simulations.evaluation.clock.steps import measure
from simulations.evaluation.family import file_version, models_version
from simulations.evaluation.jobs import Studio, open_studio
from simulations.evaluation.latency_page import publish_latency
from simulations.evaluation.metrics import Estimate
from simulations.evaluation.order import Order
from simulations.evaluation.own_page import publish_own
from simulations.evaluation.publish import publish
from simulations.evaluation.sampling_page import publish_sampling
from simulations.evaluation.sampling_rule import SamplingRule
from simulations.evaluation.search import best_rules, save_search, search
from simulations.evaluation.standard import open_judges
from simulations.evaluation.study import Plan, Result, Row, Study
from simulations.evaluation.version import commit
from simulations.evaluation.why_page import publish_why

Page = Literal["latency", "why", "own", "sampling"]
Stage = Literal["real", "search-device", "search-cloud", "study", "all", "clock", Page]

_PAGES = {
    "latency": publish_latency,
    "why": publish_why,
    "own": publish_own,
    "sampling": publish_sampling,
}


def evaluate(order: Order, stage: Stage) -> None:
    """Runs one stage, or all of them.

    `real` computes what depends on the data set and the image tokenizer only, the searches
    choose the sampling rules, `study` draws and compares. What "all" leaves out: `clock` measures
    the step costs beforehand, for it wants the machine to itself; `latency`, `why`,
    `own` and `sampling` are pages of their own.
    """
    check_names(order.methods)
    commit()  # before anything is written
    if stage == "clock":
        order.out.mkdir(parents=True, exist_ok=True)
        measure(order.models).save(order.costs_path)
        return
    judges = open_judges(order.weights, order.out / "standard")
    pictures = load_pictures(order.work)
    chosen = chosen_captions(pictures, order.pictures, order.seeds)
    console = Console(width=200)
    with open_studio(order.work, order.out, order.processes, order.threads) as studio:
        study = Study(studio, pictures, chosen)
        if stage in {"real", "all"}:
            _real(order, study)
        for which in ("device", "cloud"):
            if stage in {f"search-{which}", "all"}:
                _search(order, studio, study, which)
        if stage in _PAGES:
            _PAGES[stage](order, _plan(order), studio, study)
        if stage not in {"study", "all"}:
            return
        plan = _plan(order)
        results = study.run(plan)
        rows = _real(order, study) + [result.row for result in results]
        _write_table(order, plan, rows, study.discrimination(results[0].sample, results[1].sample))
        sheet = _sheet(study, results)
        report.write_sheet(order.out / "evaluation.png", chosen.captions, sheet)
        if order.page is not None:
            publish(order, plan, studio, study, results, judges)
    console.print(report.table(rows))


def _write_table(order: Order, plan: Plan, rows: list[Row], gap: Estimate) -> None:
    made_from = {
        "family": models_version(order.work),
        "commit": commit(),
        "groups": order.seeds,
    }
    report.write_json(order.out / "evaluation.json", plan, rows, gap, made_from)
    (order.out / "evaluation.md").write_text(report.markdown(rows), encoding="utf-8")


def _sheet(study: Study, results: list[Result]) -> dict[str, NDArray[np.uint8]]:
    """Real pictures and what each method drew for the same captions."""
    drawn = {result.method.name: result.sample.pictures for result in results}
    return {"real": study.real_pixels} | drawn


def _real(order: Order, study: Study) -> list[Row]:
    path = order.work / "tokenizer.pt"
    others = search_captions(study.pictures, order.pictures // 2, study.assignment)
    return study.real_rows(others, load_tokenizer(path), file_version(path))


def _search(order: Order, studio: Studio, study: Study, which: str) -> None:
    assignment = search_captions(study.pictures, order.searched, study.assignment)
    save_search(order.search_path, which, search(studio, which, assignment, study.real_features()))


def _plan(order: Order) -> Plan:
    rules = best_rules(order.search_path)
    shipped = shipped_policy(order.models)
    names = tuple(name for name in order.methods if name not in {CLOUD, DEVICE, OURS})
    return Plan(order.pictures, order.others, rules, shipped, names, order.budget)


def shipped_policy(models: Path) -> Shipped:
    """The policy in the manifest of an exported family.

    Raises:
        BundleError: The bundle is not what was signed.
        InvalidInputError: Its score is unknown here.
    """
    manifest = Bundle.open(models / DEVICE_FOLDER, models / PUBLIC_KEY).manifest
    if manifest.score not in SCORE_NAMES:
        raise InvalidInputError(f"the bundle decides by {manifest.score!r}, which is unknown here")
    sampling = SamplingRule(
        manifest.sampling.temperature, manifest.sampling.top_k, manifest.sampling.guidance
    )
    policy = Policy(
        manifest.score,
        manifest.threshold,
        call_share=manifest.call_share if manifest.dynamic else 0.0,
        max_run=manifest.max_run,
        row_length=math.isqrt(manifest.tokens) if manifest.row_starts else 0,
    )
    return Shipped(sampling, policy, manifest.prefix_tokens)
