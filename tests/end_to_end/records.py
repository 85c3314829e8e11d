"""What the hub's database of a site holds."""

import sqlite3
import time
from contextlib import closing

from cloud_hub.store import queries
from cloud_hub.store.database import Database
from cloud_hub.store.queries import Story
from simulations.site import Site

ARRIVAL_S = 60.0


def story(site: Site, generation_id: str) -> Story:
    """The stored story of a picture; waits for its record to arrive."""
    deadline = time.monotonic() + ARRIVAL_S
    with Database(site.store_url) as database:
        while True:
            with database.read() as connection:
                found = queries.stories(connection, [generation_id])
            if found:
                return found[generation_id]
            assert time.monotonic() < deadline, f"no record of {generation_id}"
            time.sleep(0.1)


def rows(site: Site) -> list[str]:
    """The generation ids of all rows, repeated ones too."""
    with closing(sqlite3.connect(site.store_url.removeprefix("sqlite:///"))) as connection:
        return [row[0] for row in connection.execute("SELECT generation_id FROM generation")]
