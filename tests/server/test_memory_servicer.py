"""Registered memory through a real server in this process: over gRPC, with stubs, in segments of this host."""

from __future__ import annotations

import asyncio
import os

import grpc
import numpy as np
import pytest
from harness.segments import TENSORS_START, Segment
from softmaxd_proto import dtypes
from softmaxd_proto.v1 import softmax_pb2
from softmaxd_proto.v1.softmax_pb2_grpc import SoftmaxServiceStub
from softmaxd_server.backends.reference import NumpyBackend
from softmaxd_server.errors import BackendUnavailableError

SIZE = 1 << 20
OUT = SIZE // 2  # where results go: the second half of a segment


class Client:
    """One client: a connection, a RegisterMemory call, and a segment."""

    def __init__(self, channel, segment):
        self.channel = channel
        self.stub = SoftmaxServiceStub(channel)
        self.call = self.stub.RegisterMemory()
        self.segment = segment

    async def send(self, request):
        """Return the answer to one RegisterMemoryRequest."""
        await self.call.write(request)
        return await self.call.read()

    async def register(self):
        """Register the segment; return its region."""
        answer = await self.send(self.segment.registration())
        assert not answer.HasField("status"), answer.status.message
        return answer.region


@pytest.fixture
def connect(dial):
    """Make clients of a server, each with a segment of its own."""
    segments = []

    def make(server, byte_size=SIZE):
        segments.append(Segment(byte_size))
        return Client(dial(server), segments[-1])

    yield make
    for segment in segments:
        segment.close()


def by_slices(region, x, dtype="float32", *, source=TENSORS_START, destination=OUT, kind=None, **fields):
    """Return a request for an array that is at `source`, its result to be at `destination`; None for neither."""
    message = (kind or softmax_pb2.SoftmaxRequest)(
        **{"id": "a", "data_type": dtypes.BY_NAME[dtype].number, "shape": x.shape, **fields}
    )
    for slice_, offset in ((message.source, source), (message.destination, destination)):
        if offset is not None:
            slice_.region, slice_.offset, slice_.byte_size = region, offset, x.nbytes
    return message


def mapped(segment):
    """Say how often a segment is mapped into this process, which is the server's too; once by the segment itself."""
    with open("/proc/self/maps") as maps:
        return sum(segment.name in line for line in maps) - 1


async def refused(call):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code(), caught.value.details()


def some(shape, dtype):
    return (np.random.default_rng(3).standard_normal(shape) * 4).astype(dtypes.BY_NAME[dtype].numpy)


@pytest.mark.parametrize("dtype", dtypes.BY_NAME)
@pytest.mark.parametrize("shape", [(7,), (3, 50, 40), (40, 3000)], ids=str)
async def test_tensor_in_shared_memory_gets_the_bits_of_the_backend(
    backend, open_backend, serve, connect, dtype, shape
):
    client = connect(await serve(open_backend(backend.name), allow_shared_memory=True))
    region = await client.register()
    x = some(shape, dtype)
    expected = backend.softmax(x).tobytes()
    client.segment.array(shape, x.dtype)[...] = x
    out = client.segment.array(shape, x.dtype, OUT)
    answer = await client.stub.Softmax(by_slices(region, x, dtype))
    assert (answer.id, list(answer.shape), answer.payload) == ("a", list(shape), b"")
    assert answer.execution.variant in {variant.name for variant in backend.variants}
    assert out.tobytes() == expected
    assert client.segment.array(shape, x.dtype).tobytes() == x.tobytes()
    # Each side by itself, and in place.
    answer = await client.stub.Softmax(by_slices(region, x, dtype, destination=None))
    assert answer.payload == expected
    out[...] = 0
    answer = await client.stub.Softmax(by_slices(region, x, dtype, source=None, payload=x.tobytes()))
    assert (answer.payload, out.tobytes()) == (b"", expected)
    await client.stub.Softmax(by_slices(region, x, dtype, destination=TENSORS_START))
    assert client.segment.array(shape, x.dtype).tobytes() == expected


