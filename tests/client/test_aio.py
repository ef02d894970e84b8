import asyncio
import contextlib
import itertools

import grpc
import numpy as np
import pytest
from softmaxd_client import (
    ClientClosedError,
    DeadlineExceededError,
    InvalidArgumentError,
    InvalidTensorError,
    RequestCancelledError,
    ResourceExhaustedError,
    ServerError,
    UnavailableError,
    transport,
)
from softmaxd_client.aio import SoftmaxClient

WAIT_SECONDS = 20.0


@pytest.fixture
async def client(reference_server, quick_config):
    async with SoftmaxClient(reference_server.target, timeout=WAIT_SECONDS, config=quick_config) as client:
        yield client


async def wait_for(event):
    return await asyncio.to_thread(event.wait, WAIT_SECONDS)


def row(cols):
    return np.arange(cols, dtype=np.float32)


async def forever():
    for number in itertools.count():
        yield [float(number)]


async def test_aio_softmax_gives_float64_values(client, softmax64):
    array = np.random.default_rng(0).normal(size=(30, 400)).astype(">f4")
    result = await client.softmax(array)
    assert result.dtype == array.dtype
    np.testing.assert_allclose(result, softmax64(array), rtol=2**-24)


async def test_aio_softmax_out_is_filled_and_returned(client):
    out = np.zeros(2, np.float32)
    assert await client.softmax([1.0, 1.0], out=out) is out
    assert out.tolist() == [0.5, 0.5]


async def test_aio_softmax_many_at_once_get_their_own_answers(client):
    results = await asyncio.gather(*(client.softmax(row(cols)) for cols in range(1, 40)))
    assert [result.shape for result in results] == [(cols,) for cols in range(1, 40)]


async def test_aio_softmax_with_execution_tells_what_ran(client):
    _, execution = await client.softmax_with_execution([1.0])
    assert execution.variant == "float64"


async def test_aio_softmax_masked_row_gives_zeros_when_asked(client):
    assert (await client.softmax([-np.inf], zero_masked_rows=True)).tolist() == [0.0]


async def test_aio_info_and_ping_answer(client):
    assert (await client.info()).version == "9.8.7"
    assert 0 < await client.ping() < WAIT_SECONDS


async def test_aio_softmax_unfit_array_is_refused(reference_server, client):
    with pytest.raises(InvalidTensorError):
        await client.softmax(np.zeros(3))
    assert reference_server.requests == []


async def test_aio_softmax_late_answer_raises_deadline_exceeded(reference_server, client):
    reference_server.script = [reference_server.hang]
    with pytest.raises(DeadlineExceededError):
        await client.softmax([1.0], timeout=0.05)


async def test_aio_softmax_unavailable_server_is_asked_again(reference_server, client):
    reference_server.script = [reference_server.fail(grpc.StatusCode.UNAVAILABLE)] * 3
    assert (await client.softmax([1.0])).tolist() == [1.0]
    assert len(reference_server.requests) == 4


async def test_aio_softmax_server_status_raises_its_class(reference_server, client):
    reference_server.script = [reference_server.fail(grpc.StatusCode.CANCELLED)]
    with pytest.raises(RequestCancelledError, match="as the test asked"):
        await client.softmax([1.0])


async def test_aio_softmax_message_over_the_servers_limit_names_the_knobs(make_server):
    async with SoftmaxClient(make_server(max_message_bytes=10_000).target) as client:
        with pytest.raises(ResourceExhaustedError, match=r"at most 10000 bytes a message.*--max-message-bytes"):
            await client.softmax(row(10_000))


async def test_aio_softmax_task_cancelled_is_an_ordinary_cancellation(reference_server, client):
    reference_server.script = [reference_server.hang]
    task = asyncio.create_task(client.softmax([1.0]))
    assert await wait_for(reference_server.has_request)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_aio_client_closed_during_a_call_cancels_it(reference_server):
    reference_server.script = [reference_server.hang]
    client = SoftmaxClient(reference_server.target)
    task = asyncio.create_task(client.softmax([1.0]))
    assert await wait_for(reference_server.has_request)
    await client.close()
    with pytest.raises(RequestCancelledError):
        await task


async def test_aio_client_closed_is_refused_again(reference_server):
    client = SoftmaxClient(reference_server.target)
    started = client.stream([[1.0]])
    await client.close()
    await client.close()
    for call in (client.softmax([1.0]), client.info(), client.ping(), anext(started)):
        with pytest.raises(ClientClosedError):
            await call
    with pytest.raises(ClientClosedError):
        client.stream([[1.0]])


def test_aio_client_outside_a_loop_is_refused():
    with pytest.raises(RuntimeError, match="no running event loop"):
        SoftmaxClient("127.0.0.1:1")


async def test_aio_stream_sync_and_async_iterables_answer_in_order(client):
    async def arrays():
        for cols in range(1, 60):
            yield row(cols)

    for iterable in (arrays(), [row(cols) for cols in range(1, 60)]):
        shapes = [result.shape async for result in client.stream(iterable)]
        assert shapes == [(cols,) for cols in range(1, 60)]


async def test_aio_stream_nothing_gives_nothing(client):
    assert [result async for result in client.stream([])] == []


