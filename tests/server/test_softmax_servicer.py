from __future__ import annotations

import asyncio
import logging

import grpc
import numpy as np
import pytest
from softmaxd_proto.v1 import softmax_pb2
from softmaxd_proto.v1.softmax_pb2_grpc import SoftmaxServiceStub
from softmaxd_server.backends.reference import NumpyBackend

PATH = "/softmaxd.v1.SoftmaxService/"


async def _refusal(call):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code(), caught.value.details()


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("shape", [(5,), (3, 40), (300, 300)], ids=str)
async def test_softmax_through_generated_stub_has_the_bits_of_the_backend(
    backend, open_backend, serve, dial, make_request, read_answer, dtype, shape
):
    server = await serve(open_backend(backend.name))
    stub = SoftmaxServiceStub(dial(server))
    request = make_request(np.random.default_rng(2).standard_normal(shape) * 5, dtype, id="one")
    answer = await stub.Softmax(request)
    assert answer.id == "one"
    assert answer.execution.variant in {variant.name for variant in backend.variants}
    assert read_answer(answer).tobytes() == backend.softmax(read_answer(request)).tobytes()
    assert (await stub.GetServerInfo(softmax_pb2.GetServerInfoRequest())).backend == backend.name


async def test_bad_tensor_is_invalid_argument_with_what_was_got(serve, dial, make_request, bad_tensor):
    fields, said = bad_tensor
    stub = SoftmaxServiceStub(dial(await serve()))
    code, text = await _refusal(stub.Softmax(make_request(**fields)))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    for part in said:
        assert part in text
    assert (await stub.Softmax(make_request(id="next"))).id == "next"


async def test_malformed_message_is_invalid_argument(serve, dial):
    call = dial(await serve()).unary_unary(PATH + "Softmax")
    code, text = await _refusal(call(b"\xff\xff"))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "softmaxd.v1.SoftmaxRequest" in text


async def test_empty_tensor_gets_an_empty_answer(serve, dial, make_request):
    stub = SoftmaxServiceStub(dial(await serve()))
    answer = await stub.Softmax(make_request(shape=[0, 7], payload=b"", id="e"))
    assert (answer.id, list(answer.shape), answer.payload) == ("e", [0, 7], b"")


@pytest.mark.parametrize("elements", [300_000, 2_000_000], ids=["moderately", "beyond_what_core_takes"])
async def test_message_over_the_limit_is_resource_exhausted(serve, dial, make_request, elements):
    stub = SoftmaxServiceStub(dial(await serve(max_message_bytes=1_000_000)))
    code, text = await _refusal(stub.Softmax(make_request(np.zeros((1, elements)))))
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    if elements == 300_000:
        assert "--max-message-bytes=1000000" in text
    assert (await stub.Softmax(make_request(id="next"))).id == "next"


async def test_internal_fault_shows_an_id_and_no_detail_and_is_logged(serve, dial, make_request, faulty, caplog):
    stub = SoftmaxServiceStub(dial(await serve(faulty)))
    with caplog.at_level(logging.ERROR):
        code, text = await _refusal(stub.Softmax(make_request(id="mine")))
    assert code is grpc.StatusCode.INTERNAL
    assert text.startswith("internal error, request id ")
    assert "secret" not in text
    assert text.rpartition(" ")[2] in caplog.text
    assert "secret detail" in caplog.text
    assert "'mine'" in caplog.text


async def test_fault_in_server_info_shows_an_id_and_no_detail(serve, dial, faulty, caplog):
    stub = SoftmaxServiceStub(dial(await serve(faulty)))
    faulty.pools = faulty.answer
    with caplog.at_level(logging.ERROR):
        code, text = await _refusal(stub.GetServerInfo(softmax_pb2.GetServerInfoRequest()))
    assert code is grpc.StatusCode.INTERNAL
    assert text.startswith("internal error, request id ")
    del faulty.pools


async def test_deadline_that_passes_while_waiting_skips_the_kernel(serve, dial, make_request, gated, until):
    server = await serve(gated)
    stub = SoftmaxServiceStub(dial(server))
    blockers = [stub.Softmax(make_request()) for _ in range(server._executor._max_workers)]
    await asyncio.to_thread(gated.entered.wait, 20)
    await until(lambda: gated.calls == len(blockers))
    code, _ = await _refusal(stub.Softmax(make_request(), timeout=0.05))
    assert code is grpc.StatusCode.DEADLINE_EXCEEDED
    gated.gate.set()
    await asyncio.gather(*blockers)
    assert (await stub.Softmax(make_request(id="next"))).id == "next"
    assert gated.calls == len(blockers) + 1


async def test_cancelled_call_leaves_the_server_serving(serve, dial, make_request, gated, caplog):
    server = await serve(gated)
    stub = SoftmaxServiceStub(dial(server))
    call = stub.Softmax(make_request())
    waiting = asyncio.ensure_future(_wait(call))
    await asyncio.to_thread(gated.entered.wait, 20)
    call.cancel()
    await waiting
    gated.gate.set()
    with caplog.at_level(logging.WARNING):
        assert (await stub.Softmax(make_request(id="next"))).id == "next"
    assert caplog.text == ""
    assert server._metrics.requests_in_flight == 0


async def _wait(call):
    try:
        await call
    except asyncio.CancelledError:
        assert call.cancelled()


async def test_large_request_does_not_hold_up_a_small_one(serve, dial, make_request):
    class LargeIsGated(NumpyBackend):
        name = "large_is_gated"

        def answer(self, prefix, source, work):
            if work.rows > 1:
                loop.call_soon_threadsafe(entered.set_result, None)
                asyncio.run_coroutine_threadsafe(gate.wait(), loop).result(20)
            return super().answer(prefix, source, work)

    loop, gate = asyncio.get_running_loop(), asyncio.Event()
    entered = loop.create_future()
    stub = SoftmaxServiceStub(dial(await serve(LargeIsGated())))
    large = asyncio.ensure_future(_awaited(stub.Softmax(make_request(np.zeros((100, 1000)), id="large"))))
    await entered
    assert (await stub.Softmax(make_request(id="small"))).id == "small"
    assert not large.done()
    gate.set()
    assert (await large).id == "large"


async def _awaited(call):
    return await call
