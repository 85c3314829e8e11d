"""What devices learn from the pictures that they draw: samples, rounds, and training in one place.

Samples are chosen as the hub chooses them, by the picture's noise among the drafts that its
forwards have seen; they are made and kept by the agent's own code.
"""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np

from edge_agent.drafts import Lesson
from edge_agent.drafts import States as HeadStates
from edge_agent.learning import LAW_SIZE, samples_of
from fleet.decoding.noise import Stream, uniform
from fleet.decoding.top_laws import top_laws
from fleet.federation.calibrate import needed_stretch
from fleet.federation.client_app import HEAD_FILE, app
from fleet.federation.head import HeadChange, changed, main_directions, no_change
from fleet.federation.ledger import FolderLedger
from fleet.federation.local_grid import LocalGrid
from fleet.federation.plan import Plan
from fleet.federation.rounds import Rounds
from fleet.federation.samples import RingShape, SampleRing, Samples
from fleet.federation.task import Task
from fleet.federation.train import Recipe, train
from fleet.federation.validate import last_stretch
from fleet.models.head_weights import HeadWeights
from simulations.drift.seen import Seen, States

CLOUD = "after"  # what samples call the cloud model that said so
CENTRAL_TIMES = 2  # as many steps as a device takes in all rounds
_DEADLINE_S = 3600.0  # of a phase: nodes of one process answer one after the other


def keep_samples(
    folder: Path, seen: Seen, states: States, share: float, head: HeadWeights, backbone: str
) -> int:
    """Makes a node's folder of what its pictures taught; how many samples."""
    lessons = _lessons(seen, states, share)
    shape = RingShape(backbone, head.dim, head.vocab_size, LAW_SIZE, max(len(lessons), 1))
    shutil.rmtree(folder, ignore_errors=True)  # of a step that was killed
    folder.mkdir(parents=True)
    head.save(folder / HEAD_FILE)
    SampleRing.create(folder, shape).append(samples_of(lessons, CLOUD, shape))
    return len(lessons)


def run_rounds(
    ledger: FolderLedger, nodes: list[Path], head: HeadWeights, plan: Plan
) -> HeadWeights:
    """The head after all rounds; goes on with those that the ledger holds."""
    configurations = {number: {"folder": str(node)} for number, node in enumerate(nodes)}
    # All nodes share this process: whoever is late is not away.
    patient = replace(plan, deadline_s=_DEADLINE_S, query_s=_DEADLINE_S, cloud=CLOUD)
    with LocalGrid(app, configurations) as grid:
        last = Rounds(grid, Task(head), patient, ledger).run()
    if last is None:
        raise AssertionError("a plan has at least one round")
    directions, stretch = main_directions(head, plan.rank), last_stretch(ledger.history())
    return changed(head, directions, last.change, stretch)


def train_centrally(nodes: list[Path], head: HeadWeights, plan: Plan) -> HeadWeights:
    """The head trained on the samples of all nodes in one place, as no fleet would: the ceiling."""
    parts = [SampleRing.open(node).read().split() for node in nodes]
    pooled, held_out = (
        Samples(*(np.concatenate([getattr(p, name) for p in part]) for name in Samples.__slots__))
        for part in zip(*parts, strict=True)
    )
    directions = main_directions(head, plan.rank)
    change = HeadChange(head, directions, no_change(head, directions))
    steps = CENTRAL_TIMES * plan.rounds * plan.steps
    train(change, pooled, Recipe("inter-dro", steps, plan.batch, plan.rate, 0.0, plan.seed))
    stretch = needed_stretch(change, held_out)
    return changed(head, directions, change.arrays(np.float32), stretch)


def _lessons(seen: Seen, states: States, share: float) -> list[Lesson]:
    """What the hub would tell a device that learns of these pictures."""
    found: list[Lesson] = []
    positions = states.first + np.arange(states.own.shape[1])
    for row, seed in enumerate(states.seeds):
        chosen = uniform(int(seed), positions, 1, Stream.CHECK)[:, 0] < share
        asked = np.flatnonzero(seen.asked[row])
        # No forward has seen what was kept after the last question.
        chosen[asked[-1] + 1 if len(asked) else 0 :] = False
        at = np.flatnonzero(chosen)
        laws = top_laws(
            positions[at].tolist(),
            states.own[row, at],
            states.cloud[row, at].astype(np.float32),
            LAW_SIZE,
        )
        for index, place in enumerate(at):
            own = HeadStates(states.hidden[row, place], states.guided[row, place])
            token = int(laws.tokens[index])
            found.append(Lesson(own, token, laws.codes[index], laws.log_probs[index]))
    return found