@pytest.mark.parametrize("in_flight", [1, 2, 5])
async def test_aio_stream_in_flight_bounds_what_is_unanswered(reference_server, client, monkeypatch, in_flight):
    reference_server.hold_back = in_flight
    taken = answered = 0
    decode = transport.decode_stream_answer

    def count_answer(message, request):
        nonlocal answered
        answered += 1
        return decode(message, request)

    async def arrays():
        nonlocal taken
        for _ in range(30):
            assert taken - answered < in_flight
            taken += 1
            yield [1.0]

    monkeypatch.setattr(transport, "decode_stream_answer", count_answer)
    assert len([result async for result in client.stream(arrays(), in_flight=in_flight)]) == 30
    assert taken == answered == 30
    assert reference_server.most_unanswered == in_flight


async def test_aio_stream_closed_early_is_seen_by_the_server(reference_server, client):
    async with contextlib.aclosing(client.stream(forever())) as results:
        assert [(await anext(results)).tolist() for _ in range(10)] == [[1.0]] * 10
    assert await wait_for(reference_server.stream_ended)


async def test_aio_stream_consumer_cancelled_is_seen_by_the_server(reference_server, client):
    reference_server.hold_back = 100  # which never come
    task = asyncio.create_task(anext(client.stream(forever())))
    assert await wait_for(reference_server.has_request)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await wait_for(reference_server.stream_ended)


async def test_aio_stream_slow_iterable_gives_an_answer_before_the_next_array(client):
    arrays = asyncio.Queue()

    async def from_queue():
        while (array := await arrays.get()) is not None:
            yield array

    results = client.stream(from_queue())
    for cols in range(1, 4):
        arrays.put_nowait(row(cols))
        assert (await anext(results)).shape == (cols,)
    arrays.put_nowait(None)
    assert [result async for result in results] == []


@pytest.mark.parametrize(
    "failure", [LookupError("no more"), asyncio.CancelledError("no more")], ids=["error", "cancelled"]
)
async def test_aio_stream_iterable_that_raises_ends_it_behind_the_answers_before(reference_server, client, failure):
    async def arrays():
        yield [1.0]
        yield [2.0, 2.0]
        raise failure

    results = client.stream(arrays())
    assert (await anext(results)).tolist() == [1.0]
    assert (await anext(results)).tolist() == [0.5, 0.5]
    with pytest.raises(type(failure), match="no more"):
        await anext(results)
    assert await wait_for(reference_server.stream_ended)


async def test_aio_stream_bad_array_raises_in_its_place(reference_server, client):
    reference_server.stream_answer = reference_server.refuse_in_stream
    for bad, error in ((np.zeros(3), InvalidTensorError), (row(13), InvalidArgumentError)):
        results = client.stream([row(2), bad, row(4)])
        assert (await anext(results)).shape == (2,)
        with pytest.raises(error):
            await anext(results)
        assert [result async for result in results] == []


async def test_aio_stream_returning_errors_goes_on_after_them(reference_server, client):
    reference_server.stream_answer = reference_server.refuse_in_stream
    results = [result async for result in client.stream([np.zeros(3), row(13), row(4)], return_errors=True)]
    assert [type(result) for result in results] == [InvalidTensorError, InvalidArgumentError, np.ndarray]


async def test_aio_stream_late_answer_raises_deadline_exceeded(reference_server, client):
    reference_server.hold_back = 100  # which never come
    with pytest.raises(DeadlineExceededError):
        await anext(client.stream(forever(), timeout=0.1))


async def test_aio_stream_call_that_breaks_is_noticed_while_the_iterable_waits(reference_server, client):
    async def arrays():
        yield [1.0]
        await asyncio.Event().wait()

    def breaks(requests, context):
        yield reference_server.compute_for_stream(next(requests))
        context.abort(grpc.StatusCode.UNAVAILABLE, "draining")

    reference_server.stream = breaks
    results = client.stream(arrays())
    await anext(results)
    with pytest.raises(UnavailableError, match="draining"):
        await anext(results)


@pytest.mark.parametrize("answers", [0, 2])
async def test_aio_stream_ended_early_by_the_server_raises_server_error(reference_server, client, answers):
    def ends(requests, context):
        for request in itertools.islice(requests, answers):
            yield reference_server.compute_for_stream(request)

    reference_server.stream = ends
    received = []

    async def receive():
        async for result in client.stream(forever()):
            received.append(result)  # noqa: PERF401 - what came before the error counts

    with pytest.raises(ServerError, match="ended before every tensor was answered"):
        await receive()
    # Where a write fails as the call ends, grpc.aio may drop what it has received.
    assert len(received) <= answers


async def test_aio_stream_client_closed_during_it_is_cancelled(reference_server):
    reference_server.hold_back = 2
    client = SoftmaxClient(reference_server.target)
    results = client.stream(forever(), in_flight=2)
    await anext(results)
    await client.close()
    with pytest.raises(RequestCancelledError):
        _ = [result async for result in results]


async def test_aio_stream_unavailable_server_fails_and_the_next_stream_is_whole(reference_server, client):
    failures = [grpc.StatusCode.UNAVAILABLE] * 2

    def fails_first(requests, context):
        if failures:
            context.abort(failures.pop(), "draining")
        yield from reference_server.answer_each(requests, context)

    reference_server.stream = fails_first
    for _ in range(2):
        with pytest.raises(UnavailableError, match="draining"):
            _ = [result async for result in client.stream([row(1 << 18)] * 4)]
    assert len([result async for result in client.stream([row(1 << 18)] * 4)]) == 4


async def test_aio_stream_without_room_is_refused_at_once(client):
    with pytest.raises(ValueError, match="allowed: 1 or more"):
        client.stream([[1.0]], in_flight=0)
