"""Tensors that travel in blocks, by the client for threads."""

import contextlib
import itertools
import math
import threading
import weakref

import grpc
import ml_dtypes
import numpy as np
import pytest
from softmaxd_client import (
    ClientConfig,
    DeadlineExceededError,
    Execution,
    InvalidArgumentError,
    InvalidTensorError,
    RequestCancelledError,
    ResourceExhaustedError,
    RetryPolicy,
    ServerError,
    SoftmaxClient,
    UnavailableError,
    chunks,
    streams,
)
from softmaxd_client.retries import Attempts

pytestmark = pytest.mark.usefixtures("small_blocks")

WAIT_SECONDS = 20.0
DTYPES = [np.dtype(np.float32), np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)]
DTYPES += [dtype.newbyteorder(">") for dtype in DTYPES]


@pytest.fixture
def client(reference_server, quick_config):
    with SoftmaxClient(
        reference_server.target, transport="inline", timeout=WAIT_SECONDS, config=quick_config
    ) as client:
        yield client


@pytest.fixture
def whole(monkeypatch, client):
    """Softmax in one message, whatever the size."""

    def compute(array, **options):
        with monkeypatch.context() as patch:
            patch.setattr(chunks, "SPLIT_BYTES", math.inf)
            return client.softmax(array, **options)

    return compute


def normal(shape, dtype=np.float32):
    return np.random.default_rng(0).normal(0, 4, shape).astype(dtype)


def block_numbers(requests):
    return [int(request.id.rpartition("/")[2]) for request in requests]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(1000,), (300, 7), (7, 61, 3), (3, 5, 7, 11), (9, 150)], ids=str)
def test_large_softmax_gives_the_bits_of_one_message(reference_server, client, whole, shape, dtype):
    array = normal(shape, dtype)
    before = array.tobytes()
    result = client.softmax(array)
    if len(shape) > 1:
        assert len(reference_server.requests) == len(set(block_numbers(reference_server.requests))) > 2
        assert all(request.shape[-1] == shape[-1] for request in reference_server.requests)
    assert result.dtype == dtype
    assert result.flags.writeable
    assert result.flags.c_contiguous
    expected = whole(array)
    assert result.shape == expected.shape
    assert result.tobytes() == expected.tobytes()
    assert array.tobytes() == before
    assert len(set(result.reshape(-1, shape[-1])[0].tolist())) > 1


def test_large_softmax_any_memory_order_gives_row_major_values(client, whole):
    array = normal((60, 90))
    for view in (array.T, array[::2, ::-1], np.asfortranarray(array), np.broadcast_to(array[0], (50, 90))):
        result = client.softmax(view)
        assert result.flags.c_contiguous
        np.testing.assert_array_equal(result, whole(view))


def test_large_softmax_list_and_dlpack_are_read(client, whole):
    array = normal((60, 9))

    class Exporter:
        def __dlpack__(self, **options):
            return array.__dlpack__(**options)

        def __dlpack_device__(self):
            return array.__dlpack_device__()

    for value in (array.tolist(), Exporter()):
        np.testing.assert_array_equal(client.softmax(value), whole(array))


@pytest.mark.parametrize(
    "out",
    [
        np.zeros((60, 9), np.float32),
        np.zeros((60, 9), ">f4"),
        np.zeros((60, 9), np.float32, order="F"),
        np.zeros((120, 27), np.float32)[::2, ::3],
        np.zeros((60, 9), np.float32)[::-1],
    ],
    ids=["C", "big-endian", "F", "strided", "reversed"],
)
def test_large_softmax_out_is_filled_and_returned(client, whole, out):
    array = normal((60, 9))
    assert client.softmax(array, out=out) is out
    np.testing.assert_array_equal(out, whole(array))


OVERLAPS = {
    "in place": lambda buffer: (buffer[:300], buffer[:300]),
    "in place, strided": lambda buffer: (buffer[::2], buffer[::2]),
    "one row on": lambda buffer: (buffer[:300], buffer[1:301]),
    "ten blocks on": lambda buffer: (buffer[:300], buffer[200:500]),
    "ten blocks back": lambda buffer: (buffer[200:500], buffer[:300]),
    "reversed": lambda buffer: (buffer[:300], buffer[299::-1]),
}


