"""What both clients do without I/O."""

from __future__ import annotations

import itertools
import math
import secrets
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import grpc
import numpy as np
from numpy.typing import DTypeLike, NDArray

from softmaxd_client import chunks, device_tensors, tensors, transport
from softmaxd_client.chunks import ChunkedRequest
from softmaxd_client.config import RetryPolicy
from softmaxd_client.device_memory import DeviceMemory
from softmaxd_client.errors import (
    ClientClosedError,
    InvalidTensorError,
    RequestCancelledError,
    ServerError,
    SoftmaxdError,
)
from softmaxd_client.lease import Lease
from softmaxd_client.placement import Placement
from softmaxd_client.streams import Outcome, Outgoing
from softmaxd_client.tensors import Layout, TensorLike
from softmaxd_client.transport import Answer, Request

if TYPE_CHECKING:
    from softmaxd_client.shared_memory import SharedMemory


class BaseClient:
    """A client but for its channel."""

    _softmax_method: Any
    _once_method: Any

    def __init__(
        self,
        target: str,
        transport_name: str,
        timeout: float | None,
        retry: RetryPolicy | None,
        start_lease: Callable[..., Any],
    ) -> None:
        transport.check_transport(transport_name)
        self._lease = Lease(start_lease)
        self._shared_memory = _open_shared_memory(transport_name, self._lease)
        self._device_memory = DeviceMemory(self._lease) if transport_name in ("auto", "device_memory") else None
        self._target = target
        self._transport = transport_name
        self._timeout = timeout
        self._retry = retry
        self._closed = False
        self._id_prefix = secrets.token_hex(4)
        self._id_numbers = itertools.count(1)

    def __repr__(self) -> str:
        state = " closed" if self._closed else ""
        return f"<{type(self).__module__}.SoftmaxClient {self._target} transport={self._transport}{state}>"

    def _check_open(self) -> None:
        if self._closed:
            raise ClientClosedError(self._target)

    def empty(self, shape: int | Sequence[int], dtype: DTypeLike = np.float32) -> NDArray[Any]:
        """Return a new array, with whatever values, that travels to the server and back the fastest way there is.

        That is in shared memory, if the client's transport allows it and there is room: a softmax of it, or of rows of
        it, and into it, is sent without its elements. While a call is under way nobody may write to its array or read
        its `out`, and where it fails before the server has answered, what is in `out` may change still. The memory is
        used again once no array is left that is made from it.

        Args:
            shape: Its dimensions.
            dtype: float32, float16 or bfloat16.

        Raises:
            InvalidTensorError: Another dtype, or no dimension.
            ResourceExhaustedError: There is no room for it in shared memory, and the transport is "shared_memory".
            ClientClosedError: The client is closed.
        """
        self._check_open()
        dimensions = (shape,) if isinstance(shape, int) else tuple(shape)
        layout = tensors.layout_of(np.broadcast_to(np.empty((), dtype), dimensions))
        if self._shared_memory is None:
            return np.empty(dimensions, layout.element.numpy)
        return self._shared_memory.empty(dimensions, layout.element.numpy)

    def _outgoing(
        self,
        value: TensorLike,
        *,
        zero_masked_rows: bool,
        writable: bool,
        seconds: float | None,
        out: NDArray[Any] | None = None,
    ) -> Outgoing:
        """Choose how a tensor travels; may have to ask the server to register memory.

        Returns:
            A request and the message that carries it, or a request in blocks.

        Raises:
            InvalidTensorError: `value` or `out` is unfit.
            ServerError: The server does not take memory that it has to take.
        """
        request_id = f"{self._id_prefix}-{next(self._id_numbers)}"
        if self._device_memory is not None and device_tensors.is_on_device(value):
            return _by_reference(request_id, *self._device_memory.place(value, out, seconds), zero_masked_rows)
        if self._transport == "device_memory":
            raise InvalidTensorError(
                f"got a {type(value).__name__} in host memory; allowed: a tensor on a GPU, as the transport is "
                "'device_memory'. Use transport='auto' for both"
            )
        array = tensors.as_array(value)
        layout = tensors.layout_of(array)
        if out is not None:
            tensors.check_out(out, layout)
        if self._shared_memory is not None:
            placement = self._shared_memory.place(array, layout, out, seconds)
            if placement is not None:
                return _by_reference(request_id, layout, placement, zero_masked_rows)
        if chunks.is_large(layout):
            return ChunkedRequest(
                request_id, array, layout, zero_masked_rows=zero_masked_rows, out=out, writable=writable
            )
        message = transport.encode_request(tensors.to_tensor(array), request_id, zero_masked_rows=zero_masked_rows)
        return Request(request_id, layout), message

    def _may_ask(self, value: TensorLike) -> bool:
        """Say whether `_outgoing` may have to wait for the server."""
        if self._device_memory is not None and device_tensors.is_on_device(value):
            return True
        return self._shared_memory is not None and self._shared_memory.may_ask(value)

    def _method_for(self, request: Request) -> Any:
        """Return a method that gRPC tries again, unless a second try would not find what the first one did."""
        placement = request.placement
        return self._once_method if placement is not None and placement.is_in_place else self._softmax_method

    def _is_forgotten(self, request: Request, error: ServerError) -> bool:
        """Say whether a request failed only because the server does not know its memory any more; forget that, too."""
        placement = request.placement
        if placement is None or error.code is not grpc.StatusCode.NOT_FOUND:
            return False
        placement.finish()
        for region in {placement.source.region, placement.destination.region}:
            self._lease.drop(region)
        return True

    def _release_memory(self) -> None:
        self._lease.close()
        if self._shared_memory is not None:
            self._shared_memory.close()

    @staticmethod
    def _result(outcome: Outcome, writable: bool, return_errors: bool) -> NDArray[Any] | SoftmaxdError:
        """Return what a stream yields for one tensor.

        Raises:
            SoftmaxdError: What went wrong with it, unless `return_errors` asks for that as the result.
        """
        result = _array_or_error(outcome, writable)
        if isinstance(result, SoftmaxdError) and not return_errors:
            raise result
        return result

    def _closed_during(self, request_id: str) -> RequestCancelledError:
        """Make the error for a call that `close` cut short, where gRPC has no word for it."""
        return RequestCancelledError(grpc.StatusCode.CANCELLED, "the client was closed during the call", request_id)

    def _call_seconds(self, timeout: float | None) -> float | None:
        """Return a call's timeout as gRPC wants it: None for no deadline."""
        return stream_seconds(self._timeout if timeout is None else timeout)


