"""The calls that compute: translates between gRPC and the dataplane, and decides where work runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from time import perf_counter
from typing import Any

import grpc
from softmaxd_proto.v1 import softmax_pb2

from softmaxd_server.admission import Admission
from softmaxd_server.dataplane import STREAM, UNARY, Dataplane, Exchange, Outcome
from softmaxd_server.errors import DrainingError, OverloadedError
from softmaxd_server.metrics import Metrics
from softmaxd_server.softmax_stream import Context, Pending, SoftmaxStream
from softmaxd_server.statuses import number_of, status_of
from softmaxd_server.transports import INLINE

SERVICE = "softmaxd.v1.SoftmaxService"
# A stream that has been quiet for so long is ended when the server drains; a busy one has the grace period.
_QUIET_SECONDS = 0.5
_QUIET_POLL_SECONDS = 0.1
_REFUSE_SECONDS = 0.2


class SoftmaxServicer:
    """The methods Softmax, SoftmaxStream and GetServerInfo, for one event loop.

    Args:
        dataplane: Answers.
        metrics: Told of every request.
        admission: Asked before a request is taken.
        executor: Runs what would hold up the event loop.
        inline_bytes: The largest request message, or tensor in registered memory, in bytes, that the event loop answers
            itself.
    """

    def __init__(
        self, dataplane: Dataplane, metrics: Metrics, admission: Admission, executor: Executor, inline_bytes: int
    ) -> None:
        self._serve = dataplane.serve
        self._serve_small = dataplane.serve_small
        self._describe = dataplane.describe
        self._metrics = metrics
        self._admission = admission
        self._executor = executor
        self._inline_bytes = inline_bytes
        self._streams: set[SoftmaxStream] = set()
        self._is_draining = False
        # Looked up once, not once a request.
        self._unary_seconds = metrics.request_seconds["Softmax"]
        self._stream_seconds = metrics.request_seconds["SoftmaxStream"]
        self._info_seconds = metrics.request_seconds["GetServerInfo"][INLINE]
        phases = metrics.phase_seconds
        self._observe_queue = phases["queue"].observe
        self._observe_phase = {phase: phases[phase].observe for phase in ("upload", "kernel", "download")}

    def methods(self) -> Mapping[str, grpc.RpcMethodHandler[Any, Any]]:
        """Return the handlers. Tensors come and go as bytes: see `softmaxd_proto.codec`."""
        return {
            "Softmax": grpc.unary_unary_rpc_method_handler(self.softmax),
            "SoftmaxStream": grpc.stream_stream_rpc_method_handler(self.softmax_stream),
            "GetServerInfo": grpc.unary_unary_rpc_method_handler(self.get_server_info),
        }

    async def softmax(self, message: bytes, context: Context) -> bytes:
        """Answer one tensor; a failure is the call's status."""
        arrived = perf_counter()
        try:
            if self._is_draining:
                raise DrainingError
            self._admission.admit(len(message))
        except (DrainingError, OverloadedError) as error:
            refusal = status_of(error)
            self._unary_seconds[INLINE][refusal[0].name].observe(perf_counter() - arrived)
            await context.abort(*refusal)
        metrics = self._metrics
        metrics.requests_in_flight += 1
        try:
            remaining = context.time_remaining()
            expires = None if remaining is None else arrived + remaining
            pending = self._start(UNARY, message, arrived, expires)
            outcome = await pending if isinstance(pending, asyncio.Future) else pending
        except asyncio.CancelledError:  # the client went away, or its deadline passed
            self._unary_seconds[INLINE]["CANCELLED"].observe(perf_counter() - arrived)
            raise
        finally:
            metrics.requests_in_flight -= 1
            metrics.request_bytes += len(message)
            self._admission.leave(len(message))
        if outcome.error is None:
            self._observe_answer(outcome)
            self._unary_seconds[outcome.transport]["OK"].observe(perf_counter() - arrived)
            return outcome.answer
        code, text = status_of(outcome.error, outcome.id)
        self._unary_seconds[outcome.transport][code.name].observe(perf_counter() - arrived)
        return await context.abort(code, text)

    async def softmax_stream(self, _: object, context: Context) -> None:
        """Answer many tensors; a failure is its answer's status, and the stream goes on."""
        if self._is_draining:
            await context.abort(*status_of(DrainingError()))
        expires = _expiry(context)

        def start(message: bytes, arrived: float) -> Pending:
            self._metrics.requests_in_flight += 1
            self._metrics.request_bytes += len(message)
            return self._start(STREAM, message, arrived, expires)

        stream = SoftmaxStream(context, self._admission, start, self._finish_streamed, self._drop_streamed)
        self._streams.add(stream)
        self._metrics.streams_open += 1
        try:
            await stream.run()
        finally:
            self._streams.discard(stream)
            self._metrics.streams_open -= 1
        if stream.is_ended_early:
            await context.abort(*status_of(DrainingError()))

    async def get_server_info(self, _: bytes, context: Context) -> bytes:
        """Describe the server. The request has no fields, so that its bytes need no parsing."""
        arrived = perf_counter()
        try:
            answer = self._describe().SerializeToString()
        except Exception as error:
            code, text = status_of(error)
            self._info_seconds[code.name].observe(perf_counter() - arrived)
            return await context.abort(code, text)
        self._info_seconds["OK"].observe(perf_counter() - arrived)
        return answer

    async def refuse_new_calls(self) -> None:
        """Answer new calls with UNAVAILABLE from now on; return when those that were on their way have met it.

        Were the gRPC server stopped at once, it would break these off with CANCELLED, which no client tries again.
        """
        self._is_draining = True
        await asyncio.sleep(_REFUSE_SECONDS)

    async def end_quiet_streams(self, end_leases: Callable[[], None]) -> None:
        """End each stream once its client has been quiet for a while; runs until it is cancelled.

        Args:
            end_leases: Called when no request is left that could name registered memory.
        """
        while True:
            for stream in self._streams:
                if stream.quiet_seconds() >= _QUIET_SECONDS:
                    stream.end_early()
            if not self._streams and not self._metrics.requests_in_flight:
                end_leases()
            await asyncio.sleep(_QUIET_POLL_SECONDS)

    def _start(self, exchange: Exchange, message: bytes, arrived: float, expires: float | None) -> Pending:
        """Answer now what is small, and in a worker thread what is not."""
        if len(message) <= self._inline_bytes:
            outcome = self._serve_small(exchange, message, arrived, expires, self._inline_bytes)
            if outcome is not None:
                return outcome
        return asyncio.get_running_loop().run_in_executor(
            self._executor, self._serve, exchange, message, arrived, expires
        )

    def _finish_streamed(self, outcome: Outcome, arrived: float) -> bytes:
        self._metrics.requests_in_flight -= 1
        seconds = self._stream_seconds[outcome.transport]
        if outcome.error is None:
            self._observe_answer(outcome)
            seconds["OK"].observe(perf_counter() - arrived)
            return outcome.answer
        code, text = status_of(outcome.error, outcome.id)
        seconds[code.name].observe(perf_counter() - arrived)
        status = softmax_pb2.Status(code=number_of(code), message=text)
        return softmax_pb2.SoftmaxStreamResponse(id=outcome.id, status=status).SerializeToString()

    def _drop_streamed(self, arrived: float) -> None:
        self._metrics.requests_in_flight -= 1
        self._stream_seconds[INLINE]["CANCELLED"].observe(perf_counter() - arrived)

    def _observe_answer(self, outcome: Outcome) -> None:
        self._observe_queue(outcome.queue_seconds)
        for phase, seconds in outcome.phase_seconds.items():
            self._observe_phase[phase](seconds)
        self._metrics.response_bytes += len(outcome.answer)


def _expiry(context: Context) -> float | None:
    """Return when the call's deadline passes, in seconds of `time.perf_counter`."""
    remaining = context.time_remaining()
    return None if remaining is None else perf_counter() + remaining