@pytest.mark.parametrize("overlap", OVERLAPS)
def test_large_softmax_out_that_overlaps_the_input_is_right(client, whole, overlap):
    array, out = OVERLAPS[overlap](normal((600, 5)))
    expected = whole(array.copy())
    assert client.softmax(array, out=out) is out
    np.testing.assert_array_equal(out, expected)


def test_large_softmax_not_writable_gives_a_read_only_array(client, whole):
    array, out = normal((60, 9)), np.zeros((60, 9), np.float32)
    result = client.softmax(array, writable=False)
    assert not result.flags.writeable
    np.testing.assert_array_equal(result, whole(array))
    assert client.softmax(array, out=out, writable=False).flags.writeable


def test_large_softmax_masked_rows_give_zeros_when_asked(client):
    rows = np.full((100, 5), -np.inf, np.float32)
    assert not client.softmax(rows, zero_masked_rows=True).any()
    assert np.isnan(client.softmax(rows)).all()


def test_large_softmax_with_execution_tells_of_the_first_block(reference_server, client):
    def answer(request):
        response = reference_server.compute_for_stream(request)
        response.execution.variant = f"variant {request.id.rpartition('/')[2]}"
        return response

    reference_server.stream_answer = answer
    _, execution = client.softmax_with_execution(normal((60, 9)))
    assert execution == Execution(variant="variant 1", tile_columns=4096, tile_count=3)


def test_large_softmax_is_one_request_with_numbered_blocks(reference_server, client):
    client.softmax(normal((60, 10)))
    client.softmax(normal((60, 10)))
    first, second = reference_server.requests[:6], reference_server.requests[6:]
    for requests in (first, second):
        assert [tuple(request.shape) for request in requests] == [(10, 10)] * 6
        assert block_numbers(requests) == [1, 2, 3, 4, 5, 6]
        assert len({request.id.rpartition("/")[0] for request in requests}) == 1
    assert first[0].id != second[0].id


