"""A device and a cloud that are small functions of the tokens so far, and a hub of the latter."""

import hashlib
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from edge_agent.device import Order
from edge_agent.drafts import Backlog, Draft, States
from fleet.decoding.accept import Policy, device_only, verify_all
from fleet.decoding.top_laws import TopLaws
from fleet.errors import InvalidInputError
from fleet.ids import BootId, GenerationId, ModelVersion, RequestId, WorkerId
from fleet.models.bundle import Manifest
from fleet.protocol.arrays import (
    FEATURE_BYTES,
    pack_confidences,
    pack_features,
    pack_mask,
    pack_tokens,
    pack_top_laws,
    unpack_features,
    unpack_mask,
    unpack_tokens,
)
from fleet.protocol.messages import (
    GenerationOpen,
    GenerationOpened,
    History,
    Refused,
    Sampling,
    VerifyRequest,
    VerifyResponse,
)

VOCAB = 5
CIAR = Policy("entropy", 0.5)
SAMPLING = Sampling(temperature=1, top_k=0, guidance=1)


def order(seed: int = 7, policy: Policy = CIAR, prefix: int = 3, caption: str = "a toy") -> Order:
    return Order(caption, seed, SAMPLING, policy, prefix, True)


def _number(what: str, seed: int, tokens: tuple[int, ...]) -> int:
    digest = hashlib.blake2b(f"{what} {seed} {tokens}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "little")


def cloud_token(seed: int, tokens: tuple[int, ...]) -> int:
    return _number("cloud", seed, tokens) % VOCAB


def device_token(seed: int, tokens: tuple[int, ...]) -> int:
    """Agrees with the cloud two times out of three."""
    if _number("agree", seed, tokens) % 3:
        return cloud_token(seed, tokens)
    return _number("device", seed, tokens) % VOCAB


def is_uncertain(order: Order, tokens: tuple[int, ...]) -> bool:
    match order.policy.name:
        case "verify_all":
            return True
        case "device_only":
            return False
        case _:
            return _number("score", order.seed, tokens) % 10 < 4


def score(order: Order, tokens: tuple[int, ...]) -> float:
    return 0.9 if is_uncertain(order, tokens) else 0.1


def feature(tokens: tuple[int, ...]) -> NDArray[np.int8]:
    """Tells the hub which tokens the device has seen."""
    return np.full(FEATURE_BYTES, sum(tokens) % 100, np.int8)


def fingerprint(tokens: tuple[int, ...]) -> float:
    """A number that tells which tokens came before, exact in half precision."""
    return _number("state", 0, tokens) % 2048 / 2048


def stop_and_wait(order: Order, size: int, *, cloud: bool = True) -> list[int]:
    """The picture as the simplest rule makes it: stop at each uncertain token, take the cloud's."""
    tokens: tuple[int, ...] = ()
    for position in range(size):
        asks = position < order.prefix_tokens or is_uncertain(order, tokens)
        if order.policy == device_only():
            asks = False
        draw = cloud_token if asks and cloud else device_token
        tokens += (draw(order.seed, tokens),)
    return list(tokens)


class ToyDrafter:
    """Keeps its own cache of inputs, as the ONNX step does: a row may be written again."""

    def __init__(self, order: Order, size: int) -> None:
        self.order = order
        self.rows = [-9] * size
        self.steps = 0

    def step(self, position: int, previous: int) -> Draft:
        self.rows[position] = previous
        self.steps += 1
        tokens = tuple(self.rows[1 : position + 1])
        return Draft(
            token=device_token(self.order.seed, tokens),
            score=score(self.order, tokens),
            uncertain=is_uncertain(self.order, tokens),
            feature=feature(tokens).astype(np.float32),
            states=States(*np.full((2, 1), fingerprint(tokens))),
        )


MANIFEST = Manifest(
    family="toy",
    device_version=ModelVersion("toy-device"),
    cloud_version=ModelVersion("toy-cloud"),
    grid=5,
    picture_size=2,
    vocab_size=VOCAB,
    caption_positions=16,
    layers=1,
    heads=1,
    head_dim=1,
    sampling=SAMPLING,
    score="entropy",
    thresholds={"entropy": 0.5},
    budget=0.3,
    prefix_tokens=3,
    feature_scale=(1.0,) * FEATURE_BYTES,
    files=(),
)


@dataclass
class ToyDevice:
    size: int = 24
    vocab_size: int = VOCAB
    manifest: Manifest = MANIFEST
    keeps_states: bool = False

    def check(self, caption: str) -> None:
        if not caption:
            raise InvalidInputError("the caption has no words")

    def wants(self, caption: str) -> bool:
        return False

    def tell(self, caption: str, condition: bytes) -> None:
        raise AssertionError("it reads captions itself")

    def begin(self, order: Order) -> ToyDrafter:
        return ToyDrafter(order, self.size)

    def quantise(self, features: NDArray[np.float32]) -> NDArray[np.int8]:
        return features.astype(np.int8)

    def decode(self, tokens: NDArray[np.int64]) -> NDArray[np.uint8]:
        return np.zeros((2, 2, 3), np.uint8)


@dataclass
class ToySession:
    seed: int
    branch: int
    size: int
    tokens: list[int] = field(default_factory=list)
    answers: dict[str, VerifyResponse] = field(default_factory=dict)


@dataclass
class ToyHub:
    """One worker's sessions, with the rules of the protocol and none of its speed."""

    size: int = 24
    worker: str = "w1"
    sessions: dict[str, ToySession] = field(default_factory=dict)
    opened: int = 0
    judged: int = 0
    forwards: int = 0

    def open(self, message: GenerationOpen) -> GenerationOpened:
        known = [int(token) for token in unpack_tokens(message.history.tokens)]
        local = unpack_mask(message.history.local, len(known))
        rows = unpack_features(message.history.features, int(local.sum()))
        _check_features(known, local, rows, 0)
        drawn: list[int] = []
        while len(known) + len(drawn) < message.prefix_tokens:
            drawn.append(cloud_token(message.seed, (*known, *drawn)))
        self.opened += 1
        self.sessions[message.generation_id] = ToySession(
            message.seed, message.branch, self.size, known + drawn
        )
        return GenerationOpened(
            request_id=message.request_id,
            generation_id=message.generation_id,
            worker=WorkerId(self.worker),
            cloud_version=ModelVersion("toy"),
            tokens=pack_tokens(np.array(drawn, np.int64)),
            confidences=pack_confidences(np.full(len(drawn), 0.5)),
            forwards=len(drawn),
            queue_s=0,
            forward_s=0,
        )

    def verify(self, message: VerifyRequest) -> VerifyResponse | Refused:
        session = self.sessions.get(message.generation_id)
        if session is None:
            return _refused(message, "unknown_session")
        if message.request_id in session.answers:
            return session.answers[message.request_id]
        if message.branch != session.branch:
            return _refused(message, "stale")
        if message.start > len(session.tokens):
            return _refused(message, "gap", len(session.tokens))
        answer = self._judge(session, message)
        session.answers[message.request_id] = answer
        self.judged += 1
        return answer

    def _judge(self, session: ToySession, message: VerifyRequest) -> VerifyResponse:
        drafts = [int(token) for token in unpack_tokens(message.tokens)]
        uncertain = unpack_mask(message.uncertain, len(drafts))
        local = unpack_mask(message.local, len(drafts))
        tokens = session.tokens[: message.start]
        _check_features(
            [*tokens, *drafts],
            np.concatenate([np.zeros(len(tokens), bool), local]),
            unpack_features(message.features, int(local.sum())),
            len(tokens),
        )
        accepted, judged = 0, 0
        told: list[tuple[int, int, float]] = []  # position, the cloud's token, fingerprint
        corrected = False
        for draft, asked in zip(drafts, uncertain, strict=True):
            target = cloud_token(session.seed, tuple(tokens))
            told.append((len(tokens), target, fingerprint(tuple(tokens))))
            judged += bool(asked)
            corrected = bool(asked) and draft != target
            tokens.append(target if corrected else draft)
            if corrected:
                break
            accepted += 1
        session.tokens = tokens
        session.branch += corrected
        bonus = cloud_token(session.seed, tuple(tokens)) if len(tokens) < session.size else -1
        return VerifyResponse(
            request_id=message.request_id,
            generation_id=message.generation_id,
            branch=session.branch,
            accepted=accepted,
            next_token=tokens[-1] if corrected else bonus,
            confidences=pack_confidences(np.full(judged, 0.5)),
            forwards=1,
            queue_s=0,
            forward_s=0,
            top_laws=pack_top_laws(_laws(told)),
        )


def _laws(told: list[tuple[int, int, float]]) -> TopLaws:
    """Laws of one code each; its log-probability tells on which tokens it rests."""
    positions, tokens, prints = (np.array(part) for part in zip(*told, strict=True))
    return TopLaws(positions, tokens, tokens[:, None], -prints[:, None].astype(np.float16))


def _check_features(
    tokens: list[int], local: NDArray[np.bool_], rows: NDArray[np.int8], start: int
) -> None:
    expected = [feature(tuple(tokens[:p])) for p in range(start, len(tokens)) if local[p]]
    assert len(expected) == len(rows)
    assert all((a == b).all() for a, b in zip(expected, rows, strict=True))


def _refused(message: VerifyRequest, reason: str, expected: int = -1) -> Refused:
    return Refused(
        request_id=message.request_id,
        generation_id=message.generation_id,
        reason=reason,  # type: ignore[arg-type]  # a test's own literal
        expected=expected,
    )


def verify_request(request_id: RequestId, backlog: Backlog) -> VerifyRequest:
    return VerifyRequest(
        request_id=request_id,
        boot_id=BootId("b"),
        generation_id=GenerationId("g"),
        branch=backlog.branch,
        start=backlog.start,
        tokens=pack_tokens(backlog.tokens),
        uncertain=pack_mask(backlog.uncertain),
        local=pack_mask(backlog.local),
        features=pack_features(backlog.features.astype(np.int8)),
        deadline_s=1,
    )


def open_request(request_id: str, order: Order, history: Backlog) -> GenerationOpen:
    return GenerationOpen(
        request_id=RequestId(request_id),
        boot_id=BootId("b"),
        generation_id=GenerationId("g"),
        family="toy",
        caption=order.caption,
        seed=order.seed,
        sampling=order.sampling,
        prefix_tokens=order.prefix_tokens,
        branch=history.branch,
        history=History(
            tokens=pack_tokens(history.tokens),
            local=pack_mask(history.local),
            features=pack_features(history.features.astype(np.int8)),
        ),
        deadline_s=1,
    )


POLICIES = (CIAR, verify_all(), device_only())
