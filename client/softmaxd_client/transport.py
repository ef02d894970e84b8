"""Tensors on the wire: the methods' paths, requests into bytes, and answers out of them.

All of it is free of I/O and shared by both clients. Messages travel as bytes, never as generated classes, so that a
payload is copied once on the way out (into its message) and not at all on the way in.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar

from google.protobuf.message import DecodeError
from softmaxd_proto import codec
from softmaxd_proto.v1 import softmax_pb2

from softmaxd_client.config import SERVICE
from softmaxd_client.errors import ServerError, broken_answer, from_status
from softmaxd_client.info import Execution, ServerInfo
from softmaxd_client.placement import Placement
from softmaxd_client.tensors import Layout, Tensor

SOFTMAX = f"/{SERVICE}/Softmax"
SOFTMAX_STREAM = f"/{SERVICE}/SoftmaxStream"
REGISTER_MEMORY = f"/{SERVICE}/RegisterMemory"
GET_SERVER_INFO = f"/{SERVICE}/GetServerInfo"

MISSING_ANSWER = "the stream ended before every tensor was answered"

INFO_REQUEST = softmax_pb2.GetServerInfoRequest().SerializeToString()

AnyResponse: TypeAlias = softmax_pb2.SoftmaxResponse | softmax_pb2.SoftmaxStreamResponse
Response = TypeVar("Response", softmax_pb2.SoftmaxResponse, softmax_pb2.SoftmaxStreamResponse)

# "auto" is the fastest transport that client and server have in common.
TRANSPORTS = ("auto", "inline", "shared_memory", "device_memory")


@dataclass(frozen=True)
class Request:
    """A request as it was sent, kept until its answer has come.

    Attributes:
        request_id: Unique within the client.
        layout: What the answer must look like.
        placement: Where its tensors are in registered memory; None where they travel inline.
    """

    request_id: str
    layout: Layout
    placement: Placement | None = field(default=None, compare=False)

    @property
    def payload_bytes(self) -> int:
        """The size of the answer's payload."""
        return 0 if self.placement is not None else self.layout.nbytes


@dataclass(frozen=True)
class Answer:
    """A computed tensor.

    Attributes:
        payload: Its elements; empty where they are in registered memory.
        execution: What ran.
    """

    payload: memoryview
    execution: Execution


def check_transport(name: str) -> None:
    """Make sure that a transport is one that this client has.

    Raises:
        ValueError: It is not.
    """
    if name not in TRANSPORTS:
        raise ValueError(f"transport is {name!r}; allowed: {', '.join(TRANSPORTS)}")


def encode_request(tensor: Tensor, request_id: str, *, zero_masked_rows: bool) -> bytes:
    """Write a request message, for Softmax and SoftmaxStream alike: their requests have the same fields."""
    return codec.encode(_header(request_id, tensor.layout, zero_masked_rows), tensor.payload)


def encode_reference(request: Request, placement: Placement, *, zero_masked_rows: bool) -> bytes:
    """Write a request message whose tensors are in registered memory, for Softmax and SoftmaxStream alike."""
    header = _header(request.request_id, request.layout, zero_masked_rows)
    if request.layout.nbytes:
        header.source.CopyFrom(placement.source)
        header.destination.CopyFrom(placement.destination)
    return header.SerializeToString()


def decode_answer(message: bytes, request: Request) -> Answer:
    """Read an answer of Softmax, and hold it against its request.

    Args:
        message: The bytes off the wire.
        request: What was asked.

    Raises:
        ServerError: The contract does not allow this answer to this request.
    """
    header, payload = _decode(softmax_pb2.SoftmaxResponse, message, request)
    return _answer(header, payload, request)


def decode_stream_answer(message: bytes, request: Request) -> Answer | ServerError:
    """Read an answer of SoftmaxStream, and hold it against its request.

    Args:
        message: The bytes off the wire.
        request: What was asked.

    Returns:
        The answer, or the error that its status says.

    Raises:
        ServerError: The contract does not allow this answer to this request, so those behind it mean nothing either.
    """
    header, payload = _decode(softmax_pb2.SoftmaxStreamResponse, message, request)
    if header.status.code:
        return from_status(header.status.code, header.status.message, request.request_id)
    return _answer(header, payload, request)


def decode_info(message: bytes) -> ServerInfo:
    """Read an answer of GetServerInfo.

    Raises:
        ServerError: It is none.
    """
    try:
        return ServerInfo.from_message(softmax_pb2.GetServerInfoResponse.FromString(message))
    except DecodeError as error:
        raise broken_answer("the answer is not a GetServerInfoResponse") from error


def unasked_answer() -> ServerError:
    """Make the error for an answer on a stream that no request is waiting for."""
    return broken_answer("an answer came that no request was waiting for")


def missing_answer(request_id: str = "") -> ServerError:
    """Make the error for a stream that the server ended, with OK, before it had answered everything."""
    return broken_answer(MISSING_ANSWER, request_id)


def _header(request_id: str, layout: Layout, zero_masked_rows: bool) -> softmax_pb2.SoftmaxRequest:
    header = softmax_pb2.SoftmaxRequest(id=request_id, data_type=layout.element.number, shape=layout.shape)
    if zero_masked_rows:
        header.options.zero_masked_rows = True
    return header


def _decode(kind: type[Response], message: bytes, request: Request) -> tuple[Response, memoryview]:
    """Split an answer that has the request's id."""
    try:
        header, payload = codec.decode(kind, message)
    except codec.MalformedMessageError as error:
        raise broken_answer(f"the answer is {error}", request.request_id) from error
    if header.id != request.request_id:
        raise broken_answer(f"the answer is for request {header.id!r}", request.request_id)
    return header, payload


def _answer(header: AnyResponse, payload: memoryview, request: Request) -> Answer:
    """Return an answer that has the request's layout."""
    layout = request.layout
    got = (header.data_type, tuple(header.shape), payload.nbytes)
    wanted = (layout.element.number, layout.shape, request.payload_bytes)
    if got != wanted:
        raise broken_answer(
            f"the answer is data type {got[0]} of shape {got[1]} in {got[2]} bytes; "
            f"the request was data type {wanted[0]} of shape {wanted[1]} in {wanted[2]} bytes",
            request.request_id,
        )
    return Answer(payload, Execution.from_message(header.execution))
