"""Tensors that travel in blocks, by the client for an event loop: what its I/O decides; the rest is shared code."""

import asyncio
import contextlib
import math
import tracemalloc

import grpc
import ml_dtypes
import numpy as np
import pytest
from softmaxd_client import (
    ClientConfig,
    DeadlineExceededError,
    InvalidArgumentError,
    InvalidTensorError,
    RequestCancelledError,
    RetryPolicy,
    ServerError,
    UnavailableError,
    chunks,
)
from softmaxd_client.aio import SoftmaxClient
from softmaxd_client.retries import Attempts

pytestmark = pytest.mark.usefixtures("small_blocks")

WAIT_SECONDS = 20.0
DRAINING_OR_LOST = "draining|gRPC lost the status"  # which it does where a write fails as the call ends


@pytest.fixture
async def client(reference_server, quick_config):
    async with SoftmaxClient(
        reference_server.target, transport="inline", timeout=WAIT_SECONDS, config=quick_config
    ) as client:
        yield client


@pytest.fixture
def whole(monkeypatch, client):
    """Softmax in one message, whatever the size."""

    async def compute(array):
        with monkeypatch.context() as patch:
            patch.setattr(chunks, "SPLIT_BYTES", math.inf)
            return await client.softmax(array)

    return compute


def normal(shape, dtype=np.float32):
    return np.random.default_rng(0).normal(0, 4, shape).astype(dtype)


def block_numbers(requests):
    return [int(request.id.rpartition("/")[2]) for request in requests]


async def wait_for(event):
    return await asyncio.to_thread(event.wait, WAIT_SECONDS)


@pytest.mark.parametrize("dtype", [np.dtype("<f4"), np.dtype(">f2"), np.dtype(ml_dtypes.bfloat16)], ids=str)
@pytest.mark.parametrize("shape", [(1000,), (300, 7), (3, 5, 7, 11)], ids=str)
async def test_aio_large_softmax_gives_the_bits_of_one_message(reference_server, client, whole, shape, dtype):
    array = normal(shape, dtype)
    result, execution = await client.softmax_with_execution(array)
    assert len(reference_server.requests) > 2 or len(shape) == 1
    assert result.dtype == dtype
    assert result.flags.c_contiguous
    assert execution.variant == "float64"
    assert result.tobytes() == (await whole(array)).tobytes()


@pytest.mark.parametrize("place", ["C", "F", "in place", "reversed"])
async def test_aio_large_softmax_out_is_filled_and_returned(client, whole, place):
    array = normal((300, 5))
    expected = await whole(array)
    outs = {"C": np.zeros_like(array), "F": np.zeros_like(array, order="F"), "in place": array, "reversed": array[::-1]}
    out = outs[place]
    assert await client.softmax(array, out=out) is out
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize(("cols", "in_flight"), [(10, chunks.BLOCKS_IN_FLIGHT), (1000, 2)])
async def test_aio_large_softmax_bounds_what_is_unanswered(reference_server, client, blocks_in_flight, cols, in_flight):
    reference_server.hold_back = in_flight
    await client.softmax(normal((200, cols)))
    assert reference_server.most_unanswered == in_flight
    assert max(blocks_in_flight) <= chunks.BLOCKS_IN_FLIGHT


async def test_aio_large_softmax_refused_block_raises_the_first_error_under_its_id(reference_server, client):
    reference_server.stream_answer = reference_server.refuse_block(3)
    with pytest.raises(InvalidArgumentError) as caught:
        await client.softmax(normal((1000, 10)))
    assert caught.value.request_id == reference_server.requests[2].id
    assert len(reference_server.requests) < 50


@pytest.mark.parametrize("answers", [0, 14, 29])
async def test_aio_large_softmax_server_that_drains_is_asked_for_the_rest(reference_server, client, whole, answers):
    array = normal((300, 10))
    expected = await whole(array)
    reference_server.requests.clear()
    reference_server.stream = reference_server.break_off(answers)
    assert await client.softmax(array, out=array) is array
    np.testing.assert_array_equal(array, expected)
    numbers = block_numbers(reference_server.requests)
    # Where a write fails as the call ends, grpc.aio may drop what it has received; that is sent again.
    assert numbers[:answers] == list(range(1, answers + 1))
    assert numbers[answers:] == list(range(numbers[answers], 31))
    assert numbers[answers] <= answers + 1


async def test_aio_large_softmax_unavailable_server_is_given_up_after_all_attempts(reference_server, client):
    calls = []

    def refuse(requests, context):
        calls.append(next(requests).id)
        context.abort(grpc.StatusCode.UNAVAILABLE, "draining")

    reference_server.stream = refuse
    with pytest.raises(UnavailableError, match=DRAINING_OR_LOST):
        await client.softmax(normal((60, 10)))
    assert len(calls) == RetryPolicy().max_attempts


