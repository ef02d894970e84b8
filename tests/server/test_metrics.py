from __future__ import annotations

import grpc
import numpy as np
import pytest
from harness.metrics import samples
from prometheus_client import generate_latest
from softmaxd_proto.v1 import softmax_pb2
from softmaxd_proto.v1.softmax_pb2_grpc import SoftmaxServiceStub
from softmaxd_server.backends.base import PoolUse
from softmaxd_server.backends.reference import NumpyBackend
from softmaxd_server.metrics import BUCKETS_SECONDS, Metrics
from softmaxd_server.statuses import ALL_CODES


def _samples(metrics):
    return samples(generate_latest(metrics.registry).decode())


def _count(samples, method, code):
    return samples["softmaxd_request_seconds_count", ("code", code), ("method", method), ("transport", "inline")]


def test_buckets_run_from_10_us_to_10_s_in_1_2_5_steps():
    assert BUCKETS_SECONDS[:4] == (1e-5, 2e-5, 5e-5, 1e-4)
    assert BUCKETS_SECONDS[-2:] == (5.0, 10.0)
    assert list(BUCKETS_SECONDS) == sorted(set(BUCKETS_SECONDS))


def test_every_method_and_code_is_there_before_the_first_request():
    samples = _samples(Metrics([code.name for code in ALL_CODES]))
    for method in ("Softmax", "SoftmaxStream", "GetServerInfo"):
        for code in ALL_CODES:
            assert _count(samples, method, code.name) == 0


async def test_metrics_after_requests_count_each_of_them(serve, dial, make_request):
    server = await serve()
    stub = SoftmaxServiceStub(dial(server))
    requests = [make_request(id=str(index)) for index in range(7)]
    sizes = [(request.ByteSize(), (await stub.Softmax(request)).ByteSize()) for request in requests]
    large = make_request(np.zeros((10, 10_000)))
    sizes.append((large.ByteSize(), (await stub.Softmax(large)).ByteSize()))
    bad = make_request(shape=[])
    for _ in range(3):
        with pytest.raises(grpc.aio.AioRpcError):
            await stub.Softmax(bad)
        sizes.append((bad.ByteSize(), 0))
    await stub.GetServerInfo(softmax_pb2.GetServerInfoRequest())

    samples = _samples(server._metrics)
    assert _count(samples, "Softmax", "OK") == 8
    assert _count(samples, "Softmax", "INVALID_ARGUMENT") == 3
    assert _count(samples, "SoftmaxStream", "OK") == 0
    assert _count(samples, "GetServerInfo", "OK") == 1
    assert samples["softmaxd_request_bytes_total",] == sum(request for request, _ in sizes)
    assert samples["softmaxd_response_bytes_total",] == sum(answer for _, answer in sizes)
    assert samples["softmaxd_requests_in_flight",] == 0
    for phase, count in {"queue": 8, "kernel": 8, "upload": 0, "download": 0}.items():
        assert samples["softmaxd_phase_seconds_count", ("phase", phase)] == count
    total = samples["softmaxd_request_seconds_sum", ("code", "OK"), ("method", "Softmax"), ("transport", "inline")]
    phases = sum(samples["softmaxd_phase_seconds_sum", ("phase", p)] for p in ("queue", "kernel"))
    assert 0 < phases <= total
    info = next(key for key in samples if key[0] == "softmaxd_info")
    assert dict(info[1:])["backend"] == "numpy"


async def test_metrics_of_a_stream_count_each_message(serve, dial, make_request):
    server = await serve()
    stub = SoftmaxServiceStub(dial(server))
    call = stub.SoftmaxStream()
    for fields in ({}, {"shape": []}, {}):
        await call.write(make_request(kind=softmax_pb2.SoftmaxStreamRequest, **fields))
        await call.read()
    samples = _samples(server._metrics)
    assert samples["softmaxd_streams_open",] == 1
    assert _count(samples, "SoftmaxStream", "OK") == 2
    assert _count(samples, "SoftmaxStream", "INVALID_ARGUMENT") == 1
    await call.done_writing()
    assert await call.code() is grpc.StatusCode.OK
    assert _samples(server._metrics)["softmaxd_streams_open",] == 0


async def test_metrics_of_pools_show_their_use_when_scraped(serve):
    class PooledBackend(NumpyBackend):
        name = "pooled"
        use = PoolUse("workspace", 1, 2, 3)

        def pools(self):
            return [self.use]

    backend = PooledBackend()
    server = await serve(backend)
    backend.use = PoolUse("workspace", 10, 20, 30)
    samples = _samples(server._metrics)
    assert samples["softmaxd_pool_bytes", ("pool", "workspace"), ("state", "used")] == 10
    assert samples["softmaxd_pool_bytes", ("pool", "workspace"), ("state", "reserved")] == 20
    assert samples["softmaxd_pool_allocations_total", ("pool", "workspace")] == 30
