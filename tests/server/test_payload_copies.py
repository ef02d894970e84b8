"""No Python object but the answer is as large as a payload, on its way through the dataplane."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Any

import numpy as np
import pytest
from harness.reference import assert_close
from softmaxd_server.backends.native import CpuBackend
from softmaxd_server.config import Config
from softmaxd_server.dataplane import STREAM, UNARY, Dataplane, Exchange, Outcome

MIB = 1024 * 1024
SHAPE = (64, 64 * 1024)  # 16 MiB of float32
LIMIT = 64 * MIB
# What else may be allocated: headers, views, outcomes. A copy of a payload has 16 MiB.
SLACK_BYTES = 64 * 1024


class NotingBackend(CpuBackend):
    """Notes how many bytes were allocated at the most before it is called: a copy could be let go by then."""

    peak_before = 0

    def answer(self, prefix: bytes, source: memoryview, work: Any) -> Any:
        _, self.peak_before = tracemalloc.get_traced_memory()
        return super().answer(prefix, source, work)


class CopyingBackend(CpuBackend):
    """Copies each payload once more than it should."""

    def answer(self, prefix: bytes, source: memoryview, work: Any) -> Any:
        return super().answer(prefix, memoryview(bytes(source)), work)


def payload_last(exchange: Exchange, header: bytes, payload: bytes) -> bytes:
    return header + payload


def payload_first(exchange: Exchange, header: bytes, payload: bytes) -> bytes:
    return payload + header


def payload_between(exchange: Exchange, header: bytes, payload: bytes) -> bytes:
    return exchange.request(id="first").SerializeToString() + payload + header


def payload_twice(exchange: Exchange, header: bytes, payload: bytes) -> bytes:
    return exchange.request(payload=bytes(MIB)).SerializeToString() + header + payload


def unknown_behind(exchange: Exchange, header: bytes, payload: bytes) -> bytes:
    return header + payload + b"\x82\x01\x03abc"


ORDERS = (payload_last, payload_first, payload_between, payload_twice, unknown_behind)


@pytest.fixture(scope="module")
def tensor() -> np.ndarray:
    return np.random.default_rng(4).standard_normal(SHAPE, dtype=np.float32)


@pytest.fixture(params=[UNARY, STREAM], ids=["unary", "stream"])
def exchange(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def backend() -> Iterator[NotingBackend]:
    backend = NotingBackend(Config.model_construct())
    yield backend
    backend.close()


@pytest.fixture
def dataplane(backend: NotingBackend) -> Dataplane:
    return Dataplane(backend, LIMIT)


def message_of(exchange: Exchange, tensor: np.ndarray, order: Callable[[Exchange, bytes, bytes], bytes]) -> bytes:
    """Write a request for a tensor, its fields in an order."""
    header = exchange.request(id="a", data_type=1, shape=tensor.shape).SerializeToString()
    return order(exchange, header, exchange.request(payload=tensor.tobytes()).SerializeToString())


def serve_traced(dataplane: Dataplane, exchange: Exchange, message: bytes) -> tuple[Outcome, int]:
    """Serve a request; return its outcome, and how many bytes were allocated at the most while it was served."""
    tracemalloc.start()
    try:
        outcome = dataplane.serve(exchange, message, perf_counter())
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return outcome, peak


@pytest.mark.parametrize("order", ORDERS)
def test_only_the_answer_is_allocated(
    dataplane: Dataplane,
    backend: NotingBackend,
    exchange: Exchange,
    tensor: np.ndarray,
    order: Callable[[Exchange, bytes, bytes], bytes],
) -> None:
    message = message_of(exchange, tensor, order)
    for _ in range(2):
        outcome, peak = serve_traced(dataplane, exchange, message)
        assert outcome.error is None
        assert backend.peak_before <= SLACK_BYTES
        assert tensor.nbytes <= len(outcome.answer) <= peak <= len(outcome.answer) + SLACK_BYTES
        answer = exchange.response.FromString(outcome.answer)
        assert answer.id == "a"
        assert_close(np.frombuffer(answer.payload, np.float32).reshape(SHAPE), tensor)


def test_only_the_answer_is_allocated_where_the_header_is_known(
    dataplane: Dataplane,
    backend: NotingBackend,
    exchange: Exchange,
    tensor: np.ndarray,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    message = message_of(exchange, tensor, payload_last)
    serve_traced(dataplane, exchange, message)
    monkeypatch.setattr(Dataplane, "_decode", lambda *_: pytest.fail("the header is not known"))
    outcome, peak = serve_traced(dataplane, exchange, message)
    assert outcome.error is None
    assert backend.peak_before <= SLACK_BYTES
    assert tensor.nbytes <= len(outcome.answer) <= peak <= len(outcome.answer) + SLACK_BYTES


@pytest.mark.parametrize("order", ORDERS)
def test_no_payload_is_copied_for_a_refused_request(
    dataplane: Dataplane,
    exchange: Exchange,
    tensor: np.ndarray,
    order: Callable[[Exchange, bytes, bytes], bytes],
) -> None:
    message = message_of(exchange, tensor, lambda kind, _, payload: order(kind, b"\x10\x01", payload))
    outcome, peak = serve_traced(dataplane, exchange, message)
    assert "rank 0" in str(outcome.error)
    assert peak <= SLACK_BYTES


def test_copy_of_a_payload_would_be_seen(tensor: np.ndarray) -> None:
    backend = CopyingBackend(Config.model_construct())
    outcome, peak = serve_traced(Dataplane(backend, LIMIT), UNARY, message_of(UNARY, tensor, payload_last))
    backend.close()
    assert outcome.error is None
    assert peak >= len(outcome.answer) + tensor.nbytes
