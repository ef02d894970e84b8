"""Tensors in shared memory: the client and the server together, as processes of their own."""

from __future__ import annotations

import contextlib
import gc
import os
import re
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

import grpc
import ml_dtypes
import numpy as np
import pytest
from harness.server_process import ServerProcess
from softmaxd_client import (
    DeadlineExceededError,
    InvalidTensorError,
    ResourceExhaustedError,
    ServerError,
    SoftmaxClient,
    aio,
    shared_memory,
)

SHARED = "shared_memory"
WAIT_SECONDS = 20.0


@pytest.fixture(scope="module")
def server():
    with ServerProcess("--backend", "cpu", "--allow-shared-memory") as started:
        yield started


@pytest.fixture
def client(server):
    with SoftmaxClient(server.target, transport=SHARED) as opened:
        yield opened


@pytest.fixture(scope="module")
def expected(server):
    """Compute inline what any other transport has to give."""
    with SoftmaxClient(server.target, transport="inline") as inline:
        yield inline.softmax


def answered(server, transport=SHARED):
    """Return how many tensors the server has answered that came by a transport."""
    text = urllib.request.urlopen(f"{server.metrics_url}/metrics").read().decode()
    counts = re.findall(
        rf'softmaxd_request_seconds_count{{code="OK",method="\w+",transport="{transport}"}} ([\d.]+)', text
    )
    return sum(map(float, counts))


def wait_until(condition):
    ends = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < ends, "the condition did not come true"
        time.sleep(0.01)  # nothing tells of it: it happens in another process


def regions(server):
    text = urllib.request.urlopen(f"{server.metrics_url}/metrics").read().decode()
    [count] = re.findall(r'softmaxd_regions{kind="shared_memory"} ([\d.]+)', text)
    return float(count)


def segments_of(process="self"):
    """Return the paths of the segments that a process has mapped; others may have some of their own."""
    mapped = re.findall(r"(\d+) +/dev/shm/", Path(f"/proc/{process}/maps").read_text())
    found = set()
    for path in Path("/dev/shm").iterdir():
        with contextlib.suppress(FileNotFoundError):
            if str(path.stat().st_ino) in mapped:
                found.add(path)
    return found


def some(shape, dtype=np.float32):
    return (np.random.default_rng(5).standard_normal(shape) * 4).astype(dtype)


def shared_copy(client, x):
    array = client.empty(x.shape, x.dtype)
    array[...] = x
    return array


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("shape", [(5,), (3, 7, 11), (2000, 300)], ids=str)
def test_array_in_shared_memory_travels_by_reference_and_gets_the_same_bits(server, client, expected, shape, dtype):
    x = some(shape, dtype)
    source, out = shared_copy(client, x), client.empty(shape, dtype)
    before = answered(server)
    assert client.softmax(source, out=out) is out
    assert answered(server) == before + 1
    assert out.tobytes() == client.softmax(source).tobytes() == expected(x).tobytes()
    assert source.tobytes() == x.tobytes()


def test_rows_of_an_array_travel_by_reference(server, client, expected):
    x = some((64, 100))
    source, out = shared_copy(client, x), shared_copy(client, np.zeros_like(x))
    before = answered(server)
    client.softmax(source[10:20], out=out[30:40])
    assert answered(server) == before + 1
    assert out[30:40].tobytes() == expected(x[10:20]).tobytes()
    assert not out[:30].any()
    assert not out[40:].any()


def test_array_in_place_gets_the_same_bits(client, expected):
    x = some((64, 100))
    source = shared_copy(client, x)
    assert client.softmax(source, out=source) is source
    assert source.tobytes() == expected(x).tobytes()


@pytest.mark.parametrize("shift", [1, -1])
def test_out_that_overlaps_in_part_gets_the_same_bits(client, expected, shift):
    x = some((64, 100))
    memory = client.empty((66, 100))
    memory[1:65] = x
    out = memory[1 + shift : 65 + shift]
    client.softmax(memory[1:65], out=out)
    assert out.tobytes() == expected(x).tobytes()


