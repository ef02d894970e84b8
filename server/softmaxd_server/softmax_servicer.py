"""softmaxd.v1.SoftmaxService: translates between gRPC and the dataplane, and decides where work runs."""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor
from time import perf_counter
from typing import Any

import grpc
from softmaxd_proto.v1 import softmax_pb2

from softmaxd_server.dataplane import STREAM, UNARY, Dataplane, Outcome
from softmaxd_server.errors import DrainingError
from softmaxd_server.metrics import Metrics
from softmaxd_server.softmax_stream import Context, Pending, SoftmaxStream
from softmaxd_server.statuses import status_of

SERVICE = "softmaxd.v1.SoftmaxService"
# A stream that has been quiet for so long is ended when the server drains; a busy one has the grace period.
_QUIET_SECONDS = 0.5
_QUIET_POLL_SECONDS = 0.1
_REFUSE_SECONDS = 0.2


class SoftmaxServicer:
    """The service's methods, for one event loop.

    Args:
        dataplane: Answers.
        metrics: Told of every request.
        executor: Runs what would hold up the event loop.
        inline_bytes: The largest request message, in bytes, that the event loop answers itself.
    """

    def __init__(self, dataplane: Dataplane, metrics: Metrics, executor: Executor, inline_bytes: int) -> None:
        self._serve = dataplane.serve
        self._describe = dataplane.describe
        self._metrics = metrics
        self._executor = executor
        self._inline_bytes = inline_bytes
        self._streams: set[SoftmaxStream] = set()
        self._is_draining = False
        # Looked up once, not once a request.
        self._unary_seconds = metrics.request_seconds["Softmax"]
        self._stream_seconds = metrics.request_seconds["SoftmaxStream"]
        self._info_seconds = metrics.request_seconds["GetServerInfo"]
        phases = metrics.phase_seconds
        self._observe_queue = phases["queue"].observe
        self._observe_phase = {phase: phases[phase].observe for phase in ("upload", "kernel", "download")}

    def handler(self) -> grpc.GenericRpcHandler:
        """Return what a grpc.aio server registers. Tensors come and go as bytes: see `softmaxd_proto.codec`."""
        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                "Softmax": grpc.unary_unary_rpc_method_handler(self.softmax),
                "SoftmaxStream": grpc.stream_stream_rpc_method_handler(self.softmax_stream),
                "GetServerInfo": grpc.unary_unary_rpc_method_handler(self.get_server_info),
            },
        )

    async def softmax(self, message: bytes, context: Context) -> bytes:
        """Answer one tensor; a failure is the call's status."""
        arrived = perf_counter()
        if self._is_draining:
            self._unary_seconds["UNAVAILABLE"].observe(perf_counter() - arrived)
            await context.abort(*status_of(DrainingError()))
        metrics = self._metrics
        metrics.requests_in_flight += 1
        try:
            remaining = context.time_remaining()
            expires = None if remaining is None else arrived + remaining
            if len(message) <= self._inline_bytes:
                outcome = self._serve(UNARY, message, arrived, expires)
            else:
                outcome = await asyncio.get_running_loop().run_in_executor(
                    self._executor, self._serve, UNARY, message, arrived, expires
                )
        except asyncio.CancelledError:  # the client went away, or its deadline passed
            self._unary_seconds["CANCELLED"].observe(perf_counter() - arrived)
            raise
        finally:
            metrics.requests_in_flight -= 1
            metrics.request_bytes += len(message)
        if outcome.error is None:
            self._observe_answer(outcome)
            self._unary_seconds["OK"].observe(perf_counter() - arrived)
            return outcome.answer
        code, text = status_of(outcome.error, outcome.id)
        self._unary_seconds[code.name].observe(perf_counter() - arrived)
        return await context.abort(code, text)

    async def softmax_stream(self, _: object, context: Context) -> None:
        """Answer many tensors; a failure is its answer's status, and the stream goes on."""
        if self._is_draining:
            await context.abort(*status_of(DrainingError()))
        expires = _expiry(context)

        def start(message: bytes, arrived: float) -> Pending:
            self._metrics.requests_in_flight += 1
            self._metrics.request_bytes += len(message)
            if len(message) <= self._inline_bytes:
                return self._serve(STREAM, message, arrived, expires)
            return asyncio.get_running_loop().run_in_executor(
                self._executor, self._serve, STREAM, message, arrived, expires
            )

        stream = SoftmaxStream(context, start, self._finish_streamed, self._drop_streamed)
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

    async def end_quiet_streams(self) -> None:
        """End each stream once its client has been quiet for a while; runs until it is cancelled."""
        while True:
            for stream in self._streams:
                if stream.quiet_seconds() >= _QUIET_SECONDS:
                    stream.end_early()
            await asyncio.sleep(_QUIET_POLL_SECONDS)

    def _finish_streamed(self, outcome: Outcome, arrived: float) -> bytes:
        self._metrics.requests_in_flight -= 1
        if outcome.error is None:
            self._observe_answer(outcome)
            self._stream_seconds["OK"].observe(perf_counter() - arrived)
            return outcome.answer
        code, text = status_of(outcome.error, outcome.id)
        self._stream_seconds[code.name].observe(perf_counter() - arrived)
        status = softmax_pb2.Status(code=_number(code), message=text)
        return softmax_pb2.SoftmaxStreamResponse(id=outcome.id, status=status).SerializeToString()

    def _drop_streamed(self, arrived: float) -> None:
        self._metrics.requests_in_flight -= 1
        self._stream_seconds["CANCELLED"].observe(perf_counter() - arrived)

    def _observe_answer(self, outcome: Outcome) -> None:
        self._observe_queue(outcome.queue_seconds)
        for phase, seconds in outcome.phase_seconds.items():
            self._observe_phase[phase](seconds)
        self._metrics.response_bytes += len(outcome.answer)


def _expiry(context: Context) -> float | None:
    """Return when the call's deadline passes, in seconds of `time.perf_counter`."""
    remaining = context.time_remaining()
    return None if remaining is None else perf_counter() + remaining


def _number(code: grpc.StatusCode) -> int:
    value: Any = code.value  # (number, text)
    return int(value[0])
