"""Hypothesis strategies: every message of the protocol, with every field of every kind."""

from typing import get_args

from hypothesis import strategies as st

from fleet.protocol.messages import AnyMessage, History, Message, Sampling, Unseen

KINDS: tuple[type[Message], ...] = get_args(get_args(AnyMessage)[0])

arrays = st.binary(max_size=600)
texts = st.text(max_size=200)
names = st.text(min_size=1, max_size=64)
ids = st.text("0123456789abcdef", min_size=1, max_size=32)
counts = st.integers(0, 1 << 40)
seconds = st.floats(0, 1e9)
positions = st.integers(0, 4096)
samplings = st.builds(
    Sampling,
    temperature=st.floats(0, 100, exclude_min=True),
    top_k=st.integers(0, 1 << 16),
    guidance=st.floats(1, 100),
)
histories = st.builds(History, tokens=arrays, local=arrays, features=arrays)
unseens = st.builds(
    Unseen,
    family=names,
    caption=texts,
    start=positions,
    share=st.floats(0, 1, exclude_min=True),
    history=histories,
)

# What a field's name says about its values, where its type alone would give unusable ones.
FIELDS: dict[str, st.SearchStrategy[object]] = {
    "request_id": ids,
    "boot_id": ids,
    "generation_id": ids,
    "worker": ids,
    "device_version": ids,
    "cloud_version": ids,
    "caption": texts,
    "caption_hash": names,
    "family": names,
    "agent_version": names,
    "hub_version": names,
    "policy": names,
    "detail": texts,
    "message_id": ids,
    "run": st.integers(0, (1 << 63) - 1),
    "number": st.integers(0, (1 << 63) - 1),
    "body": st.text("0123456789abcdef", min_size=64, max_size=64),
    "chunks": st.integers(1, 256),
    "index": st.integers(0, 255),
    "error": texts,
    "data": st.binary(max_size=600),
    "seed": st.integers(0, (1 << 63) - 1),
    "sampling": samplings,
    "history": histories,
    "unseen": st.none() | unseens,
    "prefix_tokens": positions,
    "law_size": st.integers(0, 256),
    "start": positions,
    "expected": st.integers(-1, 4096),
    "accepted": positions,
    "next_token": st.integers(-1, (1 << 16) - 1),
    "threshold": st.floats(allow_nan=False),
    "created_at": st.floats(0, 1e12),
    "at": st.floats(0, 1e12),
    "facts": st.dictionaries(names, texts, max_size=8),
    "settings": st.dictionaries(names, texts, max_size=8),
    "refused": st.dictionaries(names, texts, max_size=8),
    "version": counts,
    "repairs": st.text(max_size=64),
    "sequences": st.lists(counts, max_size=64),
}
ARRAYS = ("tokens", "local", "uncertain", "features", "confidences", "scores", "decisions")
TIMES = ("deadline_s", "queue_s", "forward_s", "retry_after_s", "duration_s", "device_s", "wait_s")
FIELDS |= dict.fromkeys(ARRAYS, arrays)
FIELDS |= dict.fromkeys(TIMES, seconds)


def messages_of(kind: type[Message]) -> st.SearchStrategy[Message]:
    """Messages of one kind; fields with a literal or a plain type come from the annotation."""
    known = {
        name: _values(name, field.annotation)
        for name, field in kind.model_fields.items()
        if name in FIELDS or field.annotation is int
    }
    return st.builds(kind, **known)


def _values(name: str, annotation: object) -> st.SearchStrategy[object]:
    # A record's `tokens` and `local` are counts, elsewhere they are arrays.
    if annotation is int and name in ARRAYS:
        return counts
    return FIELDS.get(name, counts)


any_message: st.SearchStrategy[Message] = st.one_of([messages_of(kind) for kind in KINDS])
