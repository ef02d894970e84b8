"""Tensors that the real client sends in blocks to the real server."""

from __future__ import annotations

import asyncio
import math
import re
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from harness.metrics import samples, scrape
from harness.reference import DTYPES, assert_close, masked_scores
from harness.server_process import ServerProcess
from softmaxd_client import ClientConfig, ResourceExhaustedError, RetryPolicy, SoftmaxClient, chunks
from softmaxd_client import aio as softmaxd_aio

GRPC_DEFAULT_LIMIT = 4 << 20
BACKENDS = ("cpu", "numpy")


@pytest.fixture(scope="module", params=BACKENDS)
def server(request: pytest.FixtureRequest) -> Iterator[ServerProcess]:
    with ServerProcess("--backend", request.param) as process:
        assert f"backend {request.param} " in process.log
        yield process


@pytest.fixture(scope="module")
def small_server() -> Iterator[ServerProcess]:
    """A server that takes no larger message than gRPC does by default."""
    with ServerProcess("--backend", "cpu", "--max-message-bytes", str(GRPC_DEFAULT_LIMIT)) as process:
        yield process


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(3001, 701), (5, 601, 1001), (17, 65_537), (2, 3, 5, 160_000)], ids=str)
def test_blocks_and_one_message_give_the_same_bits(
    server: ServerProcess, monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...], dtype: str
) -> None:
    with np.errstate(over="ignore"):
        rows = masked_scores(np.random.default_rng(7), math.prod(shape[:-1]), shape[-1])
        array = rows.reshape(shape).astype(DTYPES[dtype])

    async def ask() -> Any:
        async with softmaxd_aio.SoftmaxClient(server.target) as aio_client:
            return await aio_client.softmax(array)

    with SoftmaxClient(server.target) as client:
        in_blocks = client.softmax(array)
        [streamed] = client.stream([array])
        copy = array.copy()
        in_place = client.softmax(copy, out=copy)
        monkeypatch.setattr(chunks, "SPLIT_BYTES", math.inf)
        in_one = client.softmax(array)
    assert_close(in_blocks, array)
    for result in (streamed, in_place, asyncio.run(ask())):
        assert result.tobytes() == in_one.tobytes()
    assert in_blocks.tobytes() == in_one.tobytes()


def test_large_tensor_is_counted_as_its_blocks(server: ServerProcess) -> None:
    def count() -> float:
        series = (
            "softmaxd_request_seconds_count",
            ("code", "OK"),
            ("method", "SoftmaxStream"),
            ("transport", "inline"),
        )
        return samples(scrape(server.metrics_url)).get(series, 0.0)

    before = count()
    with SoftmaxClient(server.target) as client:
        client.softmax(np.zeros((4096, 1024), np.float32))
    assert count() == before + 16


def test_large_tensor_fits_the_default_limit_of_grpc(small_server: ServerProcess) -> None:
    array = masked_scores(np.random.default_rng(8), 5000, 1000)
    assert array.nbytes > 4 * GRPC_DEFAULT_LIMIT
    with SoftmaxClient(small_server.target) as client:
        assert_close(client.softmax(array), array)
        long_rows = np.zeros((2, GRPC_DEFAULT_LIMIT // 4 + 1), np.float32)
        with pytest.raises(ResourceExhaustedError, match="--max-message-bytes"):
            client.softmax(long_rows)
        assert_close(client.softmax(array), array)


def test_server_restarted_meanwhile_fails_no_large_tensor() -> None:
    retry = RetryPolicy(max_attempts=5, initial_backoff_seconds=2, max_backoff_seconds=8)
    array = masked_scores(np.random.default_rng(9), 4000, 1000)
    is_restarted = threading.Event()
    with ServerProcess("--backend", "cpu") as first:
        [port] = re.findall(r":(\d+)$", first.target)

        def restart() -> None:
            assert first.stop() == 0
            with ServerProcess("--backend", "cpu", "--port", port) as second:
                assert second.target == first.target
                is_restarted.set()
                is_done.wait(60)

        is_done = threading.Event()
        restarting = threading.Thread(target=restart)
        with SoftmaxClient(first.target, timeout=60, config=ClientConfig(retry=retry)) as client:
            expected = client.softmax(array)
            assert_close(expected, array)
            restarting.start()
            while not is_restarted.is_set():
                np.testing.assert_array_equal(client.softmax(array), expected)
            np.testing.assert_array_equal(client.softmax(array), expected)
        is_done.set()
        restarting.join()
