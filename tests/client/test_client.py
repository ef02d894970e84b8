import math
import socket
import threading

import grpc
import ml_dtypes
import numpy as np
import pytest
from softmaxd_client import (
    ClientClosedError,
    ClientConfig,
    DeadlineExceededError,
    Device,
    Execution,
    InvalidTensorError,
    Pool,
    RequestCancelledError,
    ResourceExhaustedError,
    ServerInfo,
    SoftmaxClient,
    UnavailableError,
    Variant,
)

DTYPES = [np.dtype(np.float32), np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)]
# Half a unit in the last place of a probability, as the server rounds its float64 to the dtype once.
RELATIVE = {"float32": 2**-24, "float16": 2**-11, "bfloat16": 2**-8}


def assert_close(result, expected):
    # 2^-25 is half of float16's smallest step above zero.
    np.testing.assert_allclose(result.astype(np.float64), expected, rtol=RELATIVE[result.dtype.name], atol=2**-25)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(1,), (7,), (3, 5), (2, 3, 4, 5), (40, 500)], ids=str)
def test_softmax_any_dtype_and_rank_gives_float64_values(client, softmax64, dtype, shape):
    array = np.random.default_rng(1).normal(0, 4, shape).astype(dtype)
    before = array.copy()
    result = client.softmax(array)
    assert result.shape == shape
    assert result.dtype == dtype
    assert result.flags.writeable
    assert_close(result, softmax64(array))
    assert array.tobytes() == before.tobytes()


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([[1, 2, 3], [1, 1, 1]], [[0.0900, 0.2447, 0.6652], [1 / 3] * 3]),
        ([1, 2, 3, 4], [0.0320586, 0.0871443, 0.236883, 0.643914]),
    ],
)
def test_softmax_worked_example_gives_its_values(client, rows, expected):
    result = client.softmax(rows)
    assert result.dtype == np.float32
    np.testing.assert_allclose(result, expected, rtol=0, atol=5e-5)


def test_softmax_example_of_four_gives_six_digits(client):
    assert [f"{value:.6g}" for value in client.softmax([1, 2, 3, 4])] == [
        "0.0320586",
        "0.0871443",
        "0.236883",
        "0.643914",
    ]


@pytest.mark.parametrize("dtype", [dtype.newbyteorder(">") for dtype in DTYPES], ids=str)
def test_softmax_big_endian_array_gives_big_endian(client, softmax64, dtype):
    array = np.arange(12).reshape(3, 4).astype(dtype)
    result = client.softmax(array)
    assert result.dtype == dtype
    assert_close(result, softmax64(array))


def test_softmax_strided_arrays_give_row_major_values(client, softmax64):
    array = np.arange(24, dtype=np.float32).reshape(4, 6)
    for view in (array.T, array[::2, ::-1], np.asfortranarray(array)):
        result = client.softmax(view)
        assert result.flags.c_contiguous
        assert_close(result, softmax64(view))


@pytest.mark.parametrize("shape", [(0,), (0, 5), (4, 0)])
def test_softmax_empty_array_gives_an_empty_one(client, shape):
    result = client.softmax(np.empty(shape, np.float16))
    assert (result.shape, result.dtype) == (shape, np.float16)


def test_softmax_masked_rows_give_nan_or_zeros(client):
    rows = np.array([[-np.inf, -np.inf], [0, -np.inf]], np.float32)
    np.testing.assert_array_equal(client.softmax(rows), [[np.nan, np.nan], [1, 0]])
    np.testing.assert_array_equal(client.softmax(rows, zero_masked_rows=True), [[0, 0], [1, 0]])


@pytest.mark.parametrize("array", [np.zeros(3), np.zeros(3, np.int64), np.float32(1)])
def test_softmax_unfit_array_is_refused_before_it_is_sent(reference_server, client, array):
    with pytest.raises(InvalidTensorError):
        client.softmax(array)
    assert reference_server.requests == []


def test_softmax_unfit_out_is_refused_before_anything_is_sent(reference_server, client):
    with pytest.raises(InvalidTensorError, match="out is float32 of shape"):
        client.softmax(np.zeros(3, np.float32), out=np.zeros(4, np.float32))
    assert reference_server.requests == []


def test_softmax_out_is_filled_and_returned(client, softmax64):
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    expected = softmax64(array)
    strided = np.zeros((4, 6), np.float32)[::2, ::2]
    assert client.softmax(array, out=strided) is strided
    assert_close(strided, expected)
    assert client.softmax(array, out=array) is array
    assert_close(array, expected)


def test_softmax_not_writable_gives_a_read_only_array(client, softmax64):
    array = np.arange(30_000, dtype=np.float32).reshape(100, 300)
    result = client.softmax(array, writable=False)
    assert not result.flags.writeable
    assert_close(result, softmax64(array))


def test_softmax_with_execution_tells_what_ran(client, softmax64):
    result, execution = client.softmax_with_execution([1.0, 2.0])
    assert_close(result, softmax64([1.0, 2.0]))
    assert execution == Execution(variant="float64", tile_columns=4096, tile_count=3)


def test_softmax_requests_have_ids_of_their_own(reference_server, client):
    for _ in range(3):
        client.softmax([1.0])
    assert len({request.id for request in reference_server.requests}) == 3


