from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from typing import Any

import grpc
import numpy as np
import pytest
from softmaxd_client import ClientConfig, RetryPolicy, SoftmaxClient, blocks, chunks
from softmaxd_proto import dtypes
from softmaxd_proto.v1 import softmax_pb2

WAIT_SECONDS = 20.0  # for what must happen; no test waits this long when it passes


class ReferenceServer:
    """A peer for the client's tests: the contract over a real port, with numpy in float64 for the arithmetic.

    It is not the server that softmaxd ships: tests of the two together live in tests/e2e.

    `script` holds behaviours for the next calls of Softmax, `stream_answer` computes one answer of a stream, and
    `stream` handles a whole one. They may return bytes instead of a message, to lie on the wire.
    """

    def __init__(self, max_message_bytes: int, port: int) -> None:
        self.max_message_bytes = max_message_bytes
        self.requests: list[Any] = []
        self.script: list[Callable[[Any, grpc.ServicerContext], Any]] = []
        self.stream: Callable[[Iterator[Any], grpc.ServicerContext], Iterator[Any]] = self.answer_each
        self.stream_answer: Callable[[Any], Any] = self.compute_for_stream
        self.hold_back = 1
        self.tuning = ""
        self.most_unanswered = 0
        self.stream_ended = threading.Event()
        self.has_request = threading.Event()
        self.release = threading.Event()
        self._grpc = grpc.server(
            futures.ThreadPoolExecutor(8), options=[("grpc.max_receive_message_length", max_message_bytes)]
        )
        self._grpc.add_generic_rpc_handlers([self._handlers()])
        self.target = f"127.0.0.1:{self._grpc.add_insecure_port(f'127.0.0.1:{port}')}"
        self._grpc.start()

    def close(self) -> None:
        self.release.set()
        self._grpc.stop(grace=None).wait()

    def compute(self, request: Any, kind: Any = softmax_pb2.SoftmaxResponse) -> Any:
        """Answer one request."""
        element = dtypes.BY_NUMBER[request.data_type]
        array = np.frombuffer(request.payload, element.numpy).reshape(request.shape).astype(np.float64)
        result = array
        if array.size:
            with np.errstate(invalid="ignore"):
                exponentials = np.exp(array - array.max(axis=-1, keepdims=True))
                result = exponentials / exponentials.sum(axis=-1, keepdims=True)
            if request.options.zero_masked_rows:
                result = np.where((array == -np.inf).all(axis=-1, keepdims=True), 0, result)
        response = kind(
            id=request.id,
            data_type=request.data_type,
            shape=request.shape,
            payload=result.astype(element.numpy).tobytes(),
        )
        response.execution.variant = "float64"
        response.execution.tile_columns = 4096
        response.execution.tile_count = 3
        return response

    def compute_for_stream(self, request: Any) -> Any:
        return self.compute(request, softmax_pb2.SoftmaxStreamResponse)

    def refuse_in_stream(self, request: Any) -> Any:
        """Refuse a tensor whose last dimension is 13, compute any other."""
        if request.shape[-1] != 13:
            return self.compute_for_stream(request)
        code = grpc.StatusCode.INVALID_ARGUMENT.value[0]
        return softmax_pb2.SoftmaxStreamResponse(
            id=request.id, status=softmax_pb2.Status(code=code, message="got 13 columns")
        )

    def answer_each(self, requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
        """Answer in order, the first one only when `hold_back` requests have come."""
        context.add_callback(self.stream_ended.set)
        unanswered = []
        for request in requests:
            self.requests.append(request)
            self.has_request.set()
            unanswered.append(request)
            self.most_unanswered = max(self.most_unanswered, len(unanswered))
            if len(unanswered) == self.hold_back:
                yield self.stream_answer(unanswered.pop(0))
        yield from map(self.stream_answer, unanswered)

    def hang(self, request: Any, context: grpc.ServicerContext) -> Any:
        """Answer only once `release` is set."""
        self.has_request.set()
        self.release.wait(WAIT_SECONDS)
        return self.compute(request)

    def refuse_block(self, number: int, code: grpc.StatusCode = grpc.StatusCode.INVALID_ARGUMENT) -> Any:
        """Return a `stream_answer` that refuses the blocks from one number on, and computes those before."""

        def answer(request: Any) -> Any:
            if int(request.id.rpartition("/")[2]) < number:
                return self.compute_for_stream(request)
            status = softmax_pb2.Status(code=code.value[0], message=f"got {request.id}")
            return softmax_pb2.SoftmaxStreamResponse(id=request.id, status=status)

        return answer

    def break_off(self, answers: int, code: grpc.StatusCode = grpc.StatusCode.UNAVAILABLE) -> Any:
        """Return a handler that fails a stream behind its first answers, and handles every later one as usual."""

        def handle(requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
            self.stream = self.answer_each
            for request in itertools.islice(requests, answers):
                self.requests.append(request)
                yield self.compute_for_stream(request)
            next(requests, None)  # one that the client knows to be on its way
            context.abort(code, "draining")

        return handle

    @staticmethod
    def fail(code: grpc.StatusCode, details: str = "as the test asked") -> Callable[..., Any]:
        return lambda request, context: context.abort(code, details)

    def _softmax(self, request: Any, context: grpc.ServicerContext) -> Any:
        self.requests.append(request)
        return self.script.pop(0)(request, context) if self.script else self.compute(request)

    def _info(self, request: Any, context: grpc.ServicerContext) -> Any:
        response = softmax_pb2.GetServerInfoResponse(
            version="9.8.7",
            backend="numpy",
            data_types=[1, 2, 3, 77],
            limits={"max_message_bytes": self.max_message_bytes},
            tuning=self.tuning,
        )
        response.devices.add(name="a CPU [x86]", parallelism=4)
        response.variants.add(name="float64", note="numpy, always")
        response.pools.add(name="workspace", used_bytes=1, reserved_bytes=2, allocations=3)
        return response

    def _handlers(self) -> grpc.GenericRpcHandler:
        def unary(behaviour: Any, kind: Any) -> grpc.RpcMethodHandler:
            return grpc.unary_unary_rpc_method_handler(behaviour, kind.FromString, _to_bytes)

        return grpc.method_handlers_generic_handler(
            "softmaxd.v1.SoftmaxService",
            {
                "Softmax": unary(self._softmax, softmax_pb2.SoftmaxRequest),
                "SoftmaxStream": grpc.stream_stream_rpc_method_handler(
                    lambda requests, context: self.stream(requests, context),
                    softmax_pb2.SoftmaxStreamRequest.FromString,
                    _to_bytes,
                ),
                "GetServerInfo": unary(self._info, softmax_pb2.GetServerInfoRequest),
            },
        )


def _to_bytes(message: Any) -> bytes:
    return message if isinstance(message, bytes) else message.SerializeToString()


@pytest.fixture
def make_server() -> Iterator[Callable[..., ReferenceServer]]:
    servers: list[ReferenceServer] = []

    def make(max_message_bytes: int = 64 << 20, port: int = 0) -> ReferenceServer:
        servers.append(ReferenceServer(max_message_bytes, port))
        return servers[-1]

    yield make
    for server in servers:
        server.close()


@pytest.fixture
def reference_server(make_server: Callable[..., ReferenceServer]) -> ReferenceServer:
    return make_server()


@pytest.fixture
def quick_config() -> ClientConfig:
    """Retries as often as by default, in a tenth of the time."""
    return ClientConfig(retry=RetryPolicy(initial_backoff_seconds=0.01, max_backoff_seconds=0.02))


@pytest.fixture
def client(reference_server: ReferenceServer, quick_config: ClientConfig) -> Iterator[SoftmaxClient]:
    with SoftmaxClient(reference_server.target, timeout=WAIT_SECONDS, config=quick_config) as client:
        yield client


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a tensor of more than 800 bytes go in blocks of 400, so that small arrays take many messages."""
    monkeypatch.setattr(chunks, "SPLIT_BYTES", 800)
    monkeypatch.setattr(chunks, "BLOCK_BYTES", 400)
    monkeypatch.setattr(blocks.row_indices, "__defaults__", (400,))
    monkeypatch.setattr(blocks.row_blocks, "__defaults__", (400,))


@pytest.fixture
def blocks_in_flight(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that takes how many blocks are sent and not answered, by size, each time that one is sent."""
    encode, accept = chunks.ChunkedRequest.encode, chunks.ChunkedRequest.accept
    counts = [0]
    unanswered: list[chunks.Block] = []

    def count_sent(request: Any, block: chunks.Block) -> bytes:
        unanswered.append(block)
        counts.append(sum(block.weight for block in unanswered))
        return encode(request, block)

    def count_answered(request: Any, block: chunks.Block, answer: Any) -> None:
        unanswered.remove(block)
        accept(request, block, answer)

    monkeypatch.setattr(chunks.ChunkedRequest, "encode", count_sent)
    monkeypatch.setattr(chunks.ChunkedRequest, "accept", count_answered)
    return counts


@pytest.fixture
def softmax64() -> Callable[[Any], Any]:
    """Softmax over the last axis in float64, written apart from the client's and the server's."""

    def compute(array: Any) -> Any:
        wide = np.asarray(array).astype(np.float64)
        rows = [np.exp(row - row.max()) / np.exp(row - row.max()).sum() for row in wide.reshape(-1, wide.shape[-1])]
        return np.array(rows).reshape(wide.shape)

    return compute
