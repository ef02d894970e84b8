"""What must hold for any bytes: the codec agrees with protobuf's own classes, and the dataplane answers or refuses.

An input is one byte that selects the kind of message and a filler, and a body. The filler makes a small body a large
message, which the codec walks itself.
"""

from __future__ import annotations

from time import perf_counter
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError
from softmaxd_proto import codec
from softmaxd_proto.v1 import softmax_pb2 as pb
from softmaxd_server.backends.reference import NumpyBackend
from softmaxd_server.dataplane import STREAM, UNARY, Dataplane, Exchange, Outcome
from softmaxd_server.errors import MalformedRequestError
from softmaxd_server.statuses import STATUS_CODES

KINDS = (pb.SoftmaxRequest, pb.SoftmaxStreamRequest, pb.SoftmaxResponse, pb.SoftmaxStreamResponse)
_EXCHANGES = {exchange.request: exchange for exchange in (UNARY, STREAM)}
SMALL_BYTES = 32 * 1024  # up to here the codec leaves all to the library
FILLER_ELEMENTS = 8193
MAX_MESSAGE_BYTES = 100_000

_PAYLOAD = pb.SoftmaxRequest(payload=bytes(4 * FILLER_ELEMENTS)).SerializeToString()
_UNKNOWN_TAG = b"\x3a"  # field 7, in all kinds


def _unknown(byte_count: int) -> bytes:
    """Write a field that no kind has, with all its bytes counted."""
    field = _UNKNOWN_TAG + codec.payload_start(byte_count - 4)[1:] + bytes(byte_count - 4)
    assert len(field) == byte_count
    return field


# Before or behind the body.
FILLERS = (
    (b"", b""),
    (_PAYLOAD, b""),
    (b"", _PAYLOAD),
    (_unknown(SMALL_BYTES), b""),
    (_unknown(codec.MAX_HEADER_BYTES - 60), b""),
)
_OTHER_IDS = (b"\x0a\x01b", b"\x0a\x00", b"\x0a\x01\xff")
_BACKEND = NumpyBackend()


class Input(NamedTuple):
    """What an input's bytes stand for.

    Attributes:
        kind: The generated class.
        body: The bytes that are chosen freely.
        message: The body with its filler.
    """

    kind: Any
    body: bytes
    message: bytes


def input_of(data: bytes) -> Input:
    """Read an input; without any byte it is the first kind with an empty body."""
    filler, kind = divmod(data[0] if data else 0, len(KINDS))
    before, behind = FILLERS[filler % len(FILLERS)]
    return Input(KINDS[kind], data[1:], before + data[1:] + behind)


def check(data: bytes) -> None:
    """Check all that must hold for an input.

    Raises:
        AssertionError: Something does not.
    """
    given = input_of(data)
    check_codec(given)
    exchange = _EXCHANGES.get(given.kind)
    if exchange is not None:
        check_dataplane(exchange, given.message)


def check_codec(given: Input) -> None:
    """Check that `codec.decode` gives what the generated class gives, without copying a large message's payload."""
    kind, _, message = given
    try:
        header, payload = codec.decode(kind, message)
    except codec.MalformedMessageError as error:
        _check_refusal(given, str(error))
        return
    expected = _parsed(kind, message)
    assert expected is not None
    assert payload == expected.payload
    expected.ClearField("payload")
    assert header.SerializeToString(deterministic=True) == expected.SerializeToString(deterministic=True)
    if len(message) > SMALL_BYTES and payload.nbytes > 0:
        assert payload.obj is message
    assert kind.FromString(codec.encode(header, payload)).payload == payload


def _check_refusal(given: Input, reason: str) -> None:
    kind, body, message = given
    if _parsed(kind, message) is not None:  # then it is over a limit, and can be
        assert "allowed are" in reason
        assert len(message) > SMALL_BYTES
        assert len(body) > codec.MAX_FIELDS - 2 or len(message) > codec.MAX_HEADER_BYTES


def check_dataplane(exchange: Exchange, message: bytes) -> None:
    """Check that a request is answered or refused, and in the same way where its header may be known."""
    knowing = Dataplane(_BACKEND, MAX_MESSAGE_BYTES)
    other_values = message[:-1] + bytes((message[-1] ^ 1,)) if message else message
    for each in (message, message, other_values, *(other_id + message for other_id in _OTHER_IDS)):
        outcome = knowing.serve(exchange, each, perf_counter())
        _check_outcome(exchange, each, outcome)
        fresh = Dataplane(_BACKEND, MAX_MESSAGE_BYTES).serve(exchange, each, perf_counter())
        assert _without_times(outcome) == _without_times(fresh)


def _check_outcome(exchange: Exchange, message: bytes, outcome: Outcome) -> None:
    if outcome.error is not None:
        assert type(outcome.error) in STATUS_CODES, f"a fault: {outcome.error!r}"
        assert outcome.answer == b""
        if isinstance(outcome.error, MalformedRequestError):
            return
    request = _parsed(exchange.request, message)
    assert request is not None
    assert outcome.id == request.id
    if outcome.error is None:
        answer = exchange.response.FromString(outcome.answer)
        assert answer.SerializeToString() == outcome.answer
        assert (answer.id, answer.data_type, answer.shape) == (request.id, request.data_type, request.shape)
        assert len(answer.payload) == len(request.payload)


def _parsed(kind: Any, message: bytes) -> Any:
    """Return what the generated class makes of a message; None where it refuses."""
    try:
        return kind.FromString(message)
    except DecodeError:
        return None


def _without_times(outcome: Outcome) -> tuple[str, bytes, type[Exception | None], str]:
    return outcome.id, outcome.answer, type(outcome.error), str(outcome.error)
