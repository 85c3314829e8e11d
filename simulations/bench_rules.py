"""What a verified token costs on the wire under each verification rule, in whole pictures.

A hub and one agent a rule, as processes with a broker between them; the same captions and seeds
for all. Interval features are off, so what is counted is verification: every byte of every request
and answer of the picture, openings included.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from edge_agent.answer import Made
from edge_agent.client import EdgeClient
from simulations.processes import free_port
from simulations.site import Site, device, hub, wait_for_hub

START_S = 120.0
PICTURE_S = 120.0
CAPTIONS = (
    "google: red heart",
    "twitter: cloud with lightning",
    "fluent: cross mark",
    "google: smiling cat face with open mouth",
)

# Settings of the agent that make it follow a rule.
RULES: dict[str, dict[str, str]] = {
    "stop and wait": {"WINDOW": "1", "IN_FLIGHT": "1"},
    "shared Gumbel": {},
    "residual, 8 bits": {"RULE": "residual"},
    "relaxed, omega 1.5": {"RULE": "residual", "RELAXATION": "1.5"},
    "relaxed, omega 3": {"RULE": "residual", "RELAXATION": "3"},
}


@dataclass(frozen=True, slots=True)
class RuleCost:
    """Sums over the pictures of one rule; bytes are of a verified token."""

    subject: str
    verified: int
    corrected: float  # share of the verified
    wasted: float  # drafts dropped, a verified token
    round_trips: float  # a picture
    up: float
    down: float
    ratio: float  # of all bytes, to shared Gumbel noise


def bench(models: Path | None, *, pictures: int) -> list[RuleCost]:
    """Makes pictures under each rule and counts.

    Raises:
        ProgramError: A hub or an agent ended, or was not ready in time.
        InvalidInputError: The bundle's graph does not give the logits that some rules need.
    """
    with TemporaryDirectory() as folder:
        site = Site(Path(folder), free_port(), models, start_s=START_S)
        with hub(site):
            made = {name: _pictures(site, name, pictures) for name in RULES}
    base = _bytes(made["shared Gumbel"])
    return [_cost(name, found, base) for name, found in made.items()]


def _pictures(site: Site, name: str, count: int) -> list[Made]:
    node = "rule-" + "".join(letter for letter in name.lower() if letter.isalnum())
    settings = {f"EDGE_AGENT_GENERATION__{key}": value for key, value in RULES[name].items()}
    settings["EDGE_AGENT_GENERATION__USE_FEATURES"] = "false"
    settings["EDGE_AGENT_GENERATION__DEADLINE_S"] = f"{PICTURE_S:g}"
    with device(site, node, **settings) as agent:
        wait_for_hub(site, node, agent, time.monotonic() + START_S)
        client = EdgeClient(site.state(node))
        return [
            client.generate(CAPTIONS[index % len(CAPTIONS)], seed=index, without_cloud="fail")
            for index in range(count)
        ]


def _bytes(made: Sequence[Made]) -> float:
    verified = sum(picture.verified for picture in made)
    return sum(picture.bytes_up + picture.bytes_down for picture in made) / max(verified, 1)


def _cost(name: str, made: Sequence[Made], base: float) -> RuleCost:
    verified = max(sum(picture.verified for picture in made), 1)
    return RuleCost(
        subject=name,
        verified=verified,
        corrected=sum(picture.corrected for picture in made) / verified,
        wasted=sum(picture.wasted for picture in made) / verified,
        round_trips=sum(picture.round_trips for picture in made) / len(made),
        up=sum(picture.bytes_up for picture in made) / verified,
        down=sum(picture.bytes_down for picture in made) / verified,
        ratio=_bytes(made) / base,
    )
