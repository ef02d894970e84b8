from __future__ import annotations

import asyncio
import http.client
import os
import re
import signal
import socket
import subprocess
import sys
import threading

import grpc
import numpy as np
import pytest
import softmaxd_proto
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from softmaxd_proto.v1.softmax_pb2_grpc import SoftmaxServiceStub
from softmaxd_server.app import Server
from softmaxd_server.backends.reference import NumpyBackend
from softmaxd_server.config import Config
from softmaxd_server.errors import AddressError, BackendUnavailableError
from softmaxd_server.softmax_servicer import SERVICE


def _status(port, path):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    finally:
        connection.close()


async def test_reflection_lists_the_services(serve, dial):
    stub = reflection_pb2_grpc.ServerReflectionStub(dial(await serve()))
    call = stub.ServerReflectionInfo()
    await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
    answer = await call.read()
    await call.done_writing()
    names = {service.name for service in answer.list_services_response.service}
    assert names == {SERVICE, "grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"}


async def test_description_of_running_server_names_address_metrics_and_backend(serve):
    server = await serve()
    assert server.describe() == (
        f"softmaxd {softmaxd_proto.__version__} listening on 127.0.0.1:{server.port}, metrics on "
        f"http://127.0.0.1:{server.metrics_port}/metrics, backend numpy (numpy, 1 threads)"
    )


async def test_server_without_metrics_port_serves(serve, dial, make_request):
    server = await serve(metrics_port=-1)
    assert server.metrics_port is None
    assert "metrics off" in server.describe()
    assert (await SoftmaxServiceStub(dial(server)).Softmax(make_request(id="a"))).id == "a"


async def test_readiness_comes_after_warm_up_and_goes_with_the_drain(serve, dial, make_request, gated):
    warming, warm = threading.Event(), threading.Event()

    def warm_up():
        warming.set()
        assert warm.wait(20)

    gated.warm_up = warm_up
    server = Server(Config(port=0, metrics_port=0, grace=20), gated)
    starting = asyncio.ensure_future(server.start())
    await asyncio.to_thread(warming.wait, 20)
    assert await asyncio.to_thread(_status, server.metrics_port, "/readyz") == 503
    assert await asyncio.to_thread(_status, server.metrics_port, "/healthz") == 200
    assert server.port == 0
    warm.set()
    await starting
    assert await asyncio.to_thread(_status, server.metrics_port, "/readyz") == 200

    call = SoftmaxServiceStub(dial(server)).Softmax(make_request(id="in flight"))
    await asyncio.to_thread(gated.entered.wait, 20)
    stopping = asyncio.ensure_future(server.stop())
    await asyncio.sleep(0)
    assert await asyncio.to_thread(_status, server.metrics_port, "/readyz") == 503
    assert await asyncio.to_thread(_status, server.metrics_port, "/healthz") == 200
    gated.gate.set()
    assert (await call).id == "in flight"
    await stopping


async def test_warm_up_computes_every_type_before_the_start_returns(serve):
    seen = []

    class RecordingBackend(NumpyBackend):
        name = "recording"

        def softmax(self, x, **options):
            seen.append(x.dtype.name)
            return super().softmax(x, **options)

    await serve(RecordingBackend())
    assert seen == ["float32", "float16", "bfloat16"]


async def test_stop_past_the_grace_period_cuts_off_what_is_in_flight(serve, dial, make_request, gated):
    server = await serve(gated)
    call = SoftmaxServiceStub(dial(server)).Softmax(make_request())
    await asyncio.to_thread(gated.entered.wait, 20)
    stopping = asyncio.ensure_future(server.stop(0.05))
    assert await call.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
    gated.gate.set()
    await stopping


async def test_second_request_to_stop_cuts_off_what_is_in_flight(serve, dial, make_request, gated):
    server = await serve(gated, grace=1000)
    call = SoftmaxServiceStub(dial(server)).Softmax(make_request())
    await asyncio.to_thread(gated.entered.wait, 20)
    serving = asyncio.ensure_future(server.serve())
    server.request_stop()
    await asyncio.sleep(0)
    server.request_stop()
    assert await call.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
    gated.gate.set()
    await serving


@pytest.mark.parametrize("flag", ["port", "metrics_port"])
async def test_taken_port_is_an_address_error_that_names_the_flag(serve, flag):
    other = await serve()
    taken = other.port if flag == "port" else other.metrics_port
    with pytest.raises(AddressError, match=rf"127\.0\.0\.1:{taken} \(--{flag.replace('_', '-')}\)"):
        await serve(**{flag: taken})