def _array_or_error(outcome: Outcome, writable: bool) -> NDArray[Any] | SoftmaxdError:
    if isinstance(outcome, InvalidTensorError):
        return outcome
    if isinstance(outcome, ChunkedRequest):
        return outcome.error or outcome.result()[0]
    request, answer = outcome
    if not isinstance(answer, ServerError):
        result: NDArray[Any] = array_of(request, answer, out=None, writable=writable)
        return result
    if request.placement is not None:
        request.placement.finish()
    return answer


def array_of(request: Request, answer: Answer, *, out: NDArray[Any] | None, writable: bool) -> Any:
    """Return the array that an answer brings, or the tensor on the GPU that it was written to.

    Args:
        request: What was answered.
        answer: The answer.
        out: Where the caller wants it; None for where it is.
        writable: Whether a new array can be written to.
    """
    placement, layout = request.placement, request.layout
    if placement is None:
        return tensors.to_array(answer.payload, layout, out=out, writable=writable)
    placement.finish()
    result = placement.result
    if out is not None and out is not result:
        np.copyto(out, result, casting="equiv")
        return out
    if out is None and isinstance(result, np.ndarray):
        result = result.astype(layout.dtype, copy=False)
        result.flags.writeable = writable
    return result


def _by_reference(
    request_id: str, layout: Layout, placement: Placement, zero_masked_rows: bool
) -> tuple[Request, bytes]:
    request = Request(request_id, layout, placement)
    return request, transport.encode_reference(request, placement, zero_masked_rows=zero_masked_rows)


def _open_shared_memory(transport_name: str, lease: Lease) -> SharedMemory | None:
    """Return what shares memory with the server, or None where that is not wanted, or this system has none.

    Raises:
        ValueError: It is required, and this system has none.
    """
    is_required = transport_name == "shared_memory"
    if not is_required and transport_name != "auto":
        return None
    try:
        from softmaxd_client.shared_memory import SharedMemory  # of POSIX alone
    except ImportError as error:
        if is_required:
            raise ValueError(f"transport is 'shared_memory', which {sys.platform} does not have: use 'auto'") from error
        return None
    return SharedMemory(lease, is_required=is_required)


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
