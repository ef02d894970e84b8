"""Servers that answer each message with itself: the least that a Python gRPC server of their kind can cost.

    python bench/echo_server.py aio|threads

Prints the port that it listens on. The methods have the names of softmaxd's, so that one load generator serves both.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import uvloop

SERVICE = "softmaxd.v1.SoftmaxService"
OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1), ("grpc.so_reuseport", 0)]


async def _unary_aio(request: bytes, context: object) -> bytes:
    return request


async def _stream_aio(requests: AsyncIterator[bytes], context: object) -> AsyncIterator[bytes]:
    async for request in requests:
        yield request


async def serve_aio() -> None:
    """Serve on grpc.aio until the process ends."""
    server = grpc.aio.server(options=OPTIONS)
    server.add_generic_rpc_handlers((_handlers(_unary_aio, _stream_aio),))
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    await server.start()
    await server.wait_for_termination()


def _unary_threads(request: bytes, context: object) -> bytes:
    return request


def _stream_threads(requests: Iterator[bytes], context: object) -> Iterator[bytes]:
    yield from requests


def serve_threads() -> None:
    """Serve on the thread-pool server until the process ends."""
    server = grpc.server(ThreadPoolExecutor(16), options=OPTIONS)
    server.add_generic_rpc_handlers((_handlers(_unary_threads, _stream_threads),))
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    server.start()
    threading.Event().wait()


def _handlers(unary: object, stream: object) -> grpc.GenericRpcHandler:
    return grpc.method_handlers_generic_handler(
        SERVICE,
        {
            "Softmax": grpc.unary_unary_rpc_method_handler(unary),
            "SoftmaxStream": grpc.stream_stream_rpc_method_handler(stream),
        },
    )


if __name__ == "__main__":
    if sys.argv[1:] == ["aio"]:
        uvloop.install()
        asyncio.run(serve_aio())
    elif sys.argv[1:] == ["threads"]:
        serve_threads()
    else:
        sys.exit(__doc__)