async def test_unavailable_backend_fails_the_start():
    with pytest.raises(BackendUnavailableError):
        await Server(Config(port=0, metrics_port=0, backend="hip")).start()


async def test_unix_socket_serves_beside_tcp_and_goes_with_the_server(serve, dial, make_request, tmp_path):
    path = tmp_path / "softmaxd.sock"
    server = await serve(unix_socket=path)
    assert f"listening on 127.0.0.1:{server.port} and unix:{path}, metrics on" in server.describe()
    async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
        assert (await SoftmaxServiceStub(channel).Softmax(make_request(id="a"))).id == "a"
    assert (await SoftmaxServiceStub(dial(server)).Softmax(make_request(id="b"))).id == "b"
    await server.stop(0)
    assert not path.exists()


async def test_unix_socket_that_a_killed_server_left_is_taken(serve, make_request, tmp_path):
    path = tmp_path / "softmaxd.sock"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    await serve(unix_socket=path)
    async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
        assert (await SoftmaxServiceStub(channel).Softmax(make_request(id="a"))).id == "a"


async def test_unix_socket_of_another_server_is_an_address_error_and_stays_its_own(serve, make_request, tmp_path):
    path = tmp_path / "softmaxd.sock"
    await serve(unix_socket=path)
    with pytest.raises(AddressError, match=r"--unix-socket\): another server listens on it"):
        await serve(unix_socket=path)
    async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
        assert (await SoftmaxServiceStub(channel).Softmax(make_request(id="a"))).id == "a"


async def test_unix_socket_where_a_file_is_is_an_address_error_and_the_file_stays(serve, tmp_path):
    path = tmp_path / "precious"
    path.write_text("data")
    with pytest.raises(AddressError, match="something else than a socket"):
        await serve(unix_socket=path)
    assert path.read_text() == "data"


async def test_unix_socket_in_a_missing_folder_is_an_address_error(serve, tmp_path):
    with pytest.raises(AddressError, match="--unix-socket"):
        await serve(unix_socket=tmp_path / "missing" / "softmaxd.sock")


def _command(*flags):
    return [sys.executable, "-m", "softmaxd_server", "--port", "0", "--metrics-port", "0", *flags]


def test_taken_port_of_the_command_exits_1_with_a_clear_message():
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        done = subprocess.run(
            _command("--backend", "numpy", "--port", str(port)), capture_output=True, text=True, timeout=30, check=False
        )
    assert done.returncode == 1
    assert f"softmaxd: cannot listen on 127.0.0.1:{port} (--port)" in done.stderr
    assert "Traceback" not in done.stderr


def test_unavailable_backend_of_the_command_exits_1_with_a_clear_message():
    done = subprocess.run(_command("--backend", "hip"), capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 1
    assert "softmaxd: " in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_signal_under_load_finishes_accepted_requests_and_exits_0(make_request, read_answer, number):
    process = await asyncio.create_subprocess_exec(
        *_command("--backend", "numpy"), stderr=asyncio.subprocess.PIPE, env={**os.environ, "SOFTMAXD_GRACE": "20"}
    )
    try:
        line = ""
        while "listening" not in line:
            line = (await asyncio.wait_for(process.stderr.readline(), 20)).decode()
            assert line, "the server ended"
        target = re.search(r"listening on (\S+),", line).group(1)
        request = make_request(np.zeros((20, 2000)))
        answered = asyncio.Event()
        refused = []

        async def load(stub):
            while True:
                try:
                    answer = await stub.Softmax(request)
                except grpc.aio.AioRpcError as error:
                    refused.append(error)
                    return
                np.testing.assert_array_equal(read_answer(answer), np.full((20, 2000), np.float32(1 / 2000)))
                answered.set()

        async with grpc.aio.insecure_channel(target) as channel:
            loads = [asyncio.ensure_future(load(SoftmaxServiceStub(channel))) for _ in range(8)]
            await asyncio.wait_for(answered.wait(), 20)
            process.send_signal(number)
            await asyncio.wait_for(asyncio.gather(*loads), 20)
        assert await asyncio.wait_for(process.wait(), 20) == 0
        # Each loop ends with the first call that came too late; none was broken off.
        assert len(refused) == 8
        assert [error.details() for error in refused if error.code() is not grpc.StatusCode.UNAVAILABLE] == []
        assert b"Traceback" not in await process.stderr.read()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
