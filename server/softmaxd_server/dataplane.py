"""From a request's bytes to its answer's bytes, knowing nothing of gRPC."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from time import perf_counter
from typing import Any, NamedTuple, cast

import softmaxd_proto
from softmaxd_proto import codec
from softmaxd_proto.dtypes import ELEMENT_TYPES
from softmaxd_proto.v1 import softmax_pb2

from softmaxd_server.backends.base import Backend, DeviceBackend, Work
from softmaxd_server.errors import (
    DeadlineError,
    LostRegionError,
    MalformedRequestError,
    MessageTooLargeError,
    OutOfMemoryError,
)
from softmaxd_server.header_memo import HeaderMemo, Recipe
from softmaxd_server.regions import Regions, Slice
from softmaxd_server.transports import DEVICE_MEMORY, INLINE
from softmaxd_server.validation import Slices, work_of, work_of_slices


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
        transport: How the tensor travelled: `INLINE`, or the kind of the regions that were named.
    """

    id: str
    answer: bytes
    error: Exception | None
    queue_seconds: float = 0.0
    phase_seconds: Mapping[str, float] = _NO_PHASES
    transport: str = INLINE


class Dataplane:
    """Answers requests with one backend. Its methods may be called from many threads at once.

    Args:
        backend: Computes.
        max_message_bytes: The largest request message that is answered.
        regions: What requests may name in place of a payload; None for none.
    """

    def __init__(self, backend: Backend, max_message_bytes: int, regions: Regions | None = None) -> None:
        self._backend = backend
        self._max_message_bytes = max_message_bytes
        self._regions = regions or Regions({}, 0)
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
        outcome = self.serve_small(exchange, message, arrived, expires, None)
        assert outcome is not None
        return outcome

    def serve_small(
        self, exchange: Exchange, message: bytes, arrived: float, expires: float | None, at_most: int | None
    ) -> Outcome | None:
        """Answer one request as `serve` does, unless it names more registered memory than `at_most` bytes.

        Args:
            exchange: As for `serve`.
            message: As for `serve`.
            arrived: As for `serve`.
            expires: As for `serve`.
            at_most: Bytes of a tensor in registered memory; None for any number.

        Returns:
            The outcome; None where the tensor is larger, and nothing was done.
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
                if header.HasField("source") or header.HasField("destination"):
                    return self._serve_slices(exchange, header, payload, started - arrived, expires, at_most)
                work = work_of(header, payload.nbytes)
                if work is None:
                    return Outcome(request_id, _empty_answer(exchange, header), None, started - arrived)
                id_field = exchange.response(id=request_id).SerializeToString()
                head = self._head(exchange, header, work, request_id="")
                recipe = Recipe(work, head + codec.payload_start(work.byte_size))
                memo.remember(message, recipe)
            _check_deadline(expires)
            answer, phase_seconds = self._answer(id_field + recipe.prefix, payload, recipe.work)
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
            limits=softmax_pb2.Limits(
                max_message_bytes=self._max_message_bytes, shared_memory_bytes=self._regions.limit_bytes
            ),
            pools=[softmax_pb2.Pool(**pool._asdict()) for pool in backend.pools()],
            tuning=backend.tuning,
            transports=[INLINE, *self._regions.kinds],
        )

    def _decode(self, exchange: Exchange, message: bytes) -> tuple[Any, memoryview]:
        try:
            return codec.decode(exchange.request, message)
        except codec.MalformedMessageError as error:
            raise MalformedRequestError(
                f"{error}: encode the request with {exchange.request.DESCRIPTOR.file.name}"
            ) from error

    def _serve_slices(
        self,
        exchange: Exchange,
        header: Any,
        payload: memoryview,
        queue_seconds: float,
        expires: float | None,
        at_most: int | None,
    ) -> Outcome | None:
        """Answer a request that names registered memory; as `serve`."""
        transport = INLINE
        try:
            with ExitStack() as loans:
                slices = Slices(*(self._borrow(header, name, loans) for name in Slices._fields))
                transport = slices.transport
                work = work_of_slices(header, payload.nbytes, slices)
                if work is None:
                    return Outcome(header.id, _empty_answer(exchange, header), None, queue_seconds, transport=transport)
                if at_most is not None and work.byte_size > at_most:
                    return None
                _check_deadline(expires)
                head = self._head(exchange, header, work, header.id)
                answer, phase_seconds = self._compute(head, payload, slices, work)
            return Outcome(header.id, answer, None, queue_seconds, phase_seconds, transport)
        except Exception as error:
            return Outcome(header.id, b"", error, transport=transport)

    def _borrow(self, header: Any, name: str, loans: ExitStack) -> Slice | None:
        return loans.enter_context(self._regions.borrow(getattr(header, name))) if header.HasField(name) else None

    def _compute(
        self, head: bytes, payload: memoryview, slices: Slices, work: Work
    ) -> tuple[bytes, Mapping[str, float]]:
        """Compute with registered memory on one side or both; return the answer and its phases."""
        source, destination = slices
        if slices.transport == DEVICE_MEMORY:
            assert source is not None
            assert destination is not None
            return head, cast(DeviceBackend, self._backend).compute_on_device(
                source.region.memory, source.offset, destination.region.memory, destination.offset, work
            )
        with ExitStack() as views:  # a view that outlived its use would keep the mapping
            read = payload if source is None else views.enter_context(source.view())
            if destination is None:
                result = self._answer(head + codec.payload_start(work.byte_size), read, work)
            else:
                result = head, self._backend.compute(read, views.enter_context(destination.view()), work)
        if not slices.are_intact():
            raise LostRegionError
        return result

    def _head(self, exchange: Exchange, header: Any, work: Work, request_id: str) -> bytes:
        """Write an answer's message up to its payload."""
        execution = softmax_pb2.Execution(**self._backend.plan(work)._asdict())
        answer = exchange.response(id=request_id, data_type=header.data_type, shape=header.shape, execution=execution)
        head: bytes = answer.SerializeToString()
        return head

    def _answer(self, prefix: bytes, payload: memoryview, work: Work) -> tuple[bytes, Mapping[str, float]]:
        try:
            return self._backend.answer(prefix, payload, work)
        except MemoryError as error:
            raise OutOfMemoryError(payload.nbytes) from error


def _empty_answer(exchange: Exchange, header: Any) -> bytes:
    answer: bytes = exchange.response(id=header.id, data_type=header.data_type, shape=header.shape).SerializeToString()
    return answer


def _check_deadline(expires: float | None) -> None:
    if expires is not None and perf_counter() >= expires:
        raise DeadlineError
