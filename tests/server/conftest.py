"""Backends, servers and messages for the tests of the server."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from harness import simulated_gpu, tables
from softmaxd_proto import dtypes
from softmaxd_proto.v1 import softmax_pb2
from softmaxd_server.app import Server
from softmaxd_server.backends import BACKENDS, select
from softmaxd_server.backends.base import Backend
from softmaxd_server.backends.reference import NumpyBackend
from softmaxd_server.config import Config
from softmaxd_server.errors import BackendUnavailableError

GPUS = ("hip", "cuda")
# `make test-gpu` names the one that it is about: it must be there, and the simulated one is left to `make test`.
TESTED_GPU = os.environ.get("SOFTMAXD_TEST_GPU")


def _can_be_had(name: str) -> bool:
    try:
        select(name).close()
    except BackendUnavailableError:
        assert name != TESTED_GPU, f"backend {name} cannot be had"
        return False
    return True


HAD = [name for name in BACKENDS if _can_be_had(name)]
SIMULATED = [] if TESTED_GPU else [simulated_gpu.NAME]


@pytest.fixture
def open_backend() -> Iterator[Callable[..., Backend]]:
    """Open a backend with options of `Config`; the simulated GPU has the name "simt". Closed at the end."""
    opened: list[Backend] = []

    def open_one(name: str, **options: Any) -> Backend:
        if TESTED_GPU and name == simulated_gpu.NAME:
            pytest.skip(f"tests the simulated GPU, and this run is about {TESTED_GPU}")
        config = Config.model_construct(**options)
        backend = simulated_gpu.open_backend(config) if name == simulated_gpu.NAME else select(name, config)
        assert backend.name == name
        opened.append(backend)
        return backend

    yield open_one
    for backend in opened:
        backend.close()


@pytest.fixture
def tuning_file(tmp_path: Path) -> Callable[..., Path]:
    """Write a tuning table with rules, each the fields of `tuning.Choice`; its other fields can be given."""

    def write(*choices: dict[str, Any], **fields: Any) -> Path:
        path = tmp_path / f"table_{len(list(tmp_path.iterdir()))}.json"
        path.write_text(tables.text(*choices, **fields))
        return path

    return write


@pytest.fixture(params=[*HAD, *SIMULATED])
def backend(request, open_backend):
    """Every backend that can be had here, proven to be the one that was asked for, and the simulated GPU.

    test_backends.py says of the others why they cannot.
    """
    return open_backend(request.param)


@pytest.fixture(params=[*(name for name in HAD if name in GPUS), *SIMULATED])
def gpu(request, open_backend):
    """Open the GPU backends that can be had here, the simulated one among them, with options of `Config`."""

    def open_one(**options: Any) -> Backend:
        return open_backend(request.param, **options)

    return open_one


class GatedBackend(NumpyBackend):
    """Waits inside `answer` until the test lets it go; runs on worker threads only."""

    name = "gated"
    inline_bytes = 0

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.gate = threading.Event()
        self.calls = 0

    def answer(self, prefix, source, work):
        self.calls += 1
        self.entered.set()
        assert self.gate.wait(20), "the test never opened the gate"
        return super().answer(prefix, source, work)


class FaultyBackend(NumpyBackend):
    """Fails with an error whose text no client may see."""

    name = "faulty"
    error: Exception = RuntimeError("secret detail")

    def answer(self, prefix, source, work):
        raise self.error


@pytest.fixture
def gated():
    backend = GatedBackend()
    yield backend
    backend.gate.set()


@pytest.fixture
def faulty():
    return FaultyBackend()


@pytest.fixture
async def serve() -> AsyncIterator[Callable[..., Awaitable[Server]]]:
    """Start servers on free ports, numpy unless told otherwise; stop them at the end."""
    servers: list[Server] = []

    async def start(backend: Any = None, **options: Any) -> Server:
        config = Config(**{"port": 0, "metrics_port": 0, "backend": "numpy", "grace": 5.0, **options})
        server = Server(config, backend)
        await server.start()
        servers.append(server)
        return server

    yield start
    for server in servers:
        await server.stop(0)


@pytest.fixture
async def dial() -> AsyncIterator[Callable[[Server], grpc.aio.Channel]]:
    """Open channels, each with its own connection; close them at the end."""
    channels: list[grpc.aio.Channel] = []

    def connect(server: Server) -> grpc.aio.Channel:
        options = [
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.max_send_message_length", -1),
            ("grpc.max_receive_message_length", -1),
        ]
        channel = grpc.aio.insecure_channel(f"127.0.0.1:{server.port}", options=options)
        channels.append(channel)
        return channel

    yield connect
    for channel in channels:
        await channel.close()


@pytest.fixture
def make_request() -> Callable[..., Any]:
    """Make a SoftmaxRequest, or another `kind` with its fields, for an array; each field can be given by hand."""

    def make(
        x: Any = ((1.0, 2.0),), dtype: str = "float32", kind: Any = softmax_pb2.SoftmaxRequest, **fields: Any
    ) -> Any:
        element = dtypes.BY_NAME[dtype]
        array = np.asarray(x, element.numpy)
        return kind(**{"data_type": element.number, "shape": array.shape, "payload": array.tobytes(), **fields})

    return make


@pytest.fixture
def read_answer() -> Callable[[Any], np.ndarray]:
    """Read the array out of an answer."""

    def read(answer: Any) -> np.ndarray:
        return np.frombuffer(answer.payload, dtypes.BY_NUMBER[answer.data_type].numpy).reshape(list(answer.shape))

    return read


_BAD = {
    # name -> (fields of the request, what the message must contain)
    "unspecified_type": ({"data_type": 0}, ["DATA_TYPE_UNSPECIFIED", "float32, float16, bfloat16"]),
    "unknown_type": ({"data_type": 7}, ["data_type 7", "float32, float16, bfloat16"]),
    "rank_0": ({"shape": []}, ["rank 0", "1 to 32"]),
    "rank_33": ({"shape": [1] * 33}, ["rank 33", "1 to 32"]),
    "negative_dimension": ({"shape": [2, -1]}, ["[2, -1]", "0 or more"]),
    "two_negative_dimensions": ({"shape": [-1, -2]}, ["[-1, -2]", "0 or more"]),
    "overflowing_shape": ({"shape": [2**32, 2**32]}, ["18446744073709551616 elements", str(2**63 - 1)]),
    "short_payload": ({"payload": b"\0" * 7}, ["7 bytes", "expected 8", "[1, 2]", "float32"]),
    "long_payload": ({"payload": b"\0" * 9}, ["9 bytes", "expected 8", "[1, 2]", "float32"]),
    "missing_payload": ({"payload": b""}, ["0 bytes", "expected 8"]),
    "payload_of_empty_shape": ({"shape": [0, 2]}, ["8 bytes", "expected 0"]),
}


@pytest.fixture(params=list(_BAD))
def bad_tensor(request):
    """A request's fields that make it invalid, and what the message must contain."""
    return _BAD[request.param]


@pytest.fixture
def until() -> Callable[[Callable[[], bool]], Awaitable[None]]:
    """Wait, letting the event loop run, until a condition holds that no event tells of."""

    async def wait(condition: Callable[[], bool]) -> None:
        ends = time.monotonic() + 20
        while not condition():
            assert time.monotonic() < ends, "the condition did not come true"
            await asyncio.sleep(0)  # see the docstring

    return wait
