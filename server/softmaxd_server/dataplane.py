"""From a request's bytes to its answer's bytes, knowing nothing of gRPC."""

from __future__ import annotations

from collections.abc import Mapping
from time import perf_counter
from typing import Any, NamedTuple

import softmaxd_proto
from softmaxd_proto import codec
from softmaxd_proto.dtypes import ELEMENT_TYPES
from softmaxd_proto.v1 import softmax_pb2

from softmaxd_server.backends.base import Backend, Work
from softmaxd_server.errors import (
    DeadlineError,
    MalformedRequestError,
    MessageTooLargeError,
    OutOfMemoryError,
)
from softmaxd_server.header_memo import HeaderMemo, Recipe
from softmaxd_server.validation import work_of


class Exchange(NamedTuple):
    """The generated classes of a request and its answer; both have the fields that the unary ones have."""

    request: Any
    response: Any


UNARY = Exchange(softmax_pb2.SoftmaxRequest, softmax_pb2.SoftmaxResponse)
STREAM = Exchange(softmax_pb2.SoftmaxStreamRequest, softmax_pb2.SoftmaxStreamResponse)

_NO_PHASES: Mapping[str, float] = {}


class Outcome(NamedTuple):
    """What became of one request: an answer, or an error.

    Attributes:
        id: The request's id, as far as it could be read.
        answer: The whole answer's message; empty where there is an error.
        error: Why there is no answer.
        queue_seconds: From the arrival to the start of decoding.
        phase_seconds: The backend's phases, as `Backend.answer` gives them.
    """

    id: str
    answer: bytes
    error: Exception | None
    queue_seconds: float = 0.0
    phase_seconds: Mapping[str, float] = _NO_PHASES


class Dataplane:
    """Answers requests with one backend. Its methods may be called from many threads at once.

    Args:
        backend: Computes.
        max_message_bytes: The largest request message that is answered.
    """

    def __init__(self, backend: Backend, max_message_bytes: int) -> None:
        self._backend = backend
        self._max_message_bytes = max_message_bytes
        # A memo holds the backend's plans, so that it belongs to this dataplane.
        self._memos = {exchange: HeaderMemo(exchange.request) for exchange in (UNARY, STREAM)}

    def serve(self, exchange: Exchange, message: bytes, arrived: float, expires: float | None = None) -> Outcome:
        """Answer one request; every failure is an outcome, none is raised.

        Args:
            exchange: `UNARY` or `STREAM`.
            message: The request's bytes.
            arrived: When they arrived, in seconds of `time.perf_counter`.
            expires: When nobody waits for the answer any more, on the same clock; None for never.
        """
        started = perf_counter()
        request_id = ""
        try:
            memo = self._memos[exchange]
            is_allowed = len(message) <= self._max_message_bytes
            if is_allowed and (found := memo.find(message)) is not None:
                request_id, id_field, recipe, payload = found
            else:
                header, payload = self._decode(exchange, message)
                request_id = header.id
                if not is_allowed:
                    raise MessageTooLargeError(len(message), self._max_message_bytes)
                work = work_of(header, payload.nbytes)
                if work is None:
                    answer = exchange.response(id=request_id, data_type=header.data_type, shape=header.shape)
                    return Outcome(request_id, answer.SerializeToString(), None, started - arrived)
                id_field = exchange.response(id=request_id).SerializeToString()
                recipe = self._recipe(exchange, header, work)
                memo.remember(message, recipe)
            if expires is not None and perf_counter() >= expires:
                raise DeadlineError
            answer, phase_seconds = self._compute(id_field + recipe.prefix, payload, recipe.work)
            return Outcome(request_id, answer, None, started - arrived, phase_seconds)
        except Exception as error:  # the servicer tells faults from refusals by the error's class
            return Outcome(request_id, b"", error)

    def describe(self) -> softmax_pb2.GetServerInfoResponse:
        """Describe the server: backend, devices, variants and what chooses between them, limits, pool use."""
        backend = self._backend
        return softmax_pb2.GetServerInfoResponse(
            version=softmaxd_proto.__version__,
            backend=backend.name,
            devices=[
                softmax_pb2.Device(name=device.name, parallelism=device.parallelism) for device in backend.devices
            ],
            variants=[softmax_pb2.Variant(**variant._asdict()) for variant in backend.variants],
            data_types=[element.number for element in ELEMENT_TYPES],
            limits=softmax_pb2.Limits(max_message_bytes=self._max_message_bytes),
            pools=[softmax_pb2.Pool(**pool._asdict()) for pool in backend.pools()],
            tuning=backend.tuning,
        )

    def _decode(self, exchange: Exchange, message: bytes) -> tuple[Any, memoryview]:
        try:
            return codec.decode(exchange.request, message)
        except codec.MalformedMessageError as error:
            raise MalformedRequestError(
                f"{error}: encode the request with {exchange.request.DESCRIPTOR.file.name}"
            ) from error

    def _recipe(self, exchange: Exchange, header: Any, work: Work) -> Recipe:
        execution = softmax_pb2.Execution(**self._backend.plan(work)._asdict())
        answer = exchange.response(data_type=header.data_type, shape=header.shape, execution=execution)
        return Recipe(work, codec.prefix(answer, work.rows * work.cols * work.element.itemsize))

    def _compute(self, prefix: bytes, payload: memoryview, work: Work) -> tuple[bytes, Mapping[str, float]]:
        try:
            return self._backend.answer(prefix, payload, work)
        except MemoryError as error:
            raise OutOfMemoryError(payload.nbytes) from error
