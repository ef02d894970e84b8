from __future__ import annotations

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from softmaxd_server.softmax_servicer import SERVICE

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
SERVICE_UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


@pytest.mark.parametrize("service", ["", SERVICE])
async def test_check_of_running_server_is_serving(serve, dial, service):
    stub = health_pb2_grpc.HealthStub(dial(await serve()))
    assert (await stub.Check(health_pb2.HealthCheckRequest(service=service))).status == SERVING


async def test_check_of_unknown_service_is_not_found(serve, dial):
    stub = health_pb2_grpc.HealthStub(dial(await serve()))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.Check(health_pb2.HealthCheckRequest(service="other"))
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


@pytest.mark.parametrize(("service", "first"), [("", SERVING), (SERVICE, SERVING), ("other", SERVICE_UNKNOWN)])
async def test_watch_tells_the_status_and_ends_when_the_server_stops(serve, dial, service, first):
    server = await serve(grace=20)
    call = health_pb2_grpc.HealthStub(dial(server)).Watch(health_pb2.HealthCheckRequest(service=service))
    assert (await call.read()).status == first
    await server.stop()
    if first == SERVING:
        assert (await call.read()).status == NOT_SERVING
    assert await call.code() is grpc.StatusCode.UNAVAILABLE


async def test_watch_still_hears_of_the_stop_after_another_watch_has_ended(serve, dial):
    server = await serve()
    stub = health_pb2_grpc.HealthStub(dial(server))
    leaving, staying = (stub.Watch(health_pb2.HealthCheckRequest(service=SERVICE)) for _ in range(2))
    assert (await leaving.read()).status == SERVING
    assert (await staying.read()).status == SERVING
    leaving.cancel()
    assert (await stub.Check(health_pb2.HealthCheckRequest())).status == SERVING
    await server.stop()
    assert (await staying.read()).status == NOT_SERVING