@pytest.mark.parametrize(
    "make",
    [
        lambda x: x.astype(">f4"),
        np.asfortranarray,
        lambda x: x[::-1],
        lambda x: x[:, ::2],
        lambda x: x.tolist(),
    ],
    ids=["big_endian", "fortran", "reversed", "strided", "list"],
)
def test_array_of_the_caller_s_own_memory_is_copied_and_gets_the_same_bits(server, client, expected, make):
    value = make(some((50, 80)))
    before = answered(server)
    result = client.softmax(value)
    assert answered(server) == before + 1
    wanted = expected(value)
    assert (result.dtype, result.shape) == (wanted.dtype, wanted.shape)
    assert result.tobytes() == wanted.tobytes()
    result += 1
    out = np.zeros_like(wanted)
    assert client.softmax(value, out=out) is out
    assert out.tobytes() == wanted.tobytes()
    assert not client.softmax(value, writable=False).flags.writeable


def test_large_arrays_go_through_shared_memory_by_themselves_and_small_ones_inline(server, expected):
    x = some((shared_memory.MIN_STAGED_BYTES // 4 // 128, 128))
    with SoftmaxClient(server.target) as client:
        before, inline = answered(server), answered(server, "inline")
        assert client.softmax(x).tobytes() == expected(x).tobytes()
        assert answered(server) == before + 1
        inline = answered(server, "inline")
        client.softmax(x[:-1])
        assert answered(server, "inline") == inline + 1
        client.softmax(shared_copy(client, x[:1]))
        assert answered(server) == before + 2


def test_results_that_are_dropped_cost_no_new_segments(client):
    x = some((500, 300))
    for _ in range(3):
        client.softmax(x)
    gc.collect()
    before = segments_of()
    for _ in range(10):
        client.softmax(x)
    assert segments_of() <= before


def test_result_keeps_its_values_while_others_are_computed(client, expected):
    x = some((300, 300))
    results = [client.softmax(x + index) for index in range(5)]
    for index, result in enumerate(results):
        assert result.tobytes() == expected(x + index).tobytes()


def test_stream_of_shared_and_own_arrays_answers_in_order_around_an_error(server, client, expected):
    x = some((300, 300))
    arrays = [shared_copy(client, x), x + 1, np.zeros(3, np.int8), shared_copy(client, x[:5]), np.zeros((0, 4), "f4")]
    before = answered(server)
    first, second, bad, part, empty = client.stream(arrays, return_errors=True)
    assert isinstance(bad, InvalidTensorError)
    assert first.tobytes() == expected(x).tobytes()
    assert second.tobytes() == expected(x + 1).tobytes()
    assert part.tobytes() == expected(x[:5]).tobytes()
    assert empty.shape == (0, 4)
    assert answered(server) == before + 3


async def test_aio_client_shares_memory_too(server, expected):
    x = some((400, 300))
    async with aio.SoftmaxClient(server.target, transport=SHARED) as client:
        source, out = shared_copy(client, x), client.empty(x.shape)
        before = answered(server)
        assert await client.softmax(source, out=out) is out
        assert out.tobytes() == (await client.softmax(x)).tobytes() == expected(x).tobytes()
        results = [result.tobytes() async for result in client.stream([source, x[:7], source[3:5]])]
        assert results == [expected(part).tobytes() for part in (x, x[:7], x[3:5])]
        assert answered(server) == before + 5


def test_server_without_the_flag_gets_tensors_inline_or_is_an_error(expected):
    x = some((400, 300))
    with ServerProcess("--backend", "cpu") as other:
        with SoftmaxClient(other.target) as client:
            source, out = shared_copy(client, x), client.empty(x.shape)
            assert client.softmax(source, out=out).tobytes() == expected(x).tobytes()
            assert client.softmax(x).tobytes() == expected(x).tobytes()
            assert answered(other, "inline") == 2
        with SoftmaxClient(other.target, transport=SHARED) as client:
            with pytest.raises(ServerError, match="--allow-shared-memory") as caught:
                client.softmax(x)
            assert caught.value.code is grpc.StatusCode.FAILED_PRECONDITION


def test_absent_server_is_unavailable_and_not_a_transport_that_is_off(server, expected):
    x = some((400, 300))
    with ServerProcess("--backend", "cpu", "--allow-shared-memory") as first:
        port = first.target.rpartition(":")[2]
        client = SoftmaxClient(first.target)
        client.softmax(x)
        array = shared_copy(client, x)
        assert answered(first) == 1
    with pytest.raises(ServerError) as caught:
        client.softmax(array, timeout=2)
    assert caught.value.code is grpc.StatusCode.UNAVAILABLE
    # Another server at the same place knows nothing of the client's memory, and gets it anew; inline until gRPC has
    # connected to it again.
    with ServerProcess("--backend", "cpu", "--allow-shared-memory", "--port", port) as second, client:

        def is_shared_again():
            assert client.softmax(array).tobytes() == expected(x).tobytes()
            return answered(second) > 0

        wait_until(is_shared_again)


def test_region_that_the_server_forgot_is_registered_anew(server, client, expected):
    x = some((400, 300))
    array = shared_copy(client, x)
    client.softmax(array)
    # What the client believes is registered is not.
    for key in list(client._lease._open.regions):
        client._lease._open.regions[key] = os.urandom(16)
    before = answered(server)
    assert client.softmax(array).tobytes() == expected(x).tobytes()
    assert answered(server) == before + 1


def test_full_file_system_is_an_error_or_inline(server, monkeypatch, expected):
    def full(*_):
        raise OSError(28, "No space left on device")

    x = some((400, 300))
    monkeypatch.setattr(os, "posix_fallocate", full)
    with SoftmaxClient(server.target) as client:
        assert client.softmax(client.empty(x.shape)).shape == x.shape
        assert client.softmax(x).tobytes() == expected(x).tobytes()
    with SoftmaxClient(server.target, transport=SHARED) as client:
        for act in (lambda: client.empty(x.shape), lambda: client.softmax(x)):
            with pytest.raises(ResourceExhaustedError, match=r"No space left.*--shm-size"):
                act()


def test_close_leaves_no_segment_and_the_server_no_region(server):
    gc.collect()
    before = segments_of()
    wait_until(lambda: regions(server) == 0)
    with SoftmaxClient(server.target, transport=SHARED) as client:
        array = client.softmax(some((400, 300)))
        assert regions(server) == 2
        mine = segments_of() - before
        assert len(mine) == 2
        assert all(path.exists() for path in mine)
    assert not any(path.exists() for path in mine)
    wait_until(lambda: regions(server) == 0)
    assert abs(array.sum() - 400) < 1e-3


_KILLED = """
import sys
import numpy as np
from softmaxd_client import SoftmaxClient
client = SoftmaxClient(sys.argv[1], transport="shared_memory")
array = client.empty((100, 100))
array[...] = 0
result = client.softmax(array)
print("sharing", flush=True)
sys.stdin.read()
"""


def test_killed_client_leaves_neither_segment_nor_region(server):
    wait_until(lambda: regions(server) == 0)
    command = [sys.executable, "-c", _KILLED, server.target]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "sharing\n"
        mine = segments_of(process.pid)
        assert len(mine) == 2
        assert all(path.exists() for path in mine)
        assert regions(server) == 2
        process.kill()
    wait_until(lambda: regions(server) == 0)
    wait_until(lambda: not any(path.exists() for path in mine))


def test_segment_whose_call_got_no_answer_is_not_used_for_another_array(server, client):
    x = some((2000, 300))
    array = client.softmax(x)
    used = {path.name for path in segments_of()}
    del array
    gc.collect()
    with pytest.raises(DeadlineExceededError):
        client.softmax(x, timeout=0)
    array = client.softmax(x)
    pool = client._shared_memory._pool
    segment, _ = pool.find(array.ctypes.data, array.nbytes)
    assert segment.name not in used


def test_threads_that_share_a_client_each_get_their_own_answers(client, expected):
    x = some((200, 400))
    wanted = [expected(x + number).tobytes() for number in range(4)]
    wrong = []

    def ask(number):
        results = [client.softmax(x + number) for _ in range(25)]
        wrong.extend(number for result in results if result.tobytes() != wanted[number])

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.parametrize("dtype", [np.float64, np.int32])
def test_empty_of_another_dtype_is_refused(client, dtype):
    with pytest.raises(InvalidTensorError, match="float32, float16, bfloat16"):
        client.empty((2, 3), dtype)


def test_empty_of_an_inline_client_is_an_array_of_its_own_memory(server):
    before = segments_of()
    with SoftmaxClient(server.target, transport="inline") as client:
        array = client.empty((2, 3), np.float16)
        assert (array.shape, array.dtype) == ((2, 3), np.float16)
        assert client.empty(7).shape == (7,)
        client.softmax(array)
        assert segments_of() <= before
