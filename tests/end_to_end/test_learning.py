"""Pictures leave samples on a device, and training on them brings its head nearer to the cloud."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edge_agent.client import EdgeClient
from fleet.federation.head import HeadChange, main_directions, no_change
from fleet.federation.samples import SampleRing, cloud_number
from fleet.federation.train import Recipe, evaluate, train
from fleet.models.bundle import STEP_GRAPH
from fleet.models.head_weights import head_of
from simulations.site import Site, device, hub
from tests.end_to_end.conftest import PATIENT
from tests.end_to_end.reference import bundle

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.mark.usefixtures("own_broker")
def test_what_the_cloud_teaches_in_pictures_can_be_learned(site: Site, models: Path) -> None:
    everywhere = replace(
        site, hub_settings={**site.hub_settings, "CLOUD_HUB_ENGINE__LAW_SHARE": "1"}
    )
    with hub(everywhere), device(everywhere, "tablet", **PATIENT):
        client = EdgeClient(site.state("tablet"))
        made = [
            client.generate("google: red heart", seed=seed, policy=policy)
            for seed, policy in ((1, "ciar"), (2, "verify-all"))
        ]

    samples = SampleRing.open(site.state("tablet") / "training").read()
    head = head_of(bundle(models).read(STEP_GRAPH))
    directions = main_directions(head, 16)
    change = HeadChange(head, directions, no_change(head, directions))

    # Every judged position, corrected ones included; and of the first picture spot checks too.
    assert (
        sum(each.verified for each in made)
        < len(samples)
        <= sum(each.tokens - each.prefix for each in made)
    )
    assert set(samples.cloud.tolist()) == {cloud_number(made[0].cloud_version)}
    assert samples.has_law.all()
    before = evaluate(change, samples)
    strange = replace(samples, guided=samples.guided[::-1], hidden=samples.hidden[::-1])
    assert before.kl < evaluate(change, strange).kl  # laws stand beside the states they belong to
    chances = np.exp(samples.log_probs.astype(np.float64))
    assert (np.diff(chances, axis=1) <= 0).all()
    assert (chances.sum(axis=1) <= 1.01).all()

    train(change, samples, Recipe("inter-dro", steps=30, batch=256, rate=3e-3, proximal=0, seed=1))

    assert evaluate(change, samples).loss < before.loss
