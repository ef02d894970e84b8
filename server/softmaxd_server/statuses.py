"""The one table from an error to a gRPC status, and what a client is told of a fault."""

from __future__ import annotations

import logging
import uuid
from typing import Any

import grpc

from softmaxd_server import errors

_log = logging.getLogger(__name__)

STATUS_CODES: dict[type[Exception], grpc.StatusCode] = {
    errors.MalformedRequestError: grpc.StatusCode.INVALID_ARGUMENT,
    errors.InvalidTensorError: grpc.StatusCode.INVALID_ARGUMENT,
    errors.MessageTooLargeError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.DeadlineError: grpc.StatusCode.DEADLINE_EXCEEDED,
    errors.UnknownRegionError: grpc.StatusCode.NOT_FOUND,
    errors.InvalidRegionError: grpc.StatusCode.INVALID_ARGUMENT,
    errors.TransportOffError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.LostRegionError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.DrainingError: grpc.StatusCode.UNAVAILABLE,
    errors.OverloadedError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.RegionLimitError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.OutOfMemoryError: grpc.StatusCode.RESOURCE_EXHAUSTED,
}
# All that a request can end with: the label set of the request histogram.
ALL_CODES = tuple(
    dict.fromkeys((grpc.StatusCode.OK, grpc.StatusCode.CANCELLED, grpc.StatusCode.INTERNAL, *STATUS_CODES.values()))
)
_MAX_LOGGED_ID_CHARACTERS = 100


def status_of(error: Exception, client_id: str = "") -> tuple[grpc.StatusCode, str]:
    """Return the status code and the message that a client gets for an error.

    An error outside the table is a fault: it is logged with a fresh request id, and the client is told only that id.

    Args:
        error: What went wrong.
        client_id: The id that the client gave its request, for the log.
    """
    code = STATUS_CODES.get(type(error))
    if code is not None:
        return code, str(error)
    request_id = uuid.uuid4().hex[:16]
    _log.error(
        "internal error, request id %s, client's id %r",
        request_id,
        client_id[:_MAX_LOGGED_ID_CHARACTERS],
        exc_info=error,
    )
    return grpc.StatusCode.INTERNAL, f"internal error, request id {request_id}"


def number_of(code: grpc.StatusCode) -> int:
    """Return a code's number, as the contract's Status carries it."""
    value: Any = code.value  # (number, text)
    return int(value[0])
