"""Messages to engine requests, with all checks of input, and the engine's answers to messages."""

from dataclasses import dataclass
from typing import Any, Literal, assert_never, cast

import numpy as np

from cloud_hub.engine.requests import (
    Answer,
    Backlog,
    Denied,
    Features,
    Full,
    Judged,
    Lessons,
    Mask,
    Opened,
    Opening,
    Run,
    SessionKey,
    Tokens,
)
from fleet.decoding.residual import QuantisedLaw
from fleet.decoding.verify import Rule, RuleName
from fleet.errors import InvalidInputError, ProtocolError
from fleet.ids import ModelVersion, NodeId, WorkerId, is_level
from fleet.models.caption import Captions
from fleet.protocol.arrays import (
    FEATURE_BYTES,
    pack_confidences,
    pack_tokens,
    pack_top_laws,
    unpack_features,
    unpack_laws,
    unpack_mask,
    unpack_tokens,
)
from fleet.protocol.messages import (
    Busy,
    GenerationOpen,
    GenerationOpened,
    History,
    Refused,
    VerifyRequest,
    VerifyResponse,
)

_LONGEST_DETAIL = 512


@dataclass(frozen=True, slots=True)
class Service:
    """What this worker serves: one family of models on one picture size."""

    worker: WorkerId
    family: str
    cloud_version: ModelVersion
    positions: int
    vocab_size: int
    captions: Captions
    captions_take_long: bool = False  # an encoder runs for each new one
    law_share: float = 0.0  # of the positions of devices that learn


def read_open(service: Service, node: NodeId, message: GenerationOpen) -> Opening | Refused:
    """The opening that a message asks for, or why it cannot be served."""
    if message.family != service.family:
        detail = f"this hub serves {service.family!r}, not {message.family!r}"
        return _refused(message, "other_family", detail)
    try:
        _check_ids(message)
        return Opening(
            key=SessionKey(node, message.generation_id),
            request_id=message.request_id,
            boot=message.boot_id,
            caption=tuple(service.captions.encode(message.caption)),
            seed=message.seed,
            sampling=message.sampling,
            use_features=message.use_features,
            prefix_tokens=_check_end(service, message.prefix_tokens),
            branch=message.branch,
            history=_read_run(service, 0, message.history),
            deadline_s=message.deadline_s,
            rule=Rule(cast(RuleName, message.rule), message.relaxation),
            lessons=Lessons(message.law_size, service.law_share),
            wants_condition=message.wants_condition,
        )
    except (InvalidInputError, ProtocolError) as error:
        return _refused(message, "invalid", str(error))


def read_verify(service: Service, node: NodeId, message: VerifyRequest) -> Backlog | Refused:
    """The backlog that a message asks about, or why it cannot be served."""
    try:
        _check_ids(message)
        run = _read_run(service, message.start, message)
        uncertain = unpack_mask(message.uncertain, len(run))
        if not len(run):
            raise ProtocolError("a backlog has at least one token")
        if (uncertain & run.local).any():
            raise ProtocolError("a token is either local or uncertain")
        return Backlog(
            key=SessionKey(node, message.generation_id),
            request_id=message.request_id,
            branch=message.branch,
            start=message.start,
            run=run,
            uncertain=uncertain,
            deadline_s=message.deadline_s,
            laws=_read_laws(service, run.tokens[uncertain], message.laws) if message.laws else (),
        )
    except ProtocolError as error:
        return _refused(message, "invalid", str(error))


def write_answer(
    service: Service, request: GenerationOpen | VerifyRequest, answer: Answer
) -> GenerationOpened | VerifyResponse | Busy | Refused:
    """The message that carries the engine's answer to a request."""
    ids: dict[str, Any] = {"request_id": request.request_id, "generation_id": request.generation_id}
    match answer:
        case Opened():
            return GenerationOpened(
                **ids,
                worker=service.worker,
                cloud_version=service.cloud_version,
                tokens=pack_tokens(np.array(answer.tokens, np.int64)),
                confidences=pack_confidences(np.array(answer.confidences)),
                forwards=answer.cost.forwards,
                queue_s=answer.cost.queue_s,
                forward_s=answer.cost.forward_s,
                condition=answer.condition,
            )
        case Judged():
            return VerifyResponse(
                **ids,
                branch=answer.branch,
                accepted=answer.accepted,
                next_token=answer.next_token,
                confidences=pack_confidences(np.array(answer.confidences)),
                forwards=answer.cost.forwards,
                queue_s=answer.cost.queue_s,
                forward_s=answer.cost.forward_s,
                top_laws=pack_top_laws(answer.top_laws),
            )
        case Full():
            return Busy(**ids, retry_after_s=answer.retry_after_s)
        case Denied():
            return Refused(
                **ids,
                reason=answer.reason.value,
                expected=answer.expected,
                detail=answer.detail[:_LONGEST_DETAIL],
            )
        case _:
            assert_never(answer)


def _check_ids(message: GenerationOpen | VerifyRequest) -> None:
    for name in ("request_id", "generation_id", "boot_id"):
        if not is_level(getattr(message, name)):
            raise ProtocolError(f"{name} is not 1 to 63 lower-case letters, digits, '-' or '_'")


def _check_end(service: Service, end: int) -> int:
    if end > service.positions:
        raise ProtocolError(f"position {end} is beyond the picture's {service.positions} tokens")
    return end


def _read_run(service: Service, start: int, arrays: VerifyRequest | History) -> Run:
    tokens = unpack_tokens(arrays.tokens)
    _check_end(service, start + len(tokens))
    if len(tokens) and tokens.max() >= service.vocab_size:
        raise ProtocolError(f"token {tokens.max()} is not among the {service.vocab_size} codes")
    local = unpack_mask(arrays.local, len(tokens))
    return Run(tokens, local, _read_features(arrays.features, local))


def _read_features(data: bytes, local: Mask) -> Features:
    """One row a token, zero where the token is not local; no bytes at all: no token has one."""
    features = np.zeros((len(local), FEATURE_BYTES), np.int8)
    if data:
        features[local] = unpack_features(data, int(np.count_nonzero(local)))
    return features


def _read_laws(service: Service, drafts: Tokens, data: bytes) -> tuple[QuantisedLaw, ...]:
    """The laws of the uncertain drafts; no bytes at all: the session's rule needs none."""
    laws = tuple(unpack_laws(data, service.vocab_size))
    if laws and len(laws) != len(drafts):
        raise ProtocolError(f"{len(laws)} draft laws for {len(drafts)} uncertain drafts")
    for draft, sent in zip(drafts, laws, strict=False):
        if draft not in sent.codes:
            raise ProtocolError(f"draft {draft} has probability 0 in the law that it came with")
    return laws


def _refused(
    message: GenerationOpen | VerifyRequest, reason: Literal["invalid", "other_family"], detail: str
) -> Refused:
    return Refused(
        request_id=message.request_id,
        generation_id=message.generation_id,
        reason=reason,
        detail=detail[:_LONGEST_DETAIL],
    )