async def test_aio_large_softmax_without_retry_fails_at_once(reference_server):
    reference_server.stream = reference_server.break_off(2)
    async with SoftmaxClient(reference_server.target, config=ClientConfig(retry=None)) as client:
        with pytest.raises(UnavailableError, match=DRAINING_OR_LOST):
            await client.softmax(normal((60, 10)))
    assert len(reference_server.requests) == 2


async def test_aio_large_softmax_stream_ended_early_raises_server_error(reference_server, client):
    def ends(requests, context):
        yield reference_server.compute_for_stream(next(requests))

    reference_server.stream = ends
    with pytest.raises(ServerError, match="ended before every tensor was answered"):
        await client.softmax(normal((60, 10)))


async def test_aio_large_softmax_late_answer_raises_deadline_exceeded(reference_server, client):
    reference_server.hold_back = 1000
    with pytest.raises(DeadlineExceededError, match="larger timeout="):
        await client.softmax(normal((300, 10)), timeout=0.1)


async def test_aio_large_softmax_task_cancelled_is_an_ordinary_cancellation(reference_server, client):
    reference_server.hold_back = 1000
    task = asyncio.create_task(client.softmax(normal((300, 10))))
    assert await wait_for(reference_server.has_request)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await wait_for(reference_server.stream_ended)


async def test_aio_large_softmax_client_closed_during_the_call_cancels_it(reference_server):
    reference_server.hold_back = 1000
    client = SoftmaxClient(reference_server.target)
    task = asyncio.create_task(client.softmax(normal((300, 10))))
    assert await wait_for(reference_server.has_request)
    await client.close()
    with pytest.raises(RequestCancelledError):
        await task


async def test_aio_large_softmax_client_closed_while_it_waits_to_try_again_is_cancelled(reference_server, monkeypatch):
    reference_server.stream = reference_server.break_off(2)
    client = SoftmaxClient(reference_server.target)
    closing = []

    def close_first(attempts, error):
        closing.append(asyncio.create_task(client.close()))
        return WAIT_SECONDS

    monkeypatch.setattr(Attempts, "backoff_seconds", close_first)
    with pytest.raises(RequestCancelledError, match="closed during the call"):
        await client.softmax(normal((300, 10)))
    await closing[0]


async def test_aio_large_softmax_many_at_once_get_their_own_answers(client, whole):
    arrays = [np.random.default_rng(seed).normal(size=(200, 10)).astype(np.float32) for seed in range(6)]
    results = await asyncio.gather(*map(client.softmax, arrays))
    for array, result in zip(arrays, results, strict=True):
        np.testing.assert_array_equal(result, await whole(array))


@pytest.mark.parametrize("in_flight", [1, 2, 8])
async def test_aio_stream_large_and_small_arrays_answers_whole_ones_in_order(client, whole, in_flight):
    shapes = [(2, 3), (300, 7), (60, 9), (0, 5), (3, 150), (1000,), (4, 4), (5, 5, 5, 13)]
    arrays = [normal(shape) for shape in shapes]
    results = [result async for result in client.stream(arrays, in_flight=in_flight)]
    assert len(results) == len(arrays)
    for array, result in zip(arrays, results, strict=True):
        assert result.flags.writeable
        assert result.tobytes() == (await whole(array)).tobytes()
        assert result.shape == array.shape


async def test_aio_stream_returning_errors_gives_one_for_a_large_array_and_goes_on(reference_server, client, whole):
    reference_server.stream_answer = reference_server.refuse_in_stream
    good = normal((60, 9))
    arrays = [normal((300, 13)), good, np.zeros((60, 9)), normal((300, 13)), good]
    results = [result async for result in client.stream(arrays, return_errors=True, writable=False)]
    kinds = [InvalidArgumentError, np.ndarray, InvalidTensorError, InvalidArgumentError, np.ndarray]
    assert [type(result) for result in results] == kinds
    assert not results[1].flags.writeable
    np.testing.assert_array_equal(results[4], await whole(good))


async def test_aio_stream_large_array_refused_raises_in_its_place(reference_server, client):
    reference_server.stream_answer = reference_server.refuse_in_stream
    results = client.stream([normal((60, 9)), normal((300, 13)), normal((60, 9))])
    assert (await anext(results)).shape == (60, 9)
    with pytest.raises(InvalidArgumentError, match="got 13 columns"):
        await anext(results)


async def test_aio_stream_closed_within_a_large_array_is_seen_by_the_server(reference_server, client):
    arrays = (normal((300, 10)) for _ in range(1000))
    async with contextlib.aclosing(client.stream(arrays)) as results:
        await anext(results)
    assert await wait_for(reference_server.stream_ended)
    assert len(list(arrays)) > 980


async def test_aio_stream_waiting_for_the_next_array_holds_none(client):
    waits = asyncio.Event()

    async def arrays():
        yield np.ones((1024, 1024), np.float32)
        waits.set()
        await asyncio.Event().wait()

    tracemalloc.start()
    try:
        results = client.stream(arrays())
        assert (await anext(results)).shape == (1024, 1024)
        await asyncio.wait_for(waits.wait(), WAIT_SECONDS)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    await results.aclose()
    assert held < 2 << 20