async def test_stream_of_tensors_in_shared_memory_answers_in_order_and_goes_on_after_an_error(serve, connect):
    client = connect(await serve(allow_shared_memory=True))
    region = await client.register()
    x = some((8, 32), "float32")
    client.segment.array(x.shape, x.dtype)[...] = x
    kind = softmax_pb2.SoftmaxStreamRequest
    requests = [
        by_slices(region, x, id="good", kind=kind),
        by_slices(b"unknown", x, id="bad", kind=kind),
        by_slices(region, x, id="inline", kind=kind, source=None, destination=None, payload=x.tobytes()),
    ]
    good, bad, inline = [answer async for answer in client.stub.SoftmaxStream(iter(requests))]
    assert (good.id, good.status.code) == ("good", 0)
    assert (bad.id, bad.status.code) == ("bad", grpc.StatusCode.NOT_FOUND.value[0])
    assert "register it anew" in bad.status.message
    assert (
        inline.payload == client.segment.array(x.shape, x.dtype, OUT).tobytes() == NumpyBackend().softmax(x).tobytes()
    )


async def test_masked_rows_and_empty_tensors_travel_by_shared_memory_too(serve, connect):
    client = connect(await serve(allow_shared_memory=True))
    region = await client.register()
    x = np.full((1, 4), -np.inf, np.float32)
    client.segment.array(x.shape, x.dtype)[...] = x
    await client.stub.Softmax(by_slices(region, x, options=softmax_pb2.SoftmaxOptions(zero_masked_rows=True)))
    assert client.segment.array(x.shape, x.dtype, OUT).tolist() == [[0] * 4]
    answer = await client.stub.Softmax(by_slices(region, np.zeros((0, 4), np.float32)))
    assert (answer.id, list(answer.shape)) == ("a", [0, 4])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"payload": b"1234"}, ["a source and a payload of 4 bytes"]),
        ({"shape": [8, 33]}, ["a source of 1024 bytes", "expected 1056"]),
        ({"data_type": 0}, ["DATA_TYPE_UNSPECIFIED"]),
        ({"source": SIZE - 1000}, ["1024 bytes at offset", str(SIZE)]),
        ({"destination": SIZE}, ["1024 bytes at offset", str(SIZE)]),
        ({"destination": TENSORS_START + 4}, ["overlap in part"]),
        ({"destination": TENSORS_START - 4}, ["overlap in part"]),
    ],
    ids=str,
)
async def test_slice_that_does_not_fit_is_refused_and_changes_nothing(serve, connect, change, said):
    client = connect(await serve(allow_shared_memory=True))
    region = await client.register()
    before = bytes(client.segment.memory)
    code, text = await refused(client.stub.Softmax(by_slices(region, some((8, 32), "float32"), **change)))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    for part in said:
        assert part in text
    assert bytes(client.segment.memory) == before


async def test_destination_of_another_size_is_refused(serve, connect):
    client = connect(await serve(allow_shared_memory=True))
    request = by_slices(await client.register(), some((8, 32), "float32"))
    request.destination.byte_size -= 4
    code, text = await refused(client.stub.Softmax(request))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "a destination of 1020 bytes, expected 1024" in text


async def test_two_regions_over_one_segment_may_not_overlap_in_part_either(serve, connect):
    client = connect(await serve(allow_shared_memory=True))
    first, second = await client.register(), await client.register()
    request = by_slices(first, some((8, 32), "float32"), destination=TENSORS_START + 4)
    request.destination.region = second
    code, text = await refused(client.stub.Softmax(request))
    assert (code, "overlap in part" in text) == (grpc.StatusCode.INVALID_ARGUMENT, True)


async def test_shared_memory_is_refused_unless_it_is_allowed(serve, connect):
    client = connect(await serve())
    answer = await client.send(client.segment.registration())
    assert answer.status.code == grpc.StatusCode.FAILED_PRECONDITION.value[0]
    assert "--allow-shared-memory" in answer.status.message
    assert (answer.region, mapped(client.segment)) == (b"", 0)
    assert list((await client.stub.GetServerInfo(softmax_pb2.GetServerInfoRequest())).transports) == ["inline"]


