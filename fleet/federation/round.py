"""One round: train → gate → weigh → aggregate → validate."""

import random
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp.strategy import Strategy
from numpy.typing import NDArray

from fleet.federation import codec, gate
from fleet.federation.answers import (
    ability_of,
    reply_of,
    score_after,
    score_before,
    used,
    weighed,
)
from fleet.federation.client_app import CONFIG
from fleet.federation.cohort import Ability, Wanted, choose
from fleet.federation.collect import Patience, Way, collect
from fleet.federation.head import HeadChange, main_directions, no_change
from fleet.federation.ledger import Commit, Opening, Participant
from fleet.federation.part_of_grid import PartOfGrid
from fleet.federation.plan import Plan
from fleet.federation.strategies import Privacy, accountant_of, make_strategy, restore, state_of
from fleet.federation.task import Task
from fleet.federation.train import evaluate
from fleet.federation.validate import Score, Verdict, judge
from fleet.federation.weigh import node_weights

Arrays = Mapping[str, NDArray[Any]]

_WIRE = np.float16


class _Skipped(Exception):
    """The round cannot go on; its weights stay as they were."""

    def __init__(self, reason: str, out: Iterable[Participant] = ()) -> None:
        super().__init__(reason)
        self.reason, self.out = reason, tuple(out)


