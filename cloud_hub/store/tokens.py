"""One row a token, of the pictures whose records ask for it; kept `store.keep_token_hours`."""

from collections.abc import Iterable
from datetime import datetime

import numpy as np
from sqlalchemy import Connection

from cloud_hub.store.database import insert_new
from cloud_hub.store.tables import TokenRow
from fleet.protocol.arrays import unpack_confidences, unpack_scores
from fleet.protocol.messages import MAX_IMAGE_TOKENS, GenerationRecord


def store_tokens(
    connection: Connection, pictures: Iterable[tuple[str, GenerationRecord]], now: datetime
) -> None:
    """Writes the tokens of those pictures (node, record) that are to be kept in detail."""
    rows = [
        row for node, record in pictures if record.detailed for row in _tokens(node, record, now)
    ]
    if rows:
        connection.execute(insert_new(connection, TokenRow), rows)


def _tokens(node: str, record: GenerationRecord, now: datetime) -> list[dict[str, object]]:
    scores, confidences = unpack_scores(record.scores), unpack_confidences(record.confidences)
    decisions = np.frombuffer(record.decisions, np.uint8)
    if not len(scores) == len(decisions) == len(confidences) <= MAX_IMAGE_TOKENS:
        return []  # a picture whose arrays the node dropped, or never kept
    picture = {"node_id": node, "generation_id": record.generation_id, "received_at": now}
    columns = zip(scores.tolist(), decisions.tolist(), confidences.tolist(), strict=True)
    return [
        picture
        | {"position": position, "score": score, "decision": decision, "confidence": confidence}
        for position, (score, decision, confidence) in enumerate(columns)
    ]