async def test_server_s_description_names_its_transports_and_its_limit(serve, connect):
    client = connect(await serve(allow_shared_memory=True, shared_memory_bytes=12345))
    info = await client.stub.GetServerInfo(softmax_pb2.GetServerInfoRequest())
    assert (list(info.transports), info.limits.shared_memory_bytes) == (["inline", "shared_memory"], 12345)


async def test_device_memory_without_a_gpu_fails_the_start(serve):
    with pytest.raises(BackendUnavailableError, match=r"--allow-device-memory.*numpy"):
        await serve(allow_device_memory=True)


async def test_bad_registrations_get_their_own_status_and_the_call_goes_on(serve, connect):
    client = connect(await serve(allow_shared_memory=True, shared_memory_bytes=SIZE))
    request = client.segment.registration()
    request.byte_size = SIZE + 1
    over = await client.send(request)
    request.byte_size = SIZE
    request.shared_memory.token = bytes(16)
    token = await client.send(request)
    nothing = await client.send(softmax_pb2.RegisterMemoryRequest())
    unknown = await client.send(softmax_pb2.RegisterMemoryRequest(unregister=b"no such region"))
    device = await client.send(softmax_pb2.RegisterMemoryRequest(device_memory=softmax_pb2.DeviceMemory(), byte_size=1))
    codes = [grpc.StatusCode(code) for code in grpc.StatusCode]
    got = [next(c for c in codes if c.value[0] == a.status.code) for a in (over, token, nothing, unknown, device)]
    assert got == [
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.FAILED_PRECONDITION,
    ]
    assert client.segment.name not in over.status.message + token.status.message
    assert await client.register()


async def test_malformed_registration_is_invalid_argument_and_the_call_goes_on(serve, connect, dial):
    server = await serve(allow_shared_memory=True)
    call = dial(server).stream_stream("/softmaxd.v1.SoftmaxService/RegisterMemory")()
    await call.write(b"\xff\xff")
    answer = softmax_pb2.RegisterMemoryResponse.FromString(await call.read())
    assert answer.status.code == grpc.StatusCode.INVALID_ARGUMENT.value[0]
    assert "softmaxd.v1.RegisterMemoryRequest" in answer.status.message
    client = connect(server)
    await call.write(client.segment.registration().SerializeToString())
    assert softmax_pb2.RegisterMemoryResponse.FromString(await call.read()).region


async def test_client_cannot_let_go_of_another_one_s_region(serve, connect):
    server = await serve(allow_shared_memory=True)
    owner, other = connect(server), connect(server)
    region = await owner.register()
    answer = await other.send(softmax_pb2.RegisterMemoryRequest(unregister=region))
    assert answer.status.code == grpc.StatusCode.NOT_FOUND.value[0]
    await owner.stub.Softmax(by_slices(region, some((8, 32), "float32")))


async def test_unregistered_region_is_unmapped_and_unknown(serve, connect):
    client = connect(await serve(allow_shared_memory=True))
    region = await client.register()
    assert mapped(client.segment) == 1
    answer = await client.send(softmax_pb2.RegisterMemoryRequest(unregister=region))
    assert (answer.region, answer.status.code, mapped(client.segment)) == (region, 0, 0)
    code, _ = await refused(client.stub.Softmax(by_slices(region, some((8, 32), "float32"))))
    assert code is grpc.StatusCode.NOT_FOUND


