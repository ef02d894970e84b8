"""Wires the server, starts it, drains it."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import softmaxd_proto
from grpc_health.v1 import health_pb2, health_pb2_grpc  # type: ignore[import-untyped] # its stubs are a distribution of their own
from grpc_reflection.v1alpha import reflection  # type: ignore[import-untyped] # its stubs are a distribution of their own

from softmaxd_server import backends
from softmaxd_server.admission import Admission
from softmaxd_server.backends import native
from softmaxd_server.backends.base import Backend, DeviceBackend
from softmaxd_server.config import Config, user_ids
from softmaxd_server.cpus import usable_cpus
from softmaxd_server.dataplane import Dataplane
from softmaxd_server.device_memory import DeviceMemoryOpener
from softmaxd_server.errors import AddressError, BackendUnavailableError
from softmaxd_server.health import HealthServicer
from softmaxd_server.memory_servicer import MemoryServicer
from softmaxd_server.metrics import Metrics
from softmaxd_server.metrics_http import MetricsServer
from softmaxd_server.regions import Opener, Regions
from softmaxd_server.shared_memory import SharedMemoryOpener
from softmaxd_server.softmax_servicer import SERVICE, SoftmaxServicer
from softmaxd_server.statuses import ALL_CODES
from softmaxd_server.transports import DEVICE_MEMORY, SHARED_MEMORY

_log = logging.getLogger(__name__)
_HEALTH_SERVICE = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
# gRPC ends a call itself, without naming our flag, beyond twice the limit; health and reflection need some room too.
_MIN_RECEIVE_BYTES = 4 * 1024 * 1024
_MAX_RECEIVE_BYTES = 2**31 - 1


class Server:
    """One server inside the running event loop: `start`, then `serve` or `stop`; not to be started again.

    Args:
        config: What it is told.
        backend: Computes, instead of the one that the configuration names. The server closes it.
    """

    def __init__(self, config: Config, backend: Backend | None = None) -> None:
        self._config = config
        self._backend = backend
        self._is_ready = False
        self._stop_asked = asyncio.Event()
        self._metrics = Metrics([code.name for code in ALL_CODES])
        self._metrics_server: MetricsServer | None = None
        self._executor = ThreadPoolExecutor(
            # Two at least: one request's decoding overlaps with another one's kernel, which has its own threads.
            max_workers=min(4, max(2, usable_cpus())),
            thread_name_prefix="softmaxd-worker",
        )
        self._grpc: grpc.aio.Server | None = None
        self._cut_off: asyncio.Future[None] | None = None
        self._health = HealthServicer(("", SERVICE))
        self._servicer: SoftmaxServicer | None = None
        self._memory_servicer: MemoryServicer | None = None
        self.port = 0
        """The port that gRPC listens on, once started."""

    @property
    def metrics_port(self) -> int | None:
        """The port of /metrics, /healthz and /readyz, once started; None where they are off."""
        return None if self._metrics_server is None else self._metrics_server.port

    async def start(self) -> None:
        """Open and warm up the backend, listen, become ready.

        Raises:
            AddressError: A port cannot be bound.
            BackendUnavailableError: The configured backend cannot be had.
        """
        try:
            self._start_metrics()
            loop = asyncio.get_running_loop()
            backend = await loop.run_in_executor(self._executor, self._open_backend)
            self._grpc = self._make_grpc(backend)
            await self._grpc.start()
        except BaseException:
            await self.stop(0)
            raise
        self._health.set_serving()
        self._is_ready = True

    async def serve(self) -> None:
        """Wait for `request_stop`, then drain."""
        await self._stop_asked.wait()
        await self.stop()

    def request_stop(self) -> None:
        """Let `serve` drain and return; asked again, cut off what is in flight. Call it in the event loop's thread."""
        if self._stop_asked.is_set() and self._grpc is not None:
            self._cut_off = asyncio.ensure_future(self._grpc.stop(None))
        self._stop_asked.set()

    async def stop(self, grace: float | None = None) -> None:
        """Stop accepting, finish what is in flight, give everything back.

        Args:
            grace: Seconds to finish in flight; None takes the configured ones.
        """
        grace = self._config.grace if grace is None else grace
        self._is_ready = False
        self._health.drain()
        if self._grpc is not None and self._servicer is not None and self._memory_servicer is not None:
            ending_streams = asyncio.create_task(self._servicer.end_quiet_streams(self._memory_servicer.end_calls))
            if grace > 0:
                await self._servicer.refuse_new_calls()
            await self._grpc.stop(grace)
            ending_streams.cancel()
        # A worker may still compute for a client that was cut off.
        await asyncio.to_thread(self._executor.shutdown)
        if self._backend is not None:
            self._backend.close()
            self._backend = None
        if self._metrics_server is not None:
            await asyncio.to_thread(self._metrics_server.close)
            self._metrics_server = None

    def describe(self) -> str:
        """Return the one line that tells where it listens and what computes."""
        assert self._backend is not None
        devices = "; ".join(f"{name}, {parallelism} {unit}" for name, parallelism, unit in self._backend.devices)
        metrics = (
            "off"
            if self._metrics_server is None
            else f"on http://{_address(self._config.metrics_host, self._metrics_server.port)}/metrics"
        )
        unix_socket = f" and unix:{self._config.unix_socket}" if self._config.unix_socket else ""
        addresses = _address(self._config.host, self.port) + unix_socket
        return (
            f"softmaxd {softmaxd_proto.__version__} listening on {addresses}, "
            f"metrics {metrics}, backend {self._backend.name} ({devices})"
        )

    def _open_backend(self) -> Backend:
        if self._backend is None:
            self._backend = backends.select(self._config.backend, self._config)
        self._backend.warm_up()
        return self._backend

    def _start_metrics(self) -> None:
        host, port = self._config.metrics_host, self._config.metrics_port
        if port < 0:
            return
        try:
            self._metrics_server = MetricsServer(host, port, self._metrics.registry, lambda: self._is_ready)
        except OSError as error:
            raise AddressError("--metrics-port", _address(host, port), str(error)) from error

    def _make_grpc(self, backend: Backend) -> grpc.aio.Server:
        config = self._config
        devices = ", ".join(device.name for device in backend.devices)
        regions = Regions(_openers(config, backend), config.shared_memory_bytes)
        admission = Admission(config.in_flight_bytes)
        self._metrics.describe_backend(
            softmaxd_proto.__version__,
            backend.name,
            devices,
            backend.pools,
            regions.use,
            lambda: admission.in_flight_bytes,
        )
        self._servicer = SoftmaxServicer(
            Dataplane(backend, config.max_message_bytes, regions),
            self._metrics,
            admission,
            self._executor,
            min(config.inline_bytes, backend.inline_bytes),
        )
        self._memory_servicer = MemoryServicer(regions, self._executor)
        server = grpc.aio.server(options=_options(config))
        methods = {**self._servicer.methods(), **self._memory_servicer.methods()}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, methods),))
        generic = _GenericRegistration(server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, generic)
        reflection.enable_server_reflection((SERVICE, _HEALTH_SERVICE, reflection.SERVICE_NAME), generic)
        self.port = _listen(server, "--port", _address(config.host, config.port))
        if config.unix_socket is not None:
            _check_unused(config.unix_socket)
            _listen(server, "--unix-socket", f"unix:{config.unix_socket}")
        return server


