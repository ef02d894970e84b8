"""The client, for an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterable, Iterator
from types import TracebackType
from typing import Any, Literal, overload

import grpc
from numpy.typing import NDArray

from softmaxd_client import aio_streams, tensors
from softmaxd_client import transport as wire  # `transport` is an argument of the constructor
from softmaxd_client.base import BaseClient, check_in_flight, stream_seconds
from softmaxd_client.config import DEFAULT_IN_FLIGHT, DEFAULT_TIMEOUT_SECONDS, ClientConfig
from softmaxd_client.errors import RequestCancelledError, SoftmaxdError, from_rpc
from softmaxd_client.info import Execution, ServerInfo
from softmaxd_client.tensors import TensorLike


class SoftmaxClient(BaseClient):
    """Asks a softmaxd server for softmax over the last axis.

    One client holds one connection, and another one if it streams; the tasks of one event loop may share it, and it is
    made inside that loop. A connection is made by the first call that needs it. `await close()` the client, or use it
    in an `async with` statement.

    Args:
        target: The server, `host:port` or any other name that gRPC resolves.
        transport: How tensors travel: "inline" in the messages; "auto" the fastest way that both sides have.
        timeout: Seconds for a call that is given none; None for no deadline.
        config: How to connect and when to try again.

    Raises:
        ValueError: There is no such transport.
        RuntimeError: No event loop is running.
    """

    def __init__(
        self,
        target: str,
        *,
        transport: str = "auto",
        timeout: float | None = DEFAULT_TIMEOUT_SECONDS,
        config: ClientConfig | None = None,
    ) -> None:
        super().__init__(target, transport, timeout)
        asyncio.get_running_loop()  # gRPC would bind to a loop that never runs
        config = config or ClientConfig()
        self._channel = grpc.aio.insecure_channel(target, options=config.grpc_options())
        self._stream_channel = grpc.aio.insecure_channel(target, options=config.stream_grpc_options())
        self._softmax_method: Any = self._channel.unary_unary(wire.SOFTMAX)
        self._stream_method: Any = self._stream_channel.stream_stream(wire.SOFTMAX_STREAM)
        self._info_method: Any = self._channel.unary_unary(wire.GET_SERVER_INFO)

    async def softmax(
        self,
        array: TensorLike,
        *,
        out: NDArray[Any] | None = None,
        timeout: float | None = None,
        zero_masked_rows: bool = False,
        writable: bool = True,
    ) -> NDArray[Any]:
        """Compute softmax over the last axis.

        Args:
            array: float32, float16 or bfloat16 of shape (..., cols): a numpy array, a DLPack tensor in CPU memory, or
                a list, which becomes float32.
            out: A writable array of the same shape and dtype to write the answer into; it may overlap `array`.
            timeout: Seconds until the call fails; None for the client's own, `math.inf` for no deadline.
            zero_masked_rows: A row whose elements are all -inf becomes zeros instead of NaN.
            writable: False gives a read-only view of the received bytes, which spares a copy. Means nothing with `out`.

        Returns:
            An array of the same shape and dtype, byte order included; `out` where it is given.

        Raises:
            InvalidTensorError: `array` or `out` is unfit; nothing was sent.
            ServerError: The call failed; its subclasses say how.
            ClientClosedError: The client is closed.
        """
        result, _ = await self.softmax_with_execution(
            array, out=out, timeout=timeout, zero_masked_rows=zero_masked_rows, writable=writable
        )
        return result

    async def softmax_with_execution(
        self,
        array: TensorLike,
        *,
        out: NDArray[Any] | None = None,
        timeout: float | None = None,
        zero_masked_rows: bool = False,
        writable: bool = True,
    ) -> tuple[NDArray[Any], Execution]:
        """Compute softmax over the last axis, and say what ran on the server.

        Takes and raises the same as `softmax`.

        Returns:
            The array that `softmax` returns, and the variant and tiles behind it.
        """
        self._check_open()
        request, message = self._request(array, zero_masked_rows, out)
        received = await self._call(self._softmax_method, message, timeout, request.request_id)
        answer = wire.decode_answer(received, request)
        return tensors.to_array(answer.payload, request.layout, out=out, writable=writable), answer.execution

    @overload
    def stream(
        self,
        arrays: Iterable[TensorLike] | AsyncIterable[TensorLike],
        *,
        in_flight: int = ...,
        timeout: float | None = ...,
        zero_masked_rows: bool = ...,
        writable: bool = ...,
        return_errors: Literal[False] = ...,
    ) -> AsyncGenerator[NDArray[Any], None]: ...

    @overload
    def stream(
        self,
        arrays: Iterable[TensorLike] | AsyncIterable[TensorLike],
        *,
        in_flight: int = ...,
        timeout: float | None = ...,
        zero_masked_rows: bool = ...,
        writable: bool = ...,
        return_errors: bool,
    ) -> AsyncGenerator[NDArray[Any] | SoftmaxdError, None]: ...

    def stream(
        self,
        arrays: Iterable[TensorLike] | AsyncIterable[TensorLike],
        *,
        in_flight: int = DEFAULT_IN_FLIGHT,
        timeout: float | None = None,
        zero_masked_rows: bool = False,
        writable: bool = True,
        return_errors: bool = False,
    ) -> AsyncGenerator[Any, None]:
        """Compute softmax of many arrays over one call, yielding the answers in order.

        The call begins with the first `anext()`. Closing the iterator (`aclose()`) before its end cancels the call. A
        stream is not tried again (`ClientConfig.stream_grpc_options` says why): what it has not yielded has to be sent
        anew.

        Args:
            arrays: Each as for `softmax`; shapes and dtypes may differ. Pulled from lazily and in another task, which
                lets an answer come out while the next array is still awaited; what an iterable without `async` waits
                for, the loop waits for. An exception from it is raised here, behind the answers to the arrays before
                it.
            in_flight: Arrays that may be sent and not yet answered, at least 1; it bounds the memory on both sides.
                Messages of about 1 MB and a few in flight are the fastest.
            timeout: Seconds until the whole stream fails; None for no deadline.
            zero_masked_rows: As for `softmax`.
            writable: As for `softmax`.
            return_errors: False raises the error of a bad array in its place, which ends the stream. True yields the
                error instead, and goes on.

        Yields:
            For each array one of the same shape and dtype; with `return_errors`, or its InvalidTensorError or
            ServerError.

        Raises:
            ValueError: `in_flight` is less than 1.
            InvalidTensorError: An array is unfit.
            ServerError: The server refused an array, or the call as a whole failed.
            ClientClosedError: The client is closed.
        """
        self._check_open()
        check_in_flight(in_flight)
        return self._stream(
            _async_iterator(arrays), in_flight, stream_seconds(timeout), zero_masked_rows, writable, return_errors
        )

    async def info(self, *, timeout: float | None = None) -> ServerInfo:
        """Return the server's description.

        Args:
            timeout: As for `softmax`.

        Raises:
            ServerError: The call failed.
            ClientClosedError: The client is closed.
        """
        self._check_open()
        return wire.decode_info(await self._call(self._info_method, wire.INFO_REQUEST, timeout))

    async def ping(self, *, timeout: float | None = None) -> float:
        """Return the seconds that a round trip to the server takes; the first one includes connecting.

        Args:
            timeout: As for `softmax`.

        Raises:
            ServerError: The call failed.
            ClientClosedError: The client is closed.
        """
        start = time.perf_counter()
        await self.info(timeout=timeout)
        return time.perf_counter() - start

    async def close(self) -> None:
        """Close the connections; calls that other tasks are in fail with RequestCancelledError. May be repeated."""
        self._closed = True
        await self._channel.close()
        await self._stream_channel.close()

    async def __aenter__(self) -> SoftmaxClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def _call(self, method: Any, message: bytes, timeout: float | None, request_id: str = "") -> bytes:
        with self._cancelled_by_close(request_id):
            try:
                received: bytes = await self._start(method, message, timeout=self._call_seconds(timeout))
            except grpc.RpcError as error:
                raise from_rpc(error, request_id) from error
            return received

    def _start(self, method: Any, *sent: bytes, timeout: float | None) -> Any:
        try:
            return method(*sent, timeout=timeout)
        except grpc.aio.UsageError:  # gRPC's word for a channel that another task has closed by now
            self._check_open()
            raise

    @contextlib.contextmanager
    def _cancelled_by_close(self, request_id: str = "") -> Iterator[None]:
        """Tell a call that `close` cancelled, for which gRPC has no other word, from a task that was cancelled."""
        try:
            yield
        except asyncio.CancelledError:
            if not self._closed or _is_task_cancelled():
                raise
            raise RequestCancelledError(
                grpc.StatusCode.CANCELLED, "the client was closed during the call", request_id
            ) from None

    async def _stream(
        self,
        arrays: AsyncIterator[TensorLike],
        in_flight: int,
        seconds: float | None,
        zero_masked_rows: bool,
        writable: bool,
        return_errors: bool,
    ) -> AsyncGenerator[Any, None]:
        self._check_open()
        outcomes = aio_streams.exchange(
            functools.partial(self._start, self._stream_method),
            arrays,
            lambda array: self._request(array, zero_masked_rows),
            in_flight=in_flight,
            timeout=seconds,
        )
        with self._cancelled_by_close():
            async with contextlib.aclosing(outcomes):
                async for outcome in outcomes:
                    result = self._result(outcome, writable)
                    if isinstance(result, SoftmaxdError) and not return_errors:
                        raise result
                    yield result


def _is_task_cancelled() -> bool:
    task = asyncio.current_task()
    # Python 3.10 cannot tell.
    return task is not None and hasattr(task, "cancelling") and task.cancelling() > 0


def _async_iterator(arrays: Iterable[TensorLike] | AsyncIterable[TensorLike]) -> AsyncIterator[TensorLike]:
    return aiter(arrays) if isinstance(arrays, AsyncIterable) else _each(iter(arrays))


async def _each(arrays: Iterator[TensorLike]) -> AsyncIterator[TensorLike]:
    for array in arrays:
        yield array
