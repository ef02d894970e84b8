from __future__ import annotations

import asyncio

import grpc
import numpy as np
import pytest
from softmaxd_proto.v1 import softmax_pb2
from softmaxd_proto.v1.softmax_pb2_grpc import SoftmaxServiceStub
from softmaxd_server.admission import Admission
from softmaxd_server.errors import OverloadedError


def test_request_counts_twice_for_its_answer_until_it_leaves():
    admission = Admission(100)
    admission.admit(20)
    admission.enter(10)
    assert admission.in_flight_bytes == 60
    admission.leave(20)
    admission.leave(10)
    assert admission.in_flight_bytes == 0


def test_unary_request_without_room_is_refused_and_not_counted():
    admission = Admission(100)
    admission.admit(30)
    with pytest.raises(OverloadedError, match=r"holds 60 bytes.*up to 100 \(--in-flight-bytes=100\).*21 bytes"):
        admission.admit(21)
    assert admission.in_flight_bytes == 60
    admission.admit(20)


def test_request_beyond_the_limit_is_let_in_where_it_is_alone():
    admission = Admission(100)
    admission.admit(1000)
    with pytest.raises(OverloadedError):
        admission.admit(1)


async def _started(admission):
    task = asyncio.ensure_future(admission.room())
    await asyncio.sleep(0)
    return task


async def test_streams_wait_for_room_in_their_order():
    admission = Admission(100)
    await admission.room()
    admission.enter(50)
    first, second = await _started(admission), await _started(admission)
    assert not first.done()
    admission.leave(50)
    await first
    # The first has read as much as there is room for, so that the second goes on waiting.
    admission = Admission(100)
    admission.enter(50)
    admission.enter(50)
    first, second = await _started(admission), await _started(admission)
    admission.leave(50)
    await asyncio.sleep(0)
    assert (first.done(), second.done()) == (False, False)
    admission.leave(25)
    await first
    assert not second.done()
    admission.enter(10)
    await second


async def test_stream_that_finds_nothing_to_read_holds_up_no_other():
    admission = Admission(100)
    admission.enter(50)
    waiting = [await _started(admission) for _ in range(3)]
    admission.leave(50)  # nothing is in flight any more, and nobody may ever read
    await asyncio.gather(*waiting)


async def test_stream_that_ends_while_it_waits_loses_no_turn_of_another():
    admission = Admission(100)
    admission.enter(25)
    admission.enter(25)
    first, second = await _started(admission), await _started(admission)
    first.cancel()
    await asyncio.sleep(0)
    admission.leave(25)
    await second


async def test_unary_requests_over_the_bound_are_refused_while_others_are_in_flight(serve, dial, make_request, gated):
    server = await serve(gated, in_flight_bytes=4096)
    stub = SoftmaxServiceStub(dial(server))
    large = make_request(np.zeros((1, 512), np.float32))  # 2 KB, and as much for its answer
    first = stub.Softmax(large)
    await asyncio.to_thread(gated.entered.wait, 20)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.Softmax(large)
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "--in-flight-bytes=4096" in caught.value.details()
    gated.gate.set()
    assert len((await first).payload) == 2048
    assert len((await stub.Softmax(large)).payload) == 2048


async def test_streams_over_the_bound_are_read_later_and_answered_in_full(serve, dial, make_request, gated):
    server = await serve(gated, in_flight_bytes=4096)
    requests = [
        make_request(np.zeros((1, 512), np.float32), kind=softmax_pb2.SoftmaxStreamRequest, id=str(index))
        for index in range(6)
    ]

    async def exchange():
        call = SoftmaxServiceStub(dial(server)).SoftmaxStream(iter(requests))
        return [answer.id async for answer in call if len(answer.payload) == 2048]

    exchanges = [asyncio.ensure_future(exchange()) for _ in range(4)]
    await asyncio.to_thread(gated.entered.wait, 20)
    stub = SoftmaxServiceStub(dial(server))
    for _ in range(20):  # round trips: the server has had its chance to read more
        await stub.GetServerInfo(softmax_pb2.GetServerInfoRequest())
    # The stream that came first filled the bound; each other one was being read already, and has one message.
    assert server._metrics.requests_in_flight <= 5
    gated.gate.set()
    assert await asyncio.gather(*exchanges) == [[str(index) for index in range(6)]] * 4


async def test_bytes_in_flight_are_back_at_nothing_after_cancelled_calls(serve, dial, make_request, gated, until):
    server = await serve(gated)
    stub = SoftmaxServiceStub(dial(server))
    stream = stub.SoftmaxStream()
    for _ in range(3):
        await stream.write(make_request(kind=softmax_pb2.SoftmaxStreamRequest))
    unary = stub.Softmax(make_request())
    await asyncio.to_thread(gated.entered.wait, 20)
    stream.cancel()
    unary.cancel()
    gated.gate.set()
    registry = server._metrics.registry
    await until(lambda: registry.get_sample_value("softmaxd_in_flight_bytes") == 0)