class Round:
    """A round by its number, from the last one's commit to its own."""

    def __init__(self, way: Way, task: Task, plan: Plan, last: Commit | None, number: int) -> None:
        self._way, self._task, self._plan = way, task, plan
        self._last, self._number = last, number
        self._directions = main_directions(task.head, plan.rank)
        self._before: Arrays = last.change if last else no_change(task.head, self._directions)

    def open(self) -> Opening:
        """Asks all nodes what they could do, and says who takes part."""
        grid, plan = self._way.grid, self._plan
        asked = ConfigRecord({"server-round": self._number, "cloud": plan.cloud_number})
        content = RecordDict({CONFIG: asked})
        nodes = sorted(grid.get_node_ids())
        questions = [Message(content, node, MessageType.QUERY) for node in nodes]
        answers = self._ask(questions, "query", plan.query_s)
        found = {node: ability_of(node, answers.get(node)) for node in nodes}
        able = [each for each in found.values() if isinstance(each, Ability)]
        unable = {node: each for node, each in found.items() if isinstance(each, str)}
        seed = plan.seed + self._number
        wanted = Wanted(self._task.head.version, plan.least_samples, plan.most_nodes, seed)
        return Opening(self._number, plan.seed, *choose(able, unable, wanted))

    def run(self, opening: Opening) -> Commit:
        """Runs what was opened; after a crash again, with the same bytes to the same nodes."""
        last = self._last
        unchanged = Commit(
            number=self._number,
            outcome="skipped",
            reason="",
            change=self._before,
            strategy_state=last.strategy_state if last else {},
            accountant=last.accountant if last else None,
            participants=opening.set_aside,
        )
        try:
            return self._aggregate(opening, unchanged)
        except _Skipped as skipped:
            everybody = (*opening.set_aside, *skipped.out)
            return replace(unchanged, reason=skipped.reason, participants=everybody)

    # ── The line ──────────────────────────────────────────────────────────────────────────

    def _aggregate(self, opening: Opening, unchanged: Commit) -> Commit:
        self._need(len(opening.cohort), "nodes could take part", ())
        strategy = self._strategy(len(opening.cohort))
        _seed_generators(opening)
        messages = self._instructions(strategy, opening)
        answers = self._ask(messages, "train", self._plan.deadline_s)
        admitted, out = self._admit(opening, messages, answers)
        self._need(len(admitted), "answers count", out)
        weights = self._weigh(admitted)
        record, _ = strategy.aggregate_train(self._number, weighed(messages, admitted, weights))
        if record is None:
            raise _Skipped("a private round needs an answer of each of its nodes", out)
        found = codec.from_record(record)
        candidate = {name: np.asarray(value, np.float32) for name, value in found.items()}
        after, verdict = self._validate(strategy, candidate, admitted, answers)
        counted = used(admitted, weights, after)
        kept = verdict.is_kept
        return replace(
            unchanged,
            outcome="kept" if kept else "discarded",
            reason=verdict.reason,
            change=candidate if kept else unchanged.change,
            strategy_state=state_of(strategy) if kept else unchanged.strategy_state,
            accountant=accountant_of(strategy),
            participants=(*opening.set_aside, *out, *counted),
            figures=verdict.figures,
        )

    def _need(self, count: int, what: str, out: Iterable[Participant]) -> None:
        least = self._plan.least_nodes
        if count < least:
            raise _Skipped(f"{count} {what}, {least} are needed", out)

    def _strategy(self, nodes: int) -> Strategy:
        plan, last = self._plan, self._last
        privacy = Privacy(plan.noise, plan.clip, plan.delta, plan.max_epsilon or None, nodes)
        strategy = make_strategy(
            plan.strategy,
            nodes,
            rate=plan.server_rate,
            proximal=plan.proximal,
            privacy=privacy if plan.noise else None,
        )
        if last is not None:
            restore(strategy, last.strategy_state, last.accountant)
        return strategy

    def _instructions(self, strategy: Strategy, opening: Opening) -> list[Message]:
        view = PartOfGrid(self._way.grid, [each.node for each in opening.cohort])
        record = codec.to_record(self._start)
        return list(strategy.configure_train(self._number, record, self._config, view))

    def _admit(
        self, opening: Opening, messages: list[Message], answers: Mapping[int, Message]
    ) -> tuple[list[gate.Admitted], list[Participant]]:
        """The answers that count, and what became of the other nodes."""
        replies, out = [], []
        for message in messages:
            node = message.metadata.dst_node_id
            answer = answers.get(node)
            if answer is None:
                wait = self._plan.deadline_s
                out.append(Participant(node, "silent", f"no answer within {wait:g} s"))
            elif answer.has_error():
                out.append(Participant(node, "failed", answer.error.reason or "no reason"))
            else:
                replies.append(reply_of(node, answer))
        announced = {each.node: each.samples for each in opening.cohort}
        admitted, refused = gate.examine(self._start, replies, announced, self._plan.limits)
        return admitted, [
            *out,
            *(Participant(each.node, "refused", each.reason) for each in refused),
        ]

    def _weigh(self, admitted: list[gate.Admitted]) -> NDArray[np.float64]:
        if self._plan.noise:  # the noise is counted for equal weights only
            return np.ones(len(admitted))
        examples = [each.examples for each in admitted]
        losses = [(each.loss_before, each.loss_error) for each in admitted]
        return node_weights(examples, losses, self._plan.node_ball, self._plan.node_cap)

    def _validate(
        self,
        strategy: Strategy,
        candidate: Arrays,
        admitted: list[gate.Admitted],
        trained: Mapping[int, Message],
    ) -> tuple[dict[int, Score], Verdict]:
        if not all(np.isfinite(value).all() for value in candidate.values()):
            return {}, Verdict(False, "the aggregate holds numbers that are not finite")
        view = PartOfGrid(self._way.grid, [each.node for each in admitted])
        record = codec.to_record(_half(candidate))
        messages = strategy.configure_evaluate(self._number, record, self._config, view)
        answers = self._ask(messages, "validate", self._plan.deadline_s)
        before = {each.node: score_before(trained[each.node]) for each in admitted}
        after = {node: score_after(answer) for node, answer in answers.items()}
        sound = {node: score for node, score in after.items() if score is not None}
        known = {node: score for node, score in before.items() if score is not None}
        return sound, judge(known, sound, self._holdout(candidate), self._plan.least_gain)

    def _holdout(self, candidate: Arrays) -> tuple[float, float] | None:
        samples = self._task.holdout
        if samples is None:
            return None
        pair = (
            evaluate(HeadChange(self._task.head, self._directions, change), samples).loss
            for change in (self._start, _half(candidate))
        )
        return next(pair), next(pair)

    # ── What is sent ──────────────────────────────────────────────────────────────────────

    @property
    def _start(self) -> dict[str, NDArray[np.float16]]:
        return _half(self._before)

    @property
    def _config(self) -> ConfigRecord:
        plan = self._plan
        values: dict[str, Any] = {
            "head": self._task.head.version,
            "directions": self._directions.astype("<f4").tobytes(),
            "cloud": plan.cloud_number,
            "loss": plan.loss,
            "steps": plan.steps,
            "batch": plan.batch,
            "rate": plan.rate,
            "most-samples": plan.most_samples,
            "seed": plan.seed,
        }
        return ConfigRecord(values)

    def _ask(
        self, messages: Iterable[Message], phase: str, deadline_s: float
    ) -> dict[int, Message]:
        patience = Patience(deadline_s, self._plan.quorum, self._plan.grace_s)
        return collect(self._way, messages, patience, self._number, phase)


def _half(arrays: Arrays) -> dict[str, NDArray[np.float16]]:
    return {name: value.astype(_WIRE) for name, value in arrays.items()}


def _seed_generators(opening: Opening) -> None:
    """Strategies draw nodes and noise from the process-wide generators."""
    seed = np.random.SeedSequence([opening.seed, opening.number]).generate_state(1)[0]
    random.seed(int(seed))
    np.random.seed(int(seed))
