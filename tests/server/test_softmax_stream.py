from __future__ import annotations

import asyncio
import logging

import grpc
import numpy as np
from softmaxd_proto.v1 import softmax_pb2
from softmaxd_proto.v1.softmax_pb2_grpc import SoftmaxServiceStub
from softmaxd_server.backends.reference import NumpyBackend
from softmaxd_server.softmax_stream import READ_AHEAD

PATH = "/softmaxd.v1.SoftmaxService/SoftmaxStream"
OK = 0
INVALID_ARGUMENT = grpc.StatusCode.INVALID_ARGUMENT.value[0]


async def _exchange(channel, messages):
    """Send bytes, return the parsed answers."""

    async def send():
        for message in messages:
            yield message

    call = channel.stream_stream(PATH)(send())
    answers = [softmax_pb2.SoftmaxStreamResponse.FromString(answer) async for answer in call]
    assert await call.code() is grpc.StatusCode.OK
    return answers


def _streamed(make_request, *arguments, **fields):
    return make_request(*arguments, kind=softmax_pb2.SoftmaxStreamRequest, **fields).SerializeToString()


async def test_stream_of_many_tensors_keeps_ids_order_and_values(serve, dial, make_request, read_answer):
    server = await serve()
    sizes = [3, 50_000, 7, 120_000, 1, 2000, 90_000, 4] * 3  # on the event loop and on worker threads, mixed
    arrays = [np.random.default_rng(i).standard_normal((1, size)).astype(np.float32) for i, size in enumerate(sizes)]
    messages = [_streamed(make_request, x, id=f"t{i}") for i, x in enumerate(arrays)]
    answers = await _exchange(dial(server), messages)
    assert [answer.id for answer in answers] == [f"t{i}" for i in range(len(sizes))]
    reference = NumpyBackend()
    for x, answer in zip(arrays, answers, strict=True):
        assert not answer.HasField("status")
        assert read_answer(answer).tobytes() == reference.softmax(x).tobytes()


async def test_bad_tensor_among_good_ones_gets_its_own_status(serve, dial, make_request, bad_tensor):
    fields, said = bad_tensor
    messages = [
        _streamed(make_request, id="first"),
        _streamed(make_request, id="bad", **fields),
        _streamed(make_request, id="last"),
    ]
    first, bad, last = await _exchange(dial(await serve()), messages)
    assert [first.id, bad.id, last.id] == ["first", "bad", "last"]
    assert [first.status.code, bad.status.code, last.status.code] == [OK, INVALID_ARGUMENT, OK]
    assert bad.payload == b""
    for part in said:
        assert part in bad.status.message


async def test_malformed_message_gets_a_status_without_id_and_the_stream_goes_on(serve, dial, make_request):
    bad, good = await _exchange(dial(await serve()), [b"\xff\xff", _streamed(make_request, id="good")])
    assert (bad.id, bad.status.code) == ("", INVALID_ARGUMENT)
    assert "softmaxd.v1.SoftmaxStreamRequest" in bad.status.message
    assert (good.id, good.status.code) == ("good", OK)


async def test_message_over_the_limit_gets_a_status_and_the_stream_goes_on(serve, dial, make_request):
    server = await serve(max_message_bytes=1_000_000)
    messages = [_streamed(make_request, np.zeros((1, 300_000)), id="big"), _streamed(make_request, id="small")]
    big, small = await _exchange(dial(server), messages)
    assert (big.id, big.status.code) == ("big", grpc.StatusCode.RESOURCE_EXHAUSTED.value[0])
    assert "--max-message-bytes=1000000" in big.status.message
    assert (small.id, small.status.code) == ("small", OK)


async def test_internal_fault_in_a_stream_shows_an_id_and_the_stream_goes_on(serve, dial, make_request, faulty, caplog):
    messages = [_streamed(make_request, id="bad"), _streamed(make_request, id="empty", shape=[0], payload=b"")]
    with caplog.at_level(logging.ERROR):
        bad, empty = await _exchange(dial(await serve(faulty)), messages)
    assert (bad.id, bad.status.code) == ("bad", grpc.StatusCode.INTERNAL.value[0])
    assert bad.status.message.startswith("internal error, request id ")
    assert "secret" not in bad.status.message
    assert "secret detail" in caplog.text
    assert empty.status.code == OK