@pytest.mark.parametrize("how", ["half_close", "cancel", "disconnect"])
async def test_end_of_the_call_unmaps_its_regions(serve, connect, until, how):
    server = await serve(allow_shared_memory=True)
    client, other = connect(server), connect(server)
    await client.register()
    await other.register()
    if how == "half_close":
        await client.call.done_writing()
    elif how == "cancel":
        client.call.cancel()
    else:
        await client.channel.close()
    await until(lambda: mapped(client.segment) == 0)
    assert mapped(other.segment) == 1
    metrics = server._metrics.registry
    assert metrics.get_sample_value("softmaxd_regions", {"kind": "shared_memory"}) == 1
    assert metrics.get_sample_value("softmaxd_region_bytes", {"kind": "shared_memory"}) == SIZE


class GatedComputeBackend(NumpyBackend):
    """Waits inside `compute` until the test lets it go."""

    inline_bytes = 0

    def __init__(self, gated):
        self._gated = gated

    def compute(self, source, destination, work):
        self._gated.entered.set()
        assert self._gated.gate.wait(20), "the test never opened the gate"
        return super().compute(source, destination, work)


async def test_region_in_use_is_unmapped_only_when_the_request_is_done(serve, connect, gated, until):
    client = connect(await serve(GatedComputeBackend(gated), allow_shared_memory=True))
    region = await client.register()
    x = some((8, 32), "float32")
    client.segment.array(x.shape, x.dtype)[...] = x
    answer = client.stub.Softmax(by_slices(region, x))
    await asyncio.to_thread(gated.entered.wait, 20)
    client.call.cancel()
    await until(lambda: client.call.done())
    code, _ = await refused(client.stub.Softmax(by_slices(region, x, id="late")))  # it is retired already
    assert code is grpc.StatusCode.NOT_FOUND
    assert mapped(client.segment) == 1
    gated.gate.set()
    await answer
    assert client.segment.array(x.shape, x.dtype, OUT).tobytes() == NumpyBackend().softmax(x).tobytes()
    await until(lambda: mapped(client.segment) == 0)


async def test_truncated_segment_is_an_error_for_its_client_alone(backend, open_backend, serve, connect):
    server = await serve(open_backend(backend.name), allow_shared_memory=True)
    client, other = connect(server), connect(server)
    region, others = await client.register(), await other.register()
    x = some((40, 1000), "float32")
    os.ftruncate(client.segment.descriptor, TENSORS_START)
    for _ in range(2):
        code, text = await refused(client.stub.Softmax(by_slices(region, x)))
        assert (code, "truncated" in text) == (grpc.StatusCode.FAILED_PRECONDITION, True)
    other.segment.array(x.shape, x.dtype)[...] = x
    await other.stub.Softmax(by_slices(others, x))
    assert other.segment.array(x.shape, x.dtype, OUT).tobytes() == backend.softmax(x).tobytes()


async def test_drain_ends_the_calls_once_no_request_is_left(serve, connect, gated):
    server = await serve(GatedComputeBackend(gated), allow_shared_memory=True, grace=20.0)
    client = connect(server)
    region = await client.register()
    x = some((8, 32), "float32")
    answer = client.stub.Softmax(by_slices(region, x))
    await asyncio.to_thread(gated.entered.wait, 20)
    stopping = asyncio.ensure_future(server.stop())
    for _ in range(20):
        await asyncio.sleep(0)
    assert not client.call.done()
    gated.gate.set()
    await answer
    await stopping  # well before the grace period is over: the call does not hold it up
    assert await client.call.code() is grpc.StatusCode.UNAVAILABLE
    assert mapped(client.segment) == 0


async def test_requests_by_shared_memory_are_counted_by_their_transport(serve, connect):
    server = await serve(allow_shared_memory=True)
    client = connect(server)
    region = await client.register()
    await client.stub.Softmax(by_slices(region, some((8, 32), "float32")))
    await refused(client.stub.Softmax(by_slices(region, some((8, 32), "float32"), destination=TENSORS_START + 4)))

    def count(code):
        labels = {"method": "Softmax", "transport": "shared_memory", "code": code}
        return server._metrics.registry.get_sample_value("softmaxd_request_seconds_count", labels)

    assert (count("OK"), count("INVALID_ARGUMENT"), count("NOT_FOUND")) == (1, 1, 0)
