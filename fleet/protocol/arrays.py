"""Arrays inside messages: token ids, bitmaps, features, scores and confidences as bytes."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fleet.decoding.residual import SENT_BITS, QuantisedLaw
from fleet.decoding.top_laws import NO_LAWS, TopLaws
from fleet.errors import InvalidInputError, ProtocolError

FEATURE_BYTES = 48
SCORE_FLOOR = 1e-12  # scores at or below it share code 0
SCORE_CEILING = 1e2
SCORE_BROKEN = 255  # code of what is not a number, or beyond the ceiling
_U16 = np.dtype("<u2")
_SCORE_SPAN = math.log(SCORE_CEILING / SCORE_FLOOR)

Tokens = NDArray[np.int64]
Mask = NDArray[np.bool_]


def pack_tokens(tokens: Tokens) -> bytes:
    """Token ids [n] as little-endian u16."""
    return tokens.astype(_U16).tobytes()


def unpack_tokens(data: bytes) -> Tokens:
    """Token ids [n].

    Raises:
        ProtocolError: The bytes are not a whole number of u16.
    """
    if len(data) % 2:
        raise ProtocolError(f"token array of {len(data)} bytes is not a whole number of u16")
    return np.frombuffer(data, _U16).astype(np.int64)


def pack_mask(mask: Mask) -> bytes:
    """A bitmap [n], least significant bit first."""
    return np.packbits(mask, bitorder="little").tobytes()


def unpack_mask(data: bytes, length: int) -> Mask:
    """The bitmap's first `length` entries.

    Raises:
        ProtocolError: The bytes hold fewer or far more.
    """
    if len(data) != (length + 7) // 8:
        raise ProtocolError(f"bitmap of {len(data)} bytes does not hold {length} entries")
    bits = np.unpackbits(np.frombuffer(data, np.uint8), count=length, bitorder="little")
    return bits.view(bool)


def pack_features(features: NDArray[np.int8]) -> bytes:
    """Interval features [k, 48] as i8."""
    return features.astype(np.int8).tobytes()


def unpack_features(data: bytes, count: int) -> NDArray[np.int8]:
    """Interval features [count, 48].

    Raises:
        ProtocolError: The bytes hold another number of rows.
    """
    if len(data) != count * FEATURE_BYTES:
        raise ProtocolError(f"{len(data)} feature bytes for {count} local tokens")
    return np.frombuffer(data, np.int8).reshape(count, FEATURE_BYTES)


def pack_scores(scores: NDArray[np.float64]) -> bytes:
    """Scores [n] as u8 on a log scale from 1e-12 to 1e2 (14 decades in 255 steps: 13.5% each).

    A score that is not a number, or is infinite, packs as 255: it went to the cloud.
    """
    return score_codes(scores).tobytes()


def score_codes(scores: NDArray[np.float64]) -> NDArray[np.uint8]:
    """The codes [n] that `pack_scores` writes."""
    safe = np.nan_to_num(scores, nan=SCORE_CEILING, neginf=SCORE_CEILING)
    safe = np.clip(safe, SCORE_FLOOR, SCORE_CEILING)
    codes: NDArray[np.float64] = np.round(np.log(safe / SCORE_FLOOR) / _SCORE_SPAN * SCORE_BROKEN)
    return codes.astype(np.uint8)


def score_limit(code: int) -> float:
    """Where the scores of a code end and those of the next begin."""
    return SCORE_FLOOR * math.exp((code + 0.5) / SCORE_BROKEN * _SCORE_SPAN)


def unpack_scores(data: bytes) -> NDArray[np.float64]:
    """Scores [n], each within 7% of what was packed between the floor and the ceiling."""
    fractions: NDArray[np.float64] = np.frombuffer(data, np.uint8) / 255
    return SCORE_FLOOR * np.exp(fractions * _SCORE_SPAN)


def pack_laws(laws: Sequence[QuantisedLaw]) -> bytes:
    """Quantised laws, each as u16 K, K codes as u16, K probabilities x 256 less 1 as u8."""
    return b"".join(
        np.array([len(law.codes), *law.codes], "<u2").tobytes()
        + (law.counts - 1).astype(np.uint8).tobytes()
        for law in laws
    )


def unpack_laws(data: bytes, vocab_size: int) -> list[QuantisedLaw]:
    """Quantised laws, as many as there are.

    Raises:
        ProtocolError: The bytes are no laws over so many codes.
    """
    laws, at = [], 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 2], "little")
        end = at + 2 + 3 * size
        if not size or end > len(data):
            raise ProtocolError(f"{len(data)} bytes of draft laws end within a law")
        codes = np.frombuffer(data, "<u2", size, at + 2).astype(np.int64)
        counts = np.frombuffer(data, np.uint8, size, at + 2 + 2 * size).astype(np.int64) + 1
        if (np.diff(codes) <= 0).any() or codes[-1] >= vocab_size:
            raise ProtocolError(f"a draft law's codes rise, and stay below {vocab_size}")
        try:
            laws.append(QuantisedLaw(codes, counts, SENT_BITS))
        except InvalidInputError as error:
            raise ProtocolError(f"a draft law is none: {error}") from error
        at = end
    return laws


def pack_top_laws(laws: TopLaws) -> bytes:
    """Laws of k positions: u16 K, then of each u16 position, u16 token, K codes as u16, K log
    probabilities as f2. No position: no bytes.
    """
    if not len(laws):
        return b""
    rows = np.zeros(len(laws), _top_law(laws.codes.shape[1]))
    for name in rows.dtype.names or ():
        rows[name] = getattr(laws, name)
    return len(laws.codes[0]).to_bytes(2, "little") + rows.tobytes()


def unpack_top_laws(data: bytes, vocab_size: int) -> TopLaws:
    """Laws of as many positions as there are.

    Raises:
        ProtocolError: The bytes are no laws over so many codes.
    """
    if not data:
        return NO_LAWS
    dtype = _top_law(int.from_bytes(data[:2], "little"))
    if len(data) < 4 or (len(data) - 2) % dtype.itemsize:
        raise ProtocolError(f"{len(data)} bytes are not the cloud's laws of some positions")
    rows = np.frombuffer(data, dtype, offset=2)
    if max(rows["tokens"].max(), rows["codes"].max(initial=0)) >= vocab_size:
        raise ProtocolError(f"a code of the cloud's law is not below {vocab_size}")
    if not (rows["log_probs"] <= 0).all():
        raise ProtocolError("a log-probability of the cloud's law is above 0, or no number")
    positions, tokens, codes = (
        rows[name].astype(np.int64) for name in ("positions", "tokens", "codes")
    )
    return TopLaws(positions, tokens, codes, rows["log_probs"])


def _top_law(size: int) -> np.dtype[np.void]:
    codes, log_probs = ("codes", "<u2", (size,)), ("log_probs", "<f2", (size,))
    return np.dtype([("positions", "<u2"), ("tokens", "<u2"), codes, log_probs])


def pack_confidences(probabilities: NDArray[np.float64]) -> bytes:
    """Probabilities [n] as u8, 255 for 1."""
    # The ufuncs themselves: most verdicts have one or two, and np.clip costs more than those.
    codes: NDArray[np.float64] = np.rint(np.minimum(np.maximum(probabilities, 0), 1) * 255)
    return codes.astype(np.uint8).tobytes()


def unpack_confidences(data: bytes) -> NDArray[np.float64]:
    """Probabilities [n], each within 0.2% of what was packed."""
    return np.frombuffer(data, np.uint8) / 255
