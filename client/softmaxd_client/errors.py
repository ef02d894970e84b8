"""The errors of the client.

SoftmaxdError
|-- ClientClosedError           the client was closed before the call
|-- InvalidTensorError          refused here, before anything was sent (also a ValueError)
`-- ServerError                 what the server, or the way to it, answered instead of a tensor
    |-- InvalidArgumentError    INVALID_ARGUMENT: the server refused the tensor
    |-- ResourceExhaustedError  RESOURCE_EXHAUSTED: too large a message, too many requests, no memory
    |-- DeadlineExceededError   DEADLINE_EXCEEDED: no answer within the timeout
    |-- UnavailableError        UNAVAILABLE: no server there, or one that is draining, after all retries
    `-- RequestCancelledError   CANCELLED: the client was closed during the call, or the server gave it up
"""

from __future__ import annotations

import re
from typing import Any

import grpc

# gRPC core's own words, the same in every language that builds on it.
_MESSAGE_TOO_LARGE = re.compile(r"Received message larger than max \((\d+) vs\. (\d+)\)")
_CORE_DEADLINE = "Deadline Exceeded"


class SoftmaxdError(Exception):
    """Raised by the client; the base of all its errors."""


class ClientClosedError(SoftmaxdError):
    """Raised when a closed client is used again."""

    def __init__(self, target: str = "") -> None:
        super().__init__(f"the client for {target} is closed: make a new SoftmaxClient")


class InvalidTensorError(SoftmaxdError, ValueError):
    """Raised when a value is no tensor that can be sent, or `out` none that can take the answer."""


class ServerError(SoftmaxdError):
    """Raised when a call failed; raised as this very class for status codes that have no class of their own.

    Attributes:
        code: The gRPC status code.
        details: What was got, what is allowed, what to do.
        request_id: The id under which the server logged the request; empty for a call without a tensor.
    """

    def __init__(self, code: grpc.StatusCode, details: str, request_id: str = "") -> None:
        super().__init__(code, details, request_id)
        self.code = code
        self.details = details
        self.request_id = request_id

    def __str__(self) -> str:
        request = f" (request {self.request_id})" if self.request_id else ""
        return f"{self.code.name}: {self.details}{request}"


class InvalidArgumentError(ServerError):
    """Raised when the server refused the tensor."""


class ResourceExhaustedError(ServerError):
    """Raised when a message or the load was more than the server takes."""


class DeadlineExceededError(ServerError):
    """Raised when no answer came within the timeout."""


class UnavailableError(ServerError):
    """Raised when no server could be reached, or it was draining; all but `stream()` was tried again before."""


class RequestCancelledError(ServerError):
    """Raised when the call was cancelled by closing the client, or by the server."""


ERROR_BY_CODE: dict[grpc.StatusCode, type[ServerError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidArgumentError,
    grpc.StatusCode.RESOURCE_EXHAUSTED: ResourceExhaustedError,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceededError,
    grpc.StatusCode.UNAVAILABLE: UnavailableError,
    grpc.StatusCode.CANCELLED: RequestCancelledError,
}
_CODE_BY_NUMBER: dict[int, grpc.StatusCode] = {code.value[0]: code for code in grpc.StatusCode}


def from_status(code: grpc.StatusCode | int, details: str | None, request_id: str = "") -> ServerError:
    """Make the error for a status that is not OK.

    Args:
        code: The status code, or its number as the contract's `Status` carries it; an unknown number is UNKNOWN.
        details: The status message.
        request_id: The request that failed, where it was one.
    """
    if isinstance(code, int):
        code = _CODE_BY_NUMBER.get(code, grpc.StatusCode.UNKNOWN)
    return ERROR_BY_CODE.get(code, ServerError)(code, _say_what_to_do(details or "no details given"), request_id)


def from_rpc(error: grpc.RpcError, request_id: str = "") -> ServerError:
    """Make the error for one of gRPC's."""
    call: Any = error  # every RpcError that a call raises is a Call as well, which its type does not say
    return from_status(call.code(), call.details(), request_id)


def broken_answer(reason: str, request_id: str = "") -> ServerError:
    """Make the error for an answer that the contract does not allow."""
    return ServerError(grpc.StatusCode.INTERNAL, f"the server broke the contract: {reason}", request_id)


def _say_what_to_do(details: str) -> str:
    """Name the knobs in the messages that gRPC core itself writes."""
    if too_large := _MESSAGE_TOO_LARGE.search(details):
        got, allowed = too_large.groups()
        return (
            f"got a message of {got} bytes, the server accepts at most {allowed} bytes a message: send fewer rows at "
            "once (large tensors are split by rows into messages of about 1 MB, but never within a row), or start the "
            "server with a larger --max-message-bytes"
        )
    if _CORE_DEADLINE in details:
        return "no answer within the timeout: pass a larger timeout=, or timeout=math.inf for none"
    return details
