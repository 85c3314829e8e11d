"""Spot checks: what the cloud would have drawn where the device decided by itself.

The engine hands on what its forwards say of drafts; a share is compared off the critical path,
and written in batches. A check that cannot be written in time is dropped and counted: checks are
a sample, and no picture waits for one.
"""

import asyncio
from collections import defaultdict, deque
from collections.abc import Sequence
from datetime import UTC, datetime

import numpy as np
from numpy.typing import NDArray

from cloud_hub.engine.checks import Looked, Sample, sample
from cloud_hub.engine.requests import SessionKey
from cloud_hub.engine.sessions import Session
from cloud_hub.notices import Notices
from cloud_hub.store.checks import Check, count_checks, store_checks
from cloud_hub.store.database import Database
from fleet.decoding.noise import gumbel
from fleet.decoding.sampling import draw, law, sharpen
from fleet.errors import StoreError
from fleet.ids import ModelVersion, new_id
from fleet.logs import get_logger

log = get_logger(__name__)

_MOST_WAITING = 1024  # samples, each of one forward's drafts of one picture
_EVERY_S = 1.0

Codes = NDArray[np.float32]  # [V, d]: the image tokenizer's code vectors, of length one


class SpotChecks:
    """Collects drafts to check, compares them with the cloud's draws, and stores the findings."""

    def __init__(
        self, share: float, codes: Codes, cloud_version: ModelVersion, notices: Notices
    ) -> None:
        """`share` of all positions is checked, chosen by each picture's own noise."""
        self._share = share
        self._codes = codes
        self._version = cloud_version
        self._notices = notices
        self._waiting: deque[Sample] = deque()

    def watch(self, session: Session, looked: Looked) -> None:
        """Takes its share of what a forward says of drafts; an `engine.checks.Watch`."""
        if self._share <= 0:
            return
        chosen = sample(session, looked, self._share)
        if chosen is None:
            return
        if len(self._waiting) >= _MOST_WAITING:
            lost = self._waiting.popleft()
            self._notices.warn("spot check dropped", lost.key.node, "too many wait")
        self._waiting.append(chosen)

    async def run(self, database: Database, every_s: float = _EVERY_S) -> None:
        """Compares and stores until cancelled, and counts checks whose records have come."""
        unstored: list[Check] = []
        while True:
            await asyncio.sleep(every_s)
            samples = [self._waiting.popleft() for _ in range(len(self._waiting))]
            unstored = await asyncio.to_thread(self._store, database, samples, unstored)

    def _store(
        self, database: Database, samples: Sequence[Sample], unstored: Sequence[Check]
    ) -> list[Check]:
        """Writes checks; those that could not be written, the newest."""
        checks = [*unstored, *compare_all(samples, self._codes, self._version)]
        now = datetime.now(UTC)
        try:
            with database.write() as connection:
                store_checks(connection, checks, now)
            with database.write() as connection:
                count_checks(connection)
        except StoreError as error:
            log.error("spot checks wait", reason=str(error), checks=len(checks))
            for lost in checks[:-_MOST_WAITING]:
                self._notices.warn("spot check dropped", lost.node, "the database is away")
            return checks[-_MOST_WAITING:]
        return []


def compare_all(
    samples: Sequence[Sample], codes: Codes, cloud_version: ModelVersion
) -> list[Check]:
    """One check a picture."""
    by_picture: defaultdict[SessionKey, list[Sample]] = defaultdict(list)
    for each in samples:
        by_picture[each.key].append(each)
    return [_join(found, codes, cloud_version) for found in by_picture.values()]


def compare(found: Sample, codes: Codes) -> tuple[NDArray[np.bool_], Codes, Codes]:
    """Whether each draft [k] is the cloud's draw, how far apart both are, and the draft's
    probability under the cloud's sampled law.

    The distance is squared and between code vectors of length one: 0 to 4.
    """
    sharp = sharpen(found.logits, found.sampling)
    drawn = draw(sharp, gumbel(found.seed, found.positions, found.logits.shape[-1]))
    apart = codes[found.drafts] - codes[drawn]
    probabilities = np.take_along_axis(law(sharp), found.drafts[:, None], axis=-1)[:, 0]
    return (
        drawn == found.drafts,
        np.einsum("kd,kd->k", apart, apart),
        probabilities.astype(np.float32),
    )


def _join(samples: Sequence[Sample], codes: Codes, cloud_version: ModelVersion) -> Check:
    first = samples[0]
    picture = Sample(
        key=first.key,
        seed=first.seed,
        sampling=first.sampling,
        positions=np.concatenate([each.positions for each in samples]),
        drafts=np.concatenate([each.drafts for each in samples]),
        local=np.concatenate([each.local for each in samples]),
        logits=np.concatenate([each.logits for each in samples]),
    )
    matches, harms, probabilities = compare(picture, codes)
    return Check(
        check_id=new_id(),
        node=picture.key.node,
        generation=picture.key.generation,
        cloud_version=cloud_version,
        positions=picture.positions,
        local=picture.local,
        matches=matches,
        harms=harms,
        probabilities=probabilities,
    )
