"""Hold streams that have each been answered once and then say nothing.

    python bench/idle_streams.py HOST:PORT COUNT

Prints "ready" when all are open; ends when its standard input does.
"""

from __future__ import annotations

import asyncio
import sys

import grpc
from echo_server import SERVICE
from messages import request_of

STREAMS_PER_CONNECTION = 50  # below what servers allow one connection


async def main(target: str, count: int) -> None:
    """Open, announce, hold."""
    message = request_of(1, 4)
    channels = [
        grpc.aio.insecure_channel(target, [("grpc.use_local_subchannel_pool", 1)])
        for _ in range(-(-count // STREAMS_PER_CONNECTION))
    ]
    calls = []
    for i in range(count):
        call = channels[i // STREAMS_PER_CONNECTION].stream_stream(f"/{SERVICE}/SoftmaxStream")()
        await call.write(message)
        assert await call.read()
        calls.append(call)
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    for call in calls:
        call.cancel()
    for channel in channels:
        await channel.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
