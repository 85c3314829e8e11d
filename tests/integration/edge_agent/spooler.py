"""Puts records into a spool for ever, and says each number once it is on disk."""

import sys
from pathlib import Path

from edge_agent.outbox import Limits, Outbox
from tests.unit.edge_agent.toy_record import toy_record

with Outbox(Path(sys.argv[1]), Limits(1 << 24, 100_000)) as outbox:
    while True:
        record = outbox.put(toy_record(boot=sys.argv[2], arrays=300))
        sys.stdout.write(f"{record.sequence}\n")
        sys.stdout.flush()
