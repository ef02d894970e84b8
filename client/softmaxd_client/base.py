"""What both clients do without I/O."""

from __future__ import annotations

import itertools
import math
import secrets
from typing import Any

from numpy.typing import NDArray

from softmaxd_client import tensors, transport
from softmaxd_client.errors import ClientClosedError, InvalidTensorError, ServerError, SoftmaxdError
from softmaxd_client.streams import Outcome
from softmaxd_client.tensors import TensorLike
from softmaxd_client.transport import Request


class BaseClient:
    """A client but for its channel."""

    def __init__(self, target: str, transport_name: str, timeout: float | None) -> None:
        transport.check_transport(transport_name)
        self._target = target
        self._transport = transport_name
        self._timeout = timeout
        self._closed = False
        self._id_prefix = secrets.token_hex(4)
        self._id_numbers = itertools.count(1)

    def __repr__(self) -> str:
        state = " closed" if self._closed else ""
        return f"<{type(self).__module__}.SoftmaxClient {self._target} transport={self._transport}{state}>"

    def _check_open(self) -> None:
        if self._closed:
            raise ClientClosedError(self._target)

    def _request(
        self, array: TensorLike, zero_masked_rows: bool, out: NDArray[Any] | None = None
    ) -> tuple[Request, bytes]:
        """Return a request, and the message that carries it."""
        tensor = tensors.to_tensor(array)
        if out is not None:
            tensors.check_out(out, tensor.layout)
        request = Request(f"{self._id_prefix}-{next(self._id_numbers)}", tensor.layout)
        return request, transport.encode_request(tensor, request.request_id, zero_masked_rows=zero_masked_rows)

    @staticmethod
    def _result(outcome: Outcome, writable: bool) -> NDArray[Any] | SoftmaxdError:
        """Return what a stream yields for one tensor, or raises."""
        if isinstance(outcome, InvalidTensorError):
            return outcome
        request, answer = outcome
        if isinstance(answer, ServerError):
            return answer
        return tensors.to_array(answer.payload, request.layout, out=None, writable=writable)

    def _call_seconds(self, timeout: float | None) -> float | None:
        """Return a call's timeout as gRPC wants it: None for no deadline."""
        return stream_seconds(self._timeout if timeout is None else timeout)


def stream_seconds(timeout: float | None) -> float | None:
    """Return a stream's timeout as gRPC wants it: without one given it has no deadline, as it may go on for days."""
    return None if timeout == math.inf else timeout


def check_in_flight(in_flight: int) -> None:
    """Make sure that a stream may have at least one tensor un-answered.

    Raises:
        ValueError: It may not.
    """
    if in_flight < 1:
        raise ValueError(f"in_flight is {in_flight}; allowed: 1 or more")
