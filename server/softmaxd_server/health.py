"""grpc.health.v1, with watches that end when the server drains."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc  # type: ignore[import-untyped] # its stubs are a distribution of their own

from softmaxd_server.errors import DrainingError
from softmaxd_server.statuses import status_of

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
SERVICE_UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


class HealthServicer(health_pb2_grpc.HealthServicer):  # type: ignore[misc] # untyped: see the import
    """Tells whether the services can be called; all of them change together.

    grpcio-health-checking 1.81 has a servicer for asyncio, but when one of two watches of a service ends it forgets the
    other one, which then never hears NOT_SERVING; and its watches hold up a shutdown for the whole grace period.

    Args:
        services: Their full names; "" stands for the server as a whole.
    """

    def __init__(self, services: Iterable[str]) -> None:
        self._services = frozenset(services)
        self._status = NOT_SERVING
        self._is_draining = False
        self._changed = asyncio.Event()

    def set_serving(self) -> None:
        """Say SERVING from now on."""
        self._change(SERVING)

    def drain(self) -> None:
        """Say NOT_SERVING for good, then end every watch."""
        self._is_draining = True
        self._change(NOT_SERVING)

    async def Check(  # noqa: N802 # the name is the protocol's
        self,
        request: health_pb2.HealthCheckRequest,
        context: grpc.aio.ServicerContext[health_pb2.HealthCheckRequest, health_pb2.HealthCheckResponse],
    ) -> health_pb2.HealthCheckResponse:
        """Answer with the status now; an unknown service is NOT_FOUND, as the protocol says."""
        if request.service not in self._services:
            known = ", ".join(repr(name) for name in sorted(self._services))
            await context.abort(grpc.StatusCode.NOT_FOUND, f"this service is unknown here, known are {known}")
        return health_pb2.HealthCheckResponse(status=self._status)

    async def Watch(  # noqa: N802 # the name is the protocol's
        self,
        request: health_pb2.HealthCheckRequest,
        context: grpc.aio.ServicerContext[health_pb2.HealthCheckRequest, health_pb2.HealthCheckResponse],
    ) -> None:
        """Send the status now and at each change; while draining, end with UNAVAILABLE."""
        is_known = request.service in self._services
        sent = None
        while True:
            changed = self._changed
            status = self._status if is_known else SERVICE_UNKNOWN
            if status != sent:
                await context.write(health_pb2.HealthCheckResponse(status=status))
                sent = status
            if self._is_draining and (not is_known or sent == NOT_SERVING):
                await context.abort(*status_of(DrainingError()))
            await changed.wait()

    def _change(self, status: health_pb2.HealthCheckResponse.ServingStatus) -> None:
        self._status = status
        # A fresh event for each change: a watch that is slow to write waits for nobody and misses nothing.
        self._changed, changed = asyncio.Event(), self._changed
        changed.set()
