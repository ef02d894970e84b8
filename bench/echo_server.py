"""Servers that answer each message with itself: the least that a Python gRPC server of their kind can cost.

    python bench/echo_server.py aio|threads [SOCKET]

Listens on a free port, which it prints, and on a unix: socket at that path. The methods have the names of softmaxd's,
so that one load generator serves both, and freed memory is kept as softmaxd keeps it.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import uvloop
from softmaxd_server.config import Config
from softmaxd_server.malloc import keep_memory

SERVICE = "softmaxd.v1.SoftmaxService"
OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1), ("grpc.so_reuseport", 0)]


async def _unary_aio(request: bytes, context: object) -> bytes:
    return request


async def _stream_aio(requests: AsyncIterator[bytes], context: object) -> AsyncIterator[bytes]:
    async for request in requests:
        yield request


async def serve_aio(socket: str | None = None) -> None:
    """Serve on grpc.aio until the process ends."""
    server = grpc.aio.server(options=OPTIONS)
    server.add_generic_rpc_handlers((_handlers(_unary_aio, _stream_aio),))
    port = _listen(server, socket)
    await server.start()
    print(port, flush=True)
    await server.wait_for_termination()


def _unary_threads(request: bytes, context: object) -> bytes:
    return request


def _stream_threads(requests: Iterator[bytes], context: object) -> Iterator[bytes]:
    yield from requests


def serve_threads(socket: str | None = None) -> None:
    """Serve on the thread-pool server until the process ends."""
    server = grpc.server(ThreadPoolExecutor(16), options=OPTIONS)
    server.add_generic_rpc_handlers((_handlers(_unary_threads, _stream_threads),))
    port = _listen(server, socket)
    server.start()
    print(port, flush=True)
    threading.Event().wait()


def _listen(server: grpc.Server | grpc.aio.Server, socket: str | None) -> int:
    """Open the ports; return that of TCP."""
    if socket is not None:
        server.add_insecure_port(f"unix:{socket}")
    port: int = server.add_insecure_port("127.0.0.1:0")
    return port


def _handlers(unary: object, stream: object) -> grpc.GenericRpcHandler:
    return grpc.method_handlers_generic_handler(
        SERVICE,
        {
            "Softmax": grpc.unary_unary_rpc_method_handler(unary),
            "SoftmaxStream": grpc.stream_stream_rpc_method_handler(stream),
        },
    )


if __name__ == "__main__":
    if kept_bytes := Config().keep_memory_bytes:
        keep_memory(kept_bytes)
    match sys.argv[1:]:
        case ["aio", *sockets] if len(sockets) < 2:
            uvloop.install()
            asyncio.run(serve_aio(*sockets))
        case ["threads", *sockets] if len(sockets) < 2:
            serve_threads(*sockets)
        case _:
            sys.exit(__doc__)
