"""The hub's clean-up of its database, now and then; any number of hubs may do it at once."""

import asyncio
from datetime import UTC, datetime, timedelta
from random import random

from cloud_hub.settings import StoreSettings
from cloud_hub.store.care import Keep, care
from cloud_hub.store.database import Database
from fleet.errors import StoreError
from fleet.logs import get_logger

log = get_logger(__name__)

_MIB = 1 << 20


async def run(database: Database, settings: StoreSettings) -> None:
    """Cleans up every `care_s`, with jitter, until cancelled."""
    keep = Keep(
        pictures=timedelta(days=settings.keep_days),
        tokens=timedelta(hours=settings.keep_token_hours),
        hours=timedelta(days=settings.keep_hour_days),
        rejected=settings.rejected,
        bytes=settings.keep_mib * _MIB if settings.keep_mib else None,
    )
    while True:
        await asyncio.sleep(settings.care_s * (0.5 + random()))
        try:
            gone = await asyncio.to_thread(care, database, keep, datetime.now(UTC))
        except StoreError as error:
            log.error("clean-up waits", reason=str(error))
        else:
            log.info("clean-up", **gone)
