"""Spans on the cloud model in torch; two cache rows a session, for guidance."""

import sys
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from cloud_hub.engine.requests import Logits
from cloud_hub.engine.runner import Span
from fleet.decoding.sampling import guide
from fleet.errors import InvalidInputError
from fleet.models import span_cache
from fleet.models.conditions import Condition, Prompt
from fleet.models.torch_model import CloudModel

_MIB = 1 << 20
_SWITCH_S = 1e-4
_CAPTIONS_KEPT = 256
_KEPT_BYTES = 256 * _MIB  # of them: a prompt of a large model takes a hundred MiB


def prepare_process(threads: int | None) -> None:
    """Sets how many threads one forward may use (None: torch's choice), and lets none wait long.

    A forward's thread comes back for Python's lock a few times; the event loop gives it up after a
    tenth of a millisecond then, not after five.
    """
    if threads is not None:
        torch.set_num_threads(threads)
    sys.setswitchinterval(_SWITCH_S)


def slots_in(model: CloudModel, cache_mib: int) -> int:
    """Sessions that fit in `cache_mib` MiB of KV cache.

    Raises:
        InvalidInputError: Not even one fits.
    """
    session_bytes = 2 * model.cache_row_bytes
    slots = cache_mib * _MIB // session_bytes
    if slots < 1:
        needed = -(-session_bytes // _MIB)
        raise InvalidInputError(
            f"engine.cache_mib = {cache_mib} holds no session: one needs {needed} MiB"
        )
    return slots


class TorchRunner:
    """Runs on the slots of one preallocated cache: rows 2·slot (guided) and 2·slot + 1.

    One thread at a time; a caption's condition is computed once and kept for the next picture.
    """

    def __init__(self, model: CloudModel, slots: int) -> None:
        self._model = model
        self._slots = slots
        self._cache = model.new_cache(2 * slots)
        self._conditions: OrderedDict[tuple[int, ...], tuple[Condition | Prompt, Logits]]
        self._conditions = OrderedDict()

    @property
    def slots(self) -> int:
        """See `Runner.slots`."""
        return self._slots

    @property
    def positions(self) -> int:
        """See `Runner.positions`."""
        return self._model.tokens

    @property
    def vocab_size(self) -> int:
        """See `Runner.vocab_size`."""
        return self._model.vocab_size

    def prepare(self, spans: Sequence[Span]) -> Callable[[], list[Logits]]:
        """See `Runner.prepare`; captions' conditions are left to the forward."""
        # Rows of neighbouring slots attend in one call, so the forward gets them in their order.
        filled = sorted((span for span in spans if len(span.run)), key=lambda span: span.slot)
        return partial(self._run, spans, filled, self._forward(filled))

    def run(self, spans: Sequence[Span]) -> list[Logits]:
        """Prepares a forward and runs it at once."""
        return self.prepare(spans)()

    @torch.inference_mode()
    def _run(
        self, spans: Sequence[Span], filled: Sequence[Span], forward: Callable[[], list[Logits]]
    ) -> list[Logits]:
        begun = [(span, span.caption) for span in spans if span.caption is not None]
        heads = {span.slot: self._begin(span, caption) for span, caption in begun}
        tails = dict(zip((span.slot for span in filled), forward(), strict=True))
        return [_joined(heads.get(span.slot), tails.get(span.slot)) for span in spans]

    def told(self, caption: tuple[int, ...]) -> bytes:
        """See `Runner.told`."""
        return self._model.told(self._condition(caption)[0])

    def _begin(self, span: Span, caption: tuple[int, ...]) -> Logits:
        """Gives the slot its condition; the guided logits [1, V] of position 0."""
        condition, logits = self._condition(caption)
        for branch in range(_branches(span)):
            self._cache.begin(2 * span.slot + branch, condition, branch)
        return _guided([logits[:1], logits[1:]], span)

    def _condition(self, caption: tuple[int, ...]) -> tuple[Condition | Prompt, Logits]:
        if caption not in self._conditions:
            condition = self._model.condition_pair(caption)
            logits = self._model.start_logits(condition).cpu().numpy()
            self._conditions[caption] = condition, logits
            most = min(_CAPTIONS_KEPT, max(_KEPT_BYTES // max(condition.nbytes, 1), 1))
            while len(self._conditions) > most:
                self._conditions.popitem(last=False)
        self._conditions.move_to_end(caption)
        return self._conditions[caption]

    def _forward(self, spans: Sequence[Span]) -> Callable[[], list[Logits]]:
        """What makes the guided logits [n, V] of each span."""
        if not spans:
            return list
        rows = [_row(span, branch) for span in spans for branch in range(_branches(span))]
        embedded = self._model.embed_spans(rows)

        def run() -> list[Logits]:
            logits = self._model.forward_spans(self._cache, rows, embedded).cpu().numpy()
            parts = iter(np.split(logits, np.cumsum([len(row.tokens) for row in rows])[:-1]))
            return [_guided([next(parts) for _ in range(_branches(span))], span) for span in spans]

        return run


def _branches(span: Span) -> int:
    return 2 if span.guidance > 1 else 1


def _guided(branches: Sequence[Logits], span: Span) -> Logits:
    guided: Logits = guide(branches[0], branches[-1], span.guidance)
    return guided


def _joined(head: Logits | None, tail: Logits | None) -> Logits:
    parts = [part for part in (head, tail) if part is not None]
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _row(span: Span, branch: int) -> span_cache.Span:
    features: NDArray[np.int8] | None = span.run.features
    if not span.use_features or not span.run.local.any():
        features = None
    return span_cache.Span(2 * span.slot + branch, span.start, span.run.tokens, features)
