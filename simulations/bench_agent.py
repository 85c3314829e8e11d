"""Pictures with drafting ahead, next to pictures that stop at each uncertain token.

The whole line runs in this process: agent, calls, simulated link, engine, database; only the
models may be stand-ins (`stand_in.py`), since what drafting ahead saves depends on how often
drafts stand, and the shipped pair is one case of many. Both ways make the same pictures, by
turns, so that other load on the machine falls on both; the pictures must be equal.
"""

import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from edge_agent.answer import Made
from edge_agent.maker import Wish
from fleet.errors import FleetError
from fleet.transport.link import LinkProfile
from fleet.transport.memory import MemoryBroker
from simulations.in_process import Place, Silent, agent_beside, hub_beside
from simulations.stand_in import CAPTION, Pair

ROUND_TRIPS_MS = (5, 20, 50, 100)
MBPS = 50.0
SHIPPED_CAPTION = "google: red heart"

STOP_AND_WAIT = {"window": 1, "in_flight": 1}


@dataclass(frozen=True, slots=True)
class Pipelining:
    """Seconds a picture; `ratio` is of stopping at each uncertain token over drafting ahead."""

    subject: str
    rtt_ms: int
    accepted: float  # share of judged drafts that stood
    stop_s: float
    ahead_s: float
    ratio: float
    wasted: float  # drafts of one picture that fell, when drafting ahead
    requests: float  # of one picture, when drafting ahead
    requests_stop: float


@dataclass(frozen=True, slots=True)
class Case:
    """A pair of models under a policy; without a pair, the family in `models`."""

    subject: str
    pair: Pair | None
    policy: str = "ciar"
    effort: str = "balanced"


CASES = (
    Case("half stand", Pair(0.5)),
    Case("7 of 10 stand", Pair(0.7)),
    Case("9 of 10 stand", Pair(0.9)),
    Case("7 of 10 stand, verify all", Pair(0.7), "verify-all"),
)

SHIPPED = (
    Case("shipped pair", None),
    Case("shipped pair, full effort", None, effort="full"),
    Case("shipped pair, verify all", None, "verify-all"),
)


async def bench(
    models: Path, *, pictures: int, cases: Sequence[Case] = CASES, rtts: Sequence[int]
) -> list[Pipelining]:
    """Each case at each round trip, `pictures` of either kind.

    Raises:
        BundleError: A file of the family is missing, or is not what was signed.
        FleetError: The two ways made different pictures, or one was not finished by the cloud.
    """
    return [await _measure(case, models, rtt_ms, pictures) for case in cases for rtt_ms in rtts]


async def _measure(case: Case, models: Path, rtt_ms: int, pictures: int) -> Pipelining:
    link = LinkProfile("bench", MBPS, MBPS, rtt_ms / 1e3, 0.0)
    made: dict[str, list[Made]] = {"stop": [], "ahead": []}
    times: dict[str, float] = {"stop": 0.0, "ahead": 0.0}
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        broker = MemoryBroker()
        await stack.enter_async_context(hub_beside(models, folder / "hub", broker, case.pair))
        agents = {
            "stop": await stack.enter_async_context(
                agent_beside(Place(models, folder / "stop", broker, link), STOP_AND_WAIT, case.pair)
            ),
            "ahead": await stack.enter_async_context(
                agent_beside(
                    Place(models, folder / "ahead", broker, link),
                    {"effort": case.effort},
                    case.pair,
                )
            ),
        }
        for seed in range(-1, pictures):  # the first warms up: paces are measured
            for name, running in agents.items():
                wish = Wish(CAPTION if case.pair else SHIPPED_CAPTION, seed + 1, case.policy)
                begun = time.perf_counter()
                picture = await running.make(wish, Silent())
                if seed >= 0:
                    times[name] += time.perf_counter() - begun
                    made[name].append(picture)
    _check(made)
    ahead = made["ahead"]
    judged = sum(each.verified for each in ahead)
    return Pipelining(
        subject=case.subject,
        rtt_ms=rtt_ms,
        accepted=1 - sum(each.corrected for each in ahead) / max(judged, 1),
        stop_s=times["stop"] / pictures,
        ahead_s=times["ahead"] / pictures,
        ratio=times["stop"] / times["ahead"],
        wasted=sum(each.wasted for each in ahead) / pictures,
        requests=sum(each.round_trips for each in ahead) / pictures,
        requests_stop=sum(each.round_trips for each in made["stop"]) / pictures,
    )


def _check(made: dict[str, list[Made]]) -> None:
    for one, other in zip(made["stop"], made["ahead"], strict=True):
        if one.fallback or other.fallback:
            raise FleetError(f"a picture fell back: {one.fallback or other.fallback}")
        if one.pixels != other.pixels:
            raise FleetError(f"seed {one.seed}: drafting ahead changed the picture")
