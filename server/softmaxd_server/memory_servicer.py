"""The RegisterMemory call: a client's lease on memory that its requests may name."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import Executor
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from softmaxd_proto.v1 import softmax_pb2

from softmaxd_server.errors import DrainingError, InvalidRegionError, MalformedRequestError
from softmaxd_server.regions import Lease, Regions
from softmaxd_server.statuses import number_of, status_of

Context = grpc.aio.ServicerContext[bytes, bytes]


class MemoryServicer:
    """Answers RegisterMemory calls, for one event loop.

    The end of a call is the end of its regions, whether the client ends it, dies, or is cut off: gRPC tells us of each
    as a cancellation.

    Args:
        regions: Where the regions are kept.
        executor: Opens and closes them: a device takes milliseconds to register memory.
    """

    def __init__(self, regions: Regions, executor: Executor) -> None:
        self._regions = regions
        self._executor = executor
        self._calls: set[asyncio.Task[Any]] = set()
        self._is_draining = False

    def methods(self) -> Mapping[str, grpc.RpcMethodHandler[Any, Any]]:
        """Return the handlers."""
        return {"RegisterMemory": grpc.stream_stream_rpc_method_handler(self.register_memory)}

    async def register_memory(self, _: object, context: Context) -> None:
        """Register and unregister until the client ends the call."""
        if self._is_draining:
            await context.abort(*status_of(DrainingError()))
        loop = asyncio.get_running_loop()
        lease = Lease(self._regions)
        serving = asyncio.ensure_future(self._serve(lease, context))
        self._calls.add(serving)
        try:
            await asyncio.wait((serving,))
        finally:
            self._calls.discard(serving)
            serving.cancel()
            loop.run_in_executor(self._executor, lease.end)
        if serving.cancelled():
            await context.abort(*status_of(DrainingError()))
        serving.result()

    def end_calls(self) -> None:
        """Refuse new calls and end the open ones, because the server drains and no request is left."""
        self._is_draining = True
        for serving in self._calls:
            serving.cancel()

    async def _serve(self, lease: Lease, context: Context) -> None:
        loop = asyncio.get_running_loop()
        while True:
            message: Any = await context.read()
            if message is grpc.aio.EOF:
                return
            await context.write(await loop.run_in_executor(self._executor, _answer, lease, message))


def _answer(lease: Lease, message: bytes) -> bytes:
    try:
        region = _act(lease, message)
    except Exception as error:  # each becomes its answer's status; the call goes on
        code, text = status_of(error)
        status = softmax_pb2.Status(code=number_of(code), message=text)
        return softmax_pb2.RegisterMemoryResponse(status=status).SerializeToString()
    return softmax_pb2.RegisterMemoryResponse(region=region).SerializeToString()


def _act(lease: Lease, message: bytes) -> bytes:
    """Do what a request says; return the region's id."""
    try:
        request = softmax_pb2.RegisterMemoryRequest.FromString(message)
    except DecodeError as error:
        raise MalformedRequestError(
            f"not a {softmax_pb2.RegisterMemoryRequest.DESCRIPTOR.full_name} message of {len(message)} bytes: encode "
            f"it with {softmax_pb2.DESCRIPTOR.name}"
        ) from error
    action = request.WhichOneof("action")
    if action is None:
        raise InvalidRegionError("got a request without an action: say what to register or to unregister")
    if action == "unregister":
        lease.unregister(request.unregister)
        return request.unregister
    return lease.register(action, getattr(request, action), request.byte_size)