@pytest.mark.parametrize(
    ("row_bytes", "in_flight"), [(40, chunks.BLOCKS_IN_FLIGHT), (1200, 2), (4000, 2)], ids=["blocks", "rows", "long"]
)
def test_large_softmax_bounds_what_is_unanswered(reference_server, client, blocks_in_flight, row_bytes, in_flight):
    reference_server.hold_back = in_flight  # no answer before that many have come: with fewer on the way it would hang
    array = normal((400 if row_bytes == 40 else 20, row_bytes // 4))
    client.softmax(array)
    assert reference_server.most_unanswered == in_flight
    assert max(blocks_in_flight) <= chunks.BLOCKS_IN_FLIGHT


def test_large_softmax_unfit_out_or_row_is_refused_before_anything_is_sent(reference_server, client):
    for array, out in (
        (normal((60, 9)), np.zeros((9, 60), np.float32)),
        (normal((60, 9)).astype(np.float64), None),
        (np.broadcast_to(np.float32(0), (3, 2**30)), None),
    ):
        with pytest.raises(InvalidTensorError):
            client.softmax(array, out=out)
    assert reference_server.requests == []


def test_large_softmax_refused_block_raises_the_first_error_under_its_id(reference_server, client):
    reference_server.stream_answer = reference_server.refuse_block(3)
    with pytest.raises(InvalidArgumentError) as caught:
        client.softmax(normal((1000, 10)))
    assert caught.value.request_id == reference_server.requests[2].id
    assert caught.value.request_id.endswith("/3")
    assert caught.value.details == f"got {caught.value.request_id}"
    assert len(reference_server.requests) < 50  # of 100: none is sent once an error is known
    reference_server.stream_answer = reference_server.compute_for_stream
    assert client.softmax(normal((60, 9))).sum() == pytest.approx(60)


def test_large_softmax_message_over_the_servers_limit_names_the_knobs(make_server, quick_config):
    with (
        SoftmaxClient(make_server(max_message_bytes=350).target, config=quick_config) as client,
        pytest.raises(ResourceExhaustedError, match=r"at most 350 bytes a message.*--max-message-bytes"),
    ):
        client.softmax(normal((60, 10)))


@pytest.mark.parametrize("answers", [0, 1, 14, 29])
def test_large_softmax_server_that_drains_is_asked_for_the_rest(reference_server, client, whole, answers):
    array = normal((300, 10))  # 30 blocks
    expected = whole(array)
    reference_server.requests.clear()
    reference_server.stream = reference_server.break_off(answers)
    np.testing.assert_array_equal(client.softmax(array), expected)
    assert block_numbers(reference_server.requests) == list(range(1, 31))
    assert len({request.id.rpartition("/")[0] for request in reference_server.requests}) == 1


def test_large_softmax_in_place_on_a_server_that_drains_is_right(reference_server, client, whole):
    array = normal((300, 10))
    expected = whole(array)
    reference_server.stream = reference_server.break_off(14)
    assert client.softmax(array, out=array) is array
    np.testing.assert_array_equal(array, expected)


def test_large_softmax_answered_whole_before_the_call_breaks_is_returned(reference_server, client):
    reference_server.stream = reference_server.break_off(30, grpc.StatusCode.INTERNAL)
    assert client.softmax(normal((300, 10))).sum() == pytest.approx(300)
    assert len(reference_server.requests) == 30


def test_large_softmax_block_answered_unavailable_is_asked_again(reference_server, client, whole):
    array = normal((60, 10))
    expected = whole(array)
    refuse = reference_server.refuse_block(4, grpc.StatusCode.UNAVAILABLE)

    def refuse_once(request):
        answer = refuse(request)
        if request.id.endswith("/4"):
            reference_server.stream_answer = reference_server.compute_for_stream
        return answer

    reference_server.requests.clear()
    reference_server.stream_answer = refuse_once
    np.testing.assert_array_equal(client.softmax(array), expected)
    numbers = block_numbers(reference_server.requests)
    assert numbers[:4] == [1, 2, 3, 4]
    assert numbers[-3:] == [4, 5, 6]
    assert numbers.count(4) == 2


def test_large_softmax_server_restarted_on_its_port_is_found(make_server, whole, client):
    array = normal((300, 10))
    expected = whole(array)
    first = make_server()
    port = int(first.target.rpartition(":")[2])
    second = []

    def restart(requests, context):
        for request in requests:
            yield first.compute_for_stream(request)
            if request.id.endswith("/9"):
                break
        restarting.start()
        context.abort(grpc.StatusCode.UNAVAILABLE, "draining")

    def replace():
        first.close()
        second.append(make_server(port=port))

    restarting = threading.Thread(target=replace)
    first.stream = restart
    retry = RetryPolicy(max_attempts=5, initial_backoff_seconds=0.5)
    with SoftmaxClient(first.target, timeout=WAIT_SECONDS, config=ClientConfig(retry=retry)) as own:
        np.testing.assert_array_equal(own.softmax(array), expected)
    restarting.join()
    assert block_numbers(second[0].requests) == list(range(10, 31))


def test_large_softmax_unavailable_server_is_given_up_after_all_attempts(reference_server, client):
    calls = []

    def refuse(requests, context):
        calls.append(next(requests).id)
        context.abort(grpc.StatusCode.UNAVAILABLE, "draining")

    reference_server.stream = refuse
    with pytest.raises(UnavailableError, match="draining") as caught:
        client.softmax(normal((60, 10)))
    assert len(calls) == RetryPolicy().max_attempts
    assert set(calls) == {caught.value.request_id}


def test_large_softmax_call_over_before_its_first_block_raises_under_the_requests_id(reference_server, monkeypatch):
    is_over = threading.Event()
    announce, encode = streams._Feeder.announce_call_over, chunks.ChunkedRequest.encode

    def announce_over(feeder):
        announce(feeder)
        is_over.set()

    def encode_late(request, block):
        is_over.wait(WAIT_SECONDS)
        return encode(request, block)

    monkeypatch.setattr(streams._Feeder, "announce_call_over", announce_over)
    monkeypatch.setattr(chunks.ChunkedRequest, "encode", encode_late)
    reference_server.stream = lambda requests, context: context.abort(grpc.StatusCode.UNAVAILABLE, "draining")
    config = ClientConfig(retry=None)
    with (
        SoftmaxClient(reference_server.target, transport="inline", config=config) as client,
        pytest.raises(UnavailableError, match="draining") as caught,
    ):
        client.softmax(normal((60, 10)))
    assert caught.value.request_id.endswith("-1")


def test_large_softmax_without_retry_fails_at_once(reference_server):
    reference_server.stream = reference_server.break_off(2)
    config = ClientConfig(retry=None)
    with (
        SoftmaxClient(reference_server.target, config=config) as client,
        pytest.raises(UnavailableError, match="draining"),
    ):
        client.softmax(normal((60, 10)))
    assert len(reference_server.requests) == 2


def test_large_softmax_other_failure_is_not_asked_again(reference_server, client):
    reference_server.stream = reference_server.break_off(2, grpc.StatusCode.RESOURCE_EXHAUSTED)
    with pytest.raises(ResourceExhaustedError):
        client.softmax(normal((60, 10)))
    assert len(reference_server.requests) == 2


def test_large_softmax_stream_ended_early_raises_server_error(reference_server, client):
    def ends(requests, context):
        yield reference_server.compute_for_stream(next(requests))

    reference_server.stream = ends
    with pytest.raises(ServerError, match="ended before every tensor was answered"):
        client.softmax(normal((60, 10)))


def test_large_softmax_late_answer_raises_deadline_exceeded(reference_server, client):
    reference_server.hold_back = 1000  # which never come
    with pytest.raises(DeadlineExceededError, match="larger timeout="):
        client.softmax(normal((300, 10)), timeout=0.1)


def test_large_softmax_attempts_share_one_deadline(reference_server, client):
    timeouts = []
    call = client._stream_method

    def note(messages, timeout):
        timeouts.append(timeout)
        reference_server.stream = reference_server.break_off(2) if len(timeouts) < 3 else reference_server.answer_each
        return call(messages, timeout=timeout)

    client._stream_method = note
    client.softmax(normal((60, 10)), timeout=15)
    assert 15 >= timeouts[0] > timeouts[1] > timeouts[2] > 0
    assert len(timeouts) == 3


@pytest.mark.parametrize(("own", "given"), [(None, None), (0.05, math.inf)])
def test_large_softmax_without_deadline_sends_none(reference_server, own, given):
    remaining = []

    def note(requests, context):
        remaining.append(context.time_remaining())
        yield from reference_server.answer_each(requests, context)

    reference_server.stream = note
    with SoftmaxClient(reference_server.target, timeout=own) as client:
        client.softmax(normal((60, 10)), timeout=given)
    assert remaining[0] is None or remaining[0] > 1e9


def test_large_softmax_client_closed_during_the_call_cancels_it(reference_server):
    reference_server.hold_back = 1000
    client = SoftmaxClient(reference_server.target)
    closer = threading.Thread(target=lambda: (reference_server.has_request.wait(WAIT_SECONDS), client.close()))
    closer.start()
    with pytest.raises(RequestCancelledError):
        client.softmax(normal((300, 10)))
    closer.join()


def test_large_softmax_client_closed_while_it_waits_to_try_again_is_cancelled(reference_server, monkeypatch):
    reference_server.stream = reference_server.break_off(2)
    client = SoftmaxClient(reference_server.target)

    def close_first(attempts, error):
        client.close()
        return WAIT_SECONDS

    monkeypatch.setattr(Attempts, "backoff_seconds", close_first)
    with pytest.raises(RequestCancelledError, match="closed during the call"):
        client.softmax(normal((300, 10)))


def test_large_softmax_many_threads_share_a_client(client, whole):
    arrays = [np.random.default_rng(seed).normal(size=(200, 10)).astype(np.float32) for seed in range(6)]
    results = [None] * 6

    def work(index):
        results[index] = client.softmax(arrays[index])

    threads = [threading.Thread(target=work, args=(index,)) for index in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for array, result in zip(arrays, results, strict=True):
        np.testing.assert_array_equal(result, whole(array))


@pytest.mark.parametrize("in_flight", [1, 2, 8])
def test_stream_large_and_small_arrays_answers_whole_ones_in_order(reference_server, client, whole, in_flight):
    shapes = [(2, 3), (300, 7), (60, 9), (0, 5), (3, 150), (1000,), (4, 4), (5, 5, 5, 13)]
    arrays = [normal(shape, DTYPES[n % len(DTYPES)]) for n, shape in enumerate(shapes)]
    results = list(client.stream(arrays, in_flight=in_flight))
    assert len(reference_server.requests) > 20
    assert len(results) == len(arrays)
    for array, result in zip(arrays, results, strict=True):
        assert (result.shape, result.dtype) == (array.shape, array.dtype)
        assert result.flags.writeable
        assert result.tobytes() == whole(array).tobytes()


def test_stream_large_arrays_not_writable_are_read_only(client):
    for result in client.stream([normal((60, 9))] * 3, writable=False):
        assert not result.flags.writeable
        np.testing.assert_allclose(result.sum(axis=-1), 1, rtol=1e-6)


@pytest.mark.parametrize("in_flight", [1, 3])
def test_stream_large_arrays_are_counted_whole(reference_server, client, blocks_in_flight, in_flight):
    taken = answered = 0

    def arrays():
        nonlocal taken
        for _ in range(10):
            assert taken - answered < in_flight
            taken += 1
            yield normal((60, 10))  # 6 blocks

    def answer_together(requests, context):
        """Answer when that many have come, or the last: with fewer on the way it would hang."""
        while unanswered := list(itertools.islice(requests, together)):
            numbers.append(len(unanswered))
            yield from map(reference_server.compute_for_stream, unanswered)

    together = min(6 * in_flight, chunks.BLOCKS_IN_FLIGHT)
    numbers = []
    reference_server.stream = answer_together
    for result in client.stream(arrays(), in_flight=in_flight):
        answered += 1
        assert result.shape == (60, 10)
    assert answered == 10
    assert sum(numbers) == 60
    assert max(blocks_in_flight) == together


def test_stream_array_filled_anew_behind_each_message_is_sent_as_it_was(client, whole):
    buffer = np.empty((300, 10), np.float32)
    arrays = [normal((300, 10)) * factor for factor in (1, 2, 3)]

    def refill():
        for array in arrays:
            buffer[:] = array
            yield buffer

    for array, result in zip(arrays, client.stream(refill()), strict=True):
        np.testing.assert_array_equal(result, whole(array))


def test_stream_large_array_refused_by_the_server_raises_in_its_place(reference_server, client):
    reference_server.stream_answer = reference_server.refuse_in_stream
    results = client.stream([normal((60, 9)), normal((300, 13)), normal((60, 9))])
    assert next(results).shape == (60, 9)
    with pytest.raises(InvalidArgumentError, match="got 13 columns") as caught:
        next(results)
    assert caught.value.request_id == reference_server.requests[6].id
    assert caught.value.request_id.endswith("/1")


@pytest.mark.parametrize("in_flight", [1, 8])
def test_stream_returning_errors_gives_one_for_a_large_array_and_goes_on(reference_server, client, whole, in_flight):
    reference_server.stream_answer = reference_server.refuse_in_stream
    good = normal((60, 9))
    unfit = np.zeros((60, 9))
    huge = np.broadcast_to(np.float32(0), (3, 2**30))
    arrays = [normal((300, 13)), good, unfit, normal((2, 13)), good, huge, normal((300, 13)), good[:2]]
    results = list(client.stream(arrays, return_errors=True, in_flight=in_flight))
    kinds = [InvalidArgumentError, np.ndarray, InvalidTensorError, InvalidArgumentError]
    assert [type(result) for result in results] == [
        *kinds, np.ndarray, InvalidTensorError, InvalidArgumentError, np.ndarray
    ]  # fmt: skip
    np.testing.assert_array_equal(results[4], whole(good))
    np.testing.assert_array_equal(results[7], whole(good[:2]))


def test_stream_closed_within_a_large_array_is_seen_by_the_server(reference_server, client):
    sent = []
    with contextlib.closing(client.stream(sent.append(1) or normal((300, 10)) for _ in range(1000))) as results:
        next(results)
    assert reference_server.stream_ended.wait(WAIT_SECONDS)
    assert len(sent) < 20


def test_stream_closed_while_it_waits_for_answers_lets_go_of_the_array(reference_server, client):
    def answers_one(requests, context):
        first, *_ = itertools.islice(requests, 1 + chunks.BLOCKS_IN_FLIGHT)
        yield reference_server.compute_for_stream(first)
        reference_server.release.wait(WAIT_SECONDS)

    is_free = threading.Event()
    reference_server.stream = answers_one
    large = normal((300, 10))
    weakref.finalize(large, is_free.set)
    with contextlib.closing(client.stream([np.zeros(3, np.float32), large])) as results:
        del large
        next(results)
    assert is_free.wait(WAIT_SECONDS)


def test_stream_that_breaks_within_a_large_array_fails_under_the_blocks_id(reference_server, client):
    reference_server.stream = reference_server.break_off(10)
    results = client.stream([normal((60, 10)), normal((300, 10))])
    assert next(results).shape == (60, 10)
    with pytest.raises(UnavailableError, match="draining") as caught:
        next(results)
    assert caught.value.request_id.endswith("/5")