async def test_stream_without_tensors_ends_well(serve, dial):
    assert await _exchange(dial(await serve()), []) == []


async def test_stream_reads_no_further_ahead_than_its_bound(serve, dial, make_request, gated):
    server = await serve(gated)
    call = dial(server).stream_stream(PATH)()
    for index in range(3 * READ_AHEAD):
        await call.write(_streamed(make_request, id=str(index)))
    await asyncio.to_thread(gated.entered.wait, 20)
    stub = SoftmaxServiceStub(dial(server))
    for _ in range(20):  # round trips: the server has had its chance to read more
        await stub.GetServerInfo(softmax_pb2.GetServerInfoRequest())
    assert server._metrics.requests_in_flight == READ_AHEAD
    gated.gate.set()
    await call.done_writing()
    assert len([answer async for answer in call]) == 3 * READ_AHEAD


async def test_cancelled_stream_leaves_the_server_serving(serve, dial, make_request, gated, caplog, until):
    server = await serve(gated)
    channel = dial(server)
    call = channel.stream_stream(PATH)()
    for index in range(3 * READ_AHEAD):
        await call.write(_streamed(make_request, id=str(index)))
    await asyncio.to_thread(gated.entered.wait, 20)
    assert server._metrics.streams_open == 1
    with caplog.at_level(logging.WARNING):
        call.cancel()
        gated.gate.set()
        answers = await _exchange(channel, [_streamed(make_request, id="next")])
        assert [answer.id for answer in answers] == ["next"]
        await until(lambda: server._metrics.streams_open == server._metrics.requests_in_flight == 0)
    assert caplog.text == ""


async def test_deadline_of_a_stream_leaves_the_server_serving(serve, dial, make_request, gated):
    server = await serve(gated)
    channel = dial(server)
    call = channel.stream_stream(PATH)(timeout=0.1)
    await call.write(_streamed(make_request))
    assert await call.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    gated.gate.set()
    answers = await _exchange(channel, [_streamed(make_request, id="next")])
    assert [answer.id for answer in answers] == ["next"]


async def test_200_idle_streams_do_not_starve_unary_calls(serve, dial, make_request):
    server = await serve()
    channel = dial(server)
    open_stream = channel.stream_stream(PATH)
    streams = [open_stream() for _ in range(200)]
    for index, call in enumerate(streams):
        await call.write(_streamed(make_request, id=str(index)))
        answer = softmax_pb2.SoftmaxStreamResponse.FromString(await call.read())
        assert answer.id == str(index)
    assert server._metrics.streams_open == 200
    stub = SoftmaxServiceStub(channel)
    answers = await asyncio.gather(*(stub.Softmax(make_request(id=str(i))) for i in range(50)))
    assert [answer.id for answer in answers] == [str(i) for i in range(50)]
    for call in streams:
        await call.done_writing()
        assert await call.code() is grpc.StatusCode.OK


async def test_stopping_server_ends_a_quiet_stream_with_unavailable(serve, dial, make_request):
    server = await serve(grace=20)
    call = dial(server).stream_stream(PATH)()
    await call.write(_streamed(make_request, id="only"))
    assert softmax_pb2.SoftmaxStreamResponse.FromString(await call.read()).id == "only"
    await asyncio.wait_for(server.stop(), 10)  # well before the grace period ends
    assert await call.code() is grpc.StatusCode.UNAVAILABLE
    assert "draining" in await call.details()


async def test_stopping_server_finishes_a_busy_stream(serve, dial, make_request, gated, until):
    server = await serve(gated, grace=20)
    call = dial(server).stream_stream(PATH)()
    await call.write(_streamed(make_request, id="busy"))
    await call.done_writing()
    await asyncio.to_thread(gated.entered.wait, 20)
    stopping = asyncio.ensure_future(server.stop())
    await until(lambda: server._health._is_draining)
    gated.gate.set()
    answers = [softmax_pb2.SoftmaxStreamResponse.FromString(answer) async for answer in call]
    assert [answer.id for answer in answers] == ["busy"]
    assert await call.code() is grpc.StatusCode.OK
    await stopping