def test_softmax_many_threads_share_a_client(client, softmax64):
    arrays = [np.random.default_rng(seed).normal(size=(20, 30)).astype(np.float32) for seed in range(8)]
    results = [None] * 8

    def work(index):
        results[index] = client.softmax(arrays[index])

    threads = [threading.Thread(target=work, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for array, result in zip(arrays, results, strict=True):
        assert_close(result, softmax64(array))


def test_info_tells_what_the_server_says(reference_server, client):
    assert client.info() == ServerInfo(
        version="9.8.7",
        backend="numpy",
        devices=(Device("a CPU [x86]", 4),),
        variants=(Variant("float64", "numpy, always"),),
        data_types=("float32", "float16", "bfloat16"),
        max_message_bytes=reference_server.max_message_bytes,
        pools=(Pool("workspace", 1, 2, 3),),
    )


def test_ping_gives_seconds(client):
    assert 0 < client.ping() < 20


def test_softmax_late_answer_raises_deadline_exceeded(reference_server, client):
    reference_server.script = [reference_server.hang]
    with pytest.raises(DeadlineExceededError, match="larger timeout="):
        client.softmax([1.0], timeout=0.05)


def test_softmax_clients_own_timeout_holds_for_each_call(reference_server):
    reference_server.script = [reference_server.hang]
    with SoftmaxClient(reference_server.target, timeout=0.05) as client, pytest.raises(DeadlineExceededError):
        client.softmax([1.0])


@pytest.mark.parametrize(("own", "given"), [(None, None), (0.05, math.inf)])
def test_softmax_without_deadline_sends_none(reference_server, own, given):
    remaining = []

    def look_at_deadline(request, context):
        remaining.append(context.time_remaining())
        return reference_server.compute(request)

    reference_server.script = [look_at_deadline]
    with SoftmaxClient(reference_server.target, timeout=own) as client:
        assert client.softmax([1.0], timeout=given).tolist() == [1.0]
    assert remaining[0] > 1e9  # gRPC's infinity


@pytest.mark.parametrize("elements", [3, 1 << 20])
def test_softmax_unavailable_server_is_asked_again(reference_server, client, elements):
    reference_server.script = [reference_server.fail(grpc.StatusCode.UNAVAILABLE)] * 3
    array = np.zeros(elements, np.float32)
    assert client.softmax(array).sum() == pytest.approx(1)
    assert len(reference_server.requests) == 4
    assert len({request.id for request in reference_server.requests}) == 1


def test_softmax_other_failure_is_not_asked_again(reference_server, client):
    reference_server.script = [reference_server.fail(grpc.StatusCode.RESOURCE_EXHAUSTED, "at most 3 in flight")]
    with pytest.raises(ResourceExhaustedError, match="at most 3 in flight"):
        client.softmax([1.0])
    assert len(reference_server.requests) == 1


def test_softmax_without_retry_fails_at_once(reference_server):
    reference_server.script = [reference_server.fail(grpc.StatusCode.UNAVAILABLE)]
    config = ClientConfig(retry=None)
    with SoftmaxClient(reference_server.target, config=config) as client, pytest.raises(UnavailableError):
        client.softmax([1.0])
    assert len(reference_server.requests) == 1


def test_softmax_no_server_raises_unavailable(quick_config):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and never listens
        target = f"127.0.0.1:{taken.getsockname()[1]}"
        with SoftmaxClient(target, config=quick_config) as client, pytest.raises(UnavailableError, match=target):
            client.softmax([1.0])


def test_softmax_message_over_the_servers_limit_names_the_knobs(make_server, quick_config):
    server = make_server(max_message_bytes=10_000)
    with SoftmaxClient(server.target, config=quick_config) as client:
        with pytest.raises(ResourceExhaustedError) as caught:
            client.softmax(np.zeros(10_000, np.float32))
        assert "at most 10000 bytes a message" in str(caught.value)
        assert "--max-message-bytes" in str(caught.value)
        assert "fewer rows" in str(caught.value)
        assert client.softmax([1.0]).tolist() == [1.0]


def test_client_closed_is_refused_again(reference_server):
    client = SoftmaxClient(reference_server.target)
    client.softmax([1.0])
    started = client.stream([[1.0]])
    client.close()
    client.close()
    for call in (
        lambda: client.softmax([1.0]),
        lambda: client.softmax_with_execution([1.0]),
        lambda: client.stream([[1.0]]),
        lambda: next(started),
        client.info,
        client.ping,
    ):
        with pytest.raises(ClientClosedError, match="make a new SoftmaxClient"):
            call()


def test_client_closed_during_a_call_cancels_it(reference_server):
    reference_server.script = [reference_server.hang]
    client = SoftmaxClient(reference_server.target)
    closer = threading.Thread(target=lambda: (reference_server.has_request.wait(20), client.close()))
    closer.start()
    with pytest.raises(RequestCancelledError):
        client.softmax([1.0])
    closer.join()


def test_client_closed_behind_its_back_is_refused(reference_server):
    client = SoftmaxClient(reference_server.target)
    client.close()
    client._closed = False  # as seen by a thread that looked just before
    with pytest.raises(ValueError, match="closed"):
        client.softmax([1.0])


def test_client_representation_says_where_and_how(reference_server):
    with SoftmaxClient(reference_server.target, transport="inline") as client:
        assert repr(client) == f"<softmaxd_client.client.SoftmaxClient {reference_server.target} transport=inline>"
    assert repr(client).endswith(" closed>")


@pytest.mark.parametrize("transport", ["shared", "device", ""])
def test_client_transport_that_is_not_there_is_refused(transport):
    with pytest.raises(ValueError, match=f"transport is '{transport}'; allowed: auto, inline"):
        SoftmaxClient("127.0.0.1:1", transport=transport)