def _openers(config: Config, backend: Backend) -> dict[str, Opener]:
    """Return what opens the memory that clients may register, by its kind.

    Raises:
        BackendUnavailableError: A kind is allowed, and cannot be had.
    """
    openers: dict[str, Opener] = {}
    if config.allow_shared_memory:
        users = frozenset((os.geteuid(), *user_ids(config.shared_memory_uids)))
        openers[SHARED_MEMORY] = SharedMemoryOpener(backend, native.load(), users)
    if config.allow_device_memory:
        if not isinstance(backend, DeviceBackend):
            raise BackendUnavailableError(
                f"got --allow-device-memory, and backend {backend.name} computes on no GPU: leave it out, or use "
                "--backend hip or cuda"
            )
        openers[DEVICE_MEMORY] = DeviceMemoryOpener(backend)
    return openers


def _listen(server: grpc.aio.Server, flag: str, address: str) -> int:
    try:
        return server.add_insecure_port(address)
    except RuntimeError as error:
        raise AddressError(flag, address, str(error)) from error


def _check_unused(path: Path) -> None:
    """Make sure that no other server listens on a socket: gRPC would take it from it without a word.

    Raises:
        AddressError: One does, or something else than a socket is there.
    """
    if not path.exists():
        return
    if not path.is_socket():
        raise AddressError("--unix-socket", f"unix:{path}", "something else than a socket is there")
    with socket.socket(socket.AF_UNIX) as probe:
        if probe.connect_ex(str(path)) == 0:
            raise AddressError("--unix-socket", f"unix:{path}", "another server listens on it")


class _GenericRegistration:
    """Stands for a gRPC server where generated code adds a servicer to it, and registers no method by name.

    grpc.aio waits for the next call of each method that is registered by name, and sets all these waits up anew after
    every call of any of them: five took 10 us of each call (grpcio 1.85). A generic handler needs none.
    """

    def __init__(self, server: grpc.aio.Server) -> None:
        self.add_generic_rpc_handlers = server.add_generic_rpc_handlers

    def add_registered_method_handlers(self, service: str, handlers: object) -> None:
        """Do nothing: the generic handler is found too."""


def _options(config: Config) -> list[tuple[str, int]]:
    return [
        (
            "grpc.max_receive_message_length",
            min(_MAX_RECEIVE_BYTES, max(_MIN_RECEIVE_BYTES, 2 * config.max_message_bytes)),
        ),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_concurrent_streams", config.max_concurrent_streams),
        ("grpc.so_reuseport", 0),  # else a second server on a taken port would silently get half of the connections
    ]


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"
