"""The client, for threads."""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Generator, Iterable, Iterator
from types import TracebackType
from typing import Any, Literal, overload

import grpc
from numpy.typing import NDArray

from softmaxd_client import streams
from softmaxd_client import transport as wire  # `transport` is an argument of the constructor
from softmaxd_client.base import BaseClient, array_of, check_in_flight, stream_seconds
from softmaxd_client.chunks import ChunkedRequest
from softmaxd_client.config import DEFAULT_IN_FLIGHT, DEFAULT_TIMEOUT_SECONDS, ClientConfig
from softmaxd_client.errors import ServerError, SoftmaxdError, UnavailableError, from_rpc
from softmaxd_client.info import Execution, ServerInfo
from softmaxd_client.retries import Attempts
from softmaxd_client.tensors import TensorLike


class SoftmaxClient(BaseClient):
    """Asks a softmaxd server for softmax over the last axis.

    One client holds one connection, and another one if it streams or sends large arrays; threads may share it. A
    connection is made by the first call that needs it. `close()` the client, or use it in a `with` statement.

    Args:
        target: The server, `host:port` or any other name that gRPC resolves.
        transport: How tensors travel: "inline" in the messages; "shared_memory" of this host; "device_memory" on a GPU
            that the server computes on; "auto" the fastest way that both sides have.
        timeout: Seconds for a call that is given none; None for no deadline.
        config: How to connect and when to try again.

    Raises:
        ValueError: There is no such transport.
    """

    def __init__(
        self,
        target: str,
        *,
        transport: str = "auto",
        timeout: float | None = DEFAULT_TIMEOUT_SECONDS,
        config: ClientConfig | None = None,
    ) -> None:
        config = config or ClientConfig()
        super().__init__(target, transport, timeout, config.retry, self._start_lease)
        self._closing = threading.Event()
        self._channel = grpc.insecure_channel(target, options=config.grpc_options())
        self._stream_channel = grpc.insecure_channel(target, options=config.stream_grpc_options())
        self._softmax_method: Any = self._channel.unary_unary(wire.SOFTMAX)
        self._stream_method: Any = self._stream_channel.stream_stream(wire.SOFTMAX_STREAM)
        self._info_method: Any = self._channel.unary_unary(wire.GET_SERVER_INFO)
        self._once_method: Any = self._stream_channel.unary_unary(wire.SOFTMAX)  # never tried again
        self._lease_method: Any = self._stream_channel.stream_stream(wire.REGISTER_MEMORY)

    def softmax(
        self,
        array: TensorLike,
        *,
        out: NDArray[Any] | None = None,
        timeout: float | None = None,
        zero_masked_rows: bool = False,
        writable: bool = True,
    ) -> NDArray[Any]:
        """Compute softmax over the last axis.

        An array of more than 2 MB and one row travels in blocks of rows of about 1 MB, several of them at once, over
        one stream; its size has no bound. What is still without an answer when the server becomes UNAVAILABLE is sent
        again, as often as `ClientConfig.retry` says and within the timeout.

        Args:
            array: float32, float16 or bfloat16 of shape (..., cols): a numpy array, a DLPack tensor in CPU memory, or
                a list, which becomes float32.
            out: A writable array of the same shape and dtype to write the answer into; it may overlap `array`. Where a
                call in blocks fails, the first rows may have been written.
            timeout: Seconds until the call fails, all attempts included; None for the client's own, `math.inf` for no
                deadline.
            zero_masked_rows: A row whose elements are all -inf becomes zeros instead of NaN.
            writable: False gives a read-only array, which spares a copy where the answer is one message. Means nothing
                with `out`.

        Returns:
            An array of the same shape and dtype, byte order included; `out` where it is given.

        Raises:
            InvalidTensorError: `array` or `out` is unfit; nothing was sent.
            ServerError: The call failed; its subclasses say how. Of several blocks that failed, the first one's.
            ClientClosedError: The client is closed.
        """
        return self.softmax_with_execution(
            array, out=out, timeout=timeout, zero_masked_rows=zero_masked_rows, writable=writable
        )[0]

    def softmax_with_execution(
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
            The array that `softmax` returns, and the variant and tiles behind it; behind its first block, where it
            travelled in blocks, as the variant may depend on the number of rows.
        """
        self._check_open()
        seconds = self._call_seconds(timeout)
        for is_last in (False, True):
            outgoing = self._outgoing(
                array, zero_masked_rows=zero_masked_rows, writable=writable, seconds=seconds, out=out
            )
            if isinstance(outgoing, ChunkedRequest):
                return self._softmax_in_blocks(outgoing, seconds)
            request, message = outgoing
            try:
                received = self._call(self._method_for(request), message, timeout, request.request_id)
                break
            except ServerError as error:
                if is_last or not self._is_forgotten(request, error):
                    raise
        answer = wire.decode_answer(received, request)
        return array_of(request, answer, out=out, writable=writable), answer.execution

    @overload
    def stream(
        self,
        arrays: Iterable[TensorLike],
        *,
        in_flight: int = ...,
        timeout: float | None = ...,
        zero_masked_rows: bool = ...,
        writable: bool = ...,
        return_errors: Literal[False] = ...,
    ) -> Generator[NDArray[Any], None, None]: ...

    @overload
    def stream(
        self,
        arrays: Iterable[TensorLike],
        *,
        in_flight: int = ...,
        timeout: float | None = ...,
        zero_masked_rows: bool = ...,
        writable: bool = ...,
        return_errors: bool,
    ) -> Generator[NDArray[Any] | SoftmaxdError, None, None]: ...

    def stream(
        self,
        arrays: Iterable[TensorLike],
        *,
        in_flight: int = DEFAULT_IN_FLIGHT,
        timeout: float | None = None,
        zero_masked_rows: bool = False,
        writable: bool = True,
        return_errors: bool = False,
    ) -> Generator[Any, None, None]:
        """Compute softmax of many arrays over one call, yielding the answers in order.

        The call begins with the first `next()`. Closing the iterator before its end cancels the call. A stream is not
        tried again (`ClientConfig.stream_grpc_options` says why): what it has not yielded has to be sent anew.

        Args:
            arrays: Each as for `softmax`; shapes and dtypes may differ. Pulled from lazily and in another thread, which
                lets an answer come out while the next array is still awaited. An exception from it is raised here,
                behind the answers to the arrays before it.
            in_flight: Arrays that may be sent and not yet answered, at least 1; it bounds the memory on both sides.
                Of an array that travels in blocks, as in `softmax`, no more than about 8 MB are on their way.
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
        return self._stream(iter(arrays), in_flight, stream_seconds(timeout), zero_masked_rows, writable, return_errors)

    def info(self, *, timeout: float | None = None) -> ServerInfo:
        """Return the server's description.

        Args:
            timeout: As for `softmax`.

        Raises:
            ServerError: The call failed.
            ClientClosedError: The client is closed.
        """
        self._check_open()
        return wire.decode_info(self._call(self._info_method, wire.INFO_REQUEST, timeout))

    def ping(self, *, timeout: float | None = None) -> float:
        """Return the seconds that a round trip to the server takes; the first one includes connecting.

        Args:
            timeout: As for `softmax`.

        Raises:
            ServerError: The call failed.
            ClientClosedError: The client is closed.
        """
        start = time.perf_counter()
        self.info(timeout=timeout)
        return time.perf_counter() - start

    def close(self) -> None:
        """Close the connections; calls that other threads are in fail with RequestCancelledError. May be repeated."""
        self._closed = True
        self._closing.set()
        self._release_memory()
        self._channel.close()
        self._stream_channel.close()

    def __enter__(self) -> SoftmaxClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _call(self, method: Any, message: bytes, timeout: float | None, request_id: str = "") -> bytes:
        try:
            received: bytes = self._start(method, message, timeout=self._call_seconds(timeout))
        except grpc.RpcError as error:
            raise from_rpc(error, request_id) from error
        return received

    def _start(self, method: Any, sent: bytes | Iterator[bytes], *, timeout: float | None) -> Any:
        try:
            return method(sent, timeout=timeout)
        except ValueError:  # gRPC's word for a channel that another thread has closed by now
            self._check_open()
            raise

    def _start_lease(self, sent: Iterator[bytes]) -> Any:
        return self._start(self._lease_method, sent, timeout=None)

    def _softmax_in_blocks(self, chunked: ChunkedRequest, seconds: float | None) -> tuple[NDArray[Any], Execution]:
        """Send blocks until all are answered, as often as the retry policy allows."""
        attempts = Attempts(self._retry, seconds)
        while not chunked.is_answered:
            self._attempt_blocks(chunked, attempts)
        return chunked.result()

    def _attempt_blocks(self, chunked: ChunkedRequest, attempts: Attempts) -> None:
        """Send the blocks that have no answer over one call; return when all have one, or it is time to try again."""
        outcomes = streams.exchange(
            functools.partial(self._start, self._stream_method),
            iter((chunked,)),
            lambda chunked: chunked,
            in_flight=2,  # room for the end behind it, so that the server hears of that at once
            timeout=attempts.seconds_left(),
        )
        try:
            with contextlib.closing(outcomes):
                next(outcomes)
            chunked.raise_error()
        except ServerError as error:
            # The call may have ended before any block was on its way.
            error.request_id = error.request_id or chunked.request_id
            if not isinstance(error, UnavailableError):
                raise
            if self._closing.wait(attempts.backoff_seconds(error)):
                raise self._closed_during(chunked.request_id) from error

    def _stream(
        self,
        arrays: Iterator[TensorLike],
        in_flight: int,
        seconds: float | None,
        zero_masked_rows: bool,
        writable: bool,
        return_errors: bool,
    ) -> Generator[Any, None, None]:
        self._check_open()
        outcomes = streams.exchange(
            functools.partial(self._start, self._stream_method),
            arrays,
            lambda array: self._outgoing(
                array, zero_masked_rows=zero_masked_rows, writable=writable, seconds=self._timeout
            ),
            in_flight=in_flight,
            timeout=seconds,
        )
        with contextlib.closing(outcomes):
            for outcome in outcomes:
                yield self._result(outcome, writable, return_errors)
