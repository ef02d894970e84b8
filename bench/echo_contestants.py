"""The raw echo: ready-made messages to echo_server.py and back, and the answers thrown away."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import grpc
from contest import ONE_CALL, STREAM, Contestant, Job, blocks
from echo_server import SERVICE
from messages import encode
from processes import script
from softmaxd_client.config import DEFAULT_IN_FLIGHT
from turns import take_turn

ECHO = "echo, TCP"
UNLIMITED = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


def enter(stack: ExitStack, jobs: Sequence[Job], folder: Path) -> Iterator[Contestant]:
    """Start an echo server that lives as long as the stack, check it, yield the contestants.

    Args:
        stack: Closes what is opened.
        jobs: One message of each tensor as a whole, and a stream of messages of the client's own size.
        folder: Where the unix: socket goes.
    """
    socket = folder / "echo"
    port = stack.enter_context(script("echo_server.py", "aio", str(socket)))
    for who, target in {ECHO: f"127.0.0.1:{port}", "echo, unix:": f"unix:{socket}"}.items():
        channel = stack.enter_context(grpc.insecure_channel(target, UNLIMITED))
        unary: Any = channel.unary_unary(f"/{SERVICE}/Softmax")
        stream: Any = channel.stream_stream(f"/{SERVICE}/SoftmaxStream")
        for job in jobs:
            message, parts = encode(job.x), [encode(block) for block in blocks(job.x)]
            assert unary(message) == message
            assert list(exchange(stream, parts)) == parts
            yield Contestant(ONE_CALL, job.size, who, partial(take_turn, partial(unary, message)))
            yield Contestant(STREAM, job.size, who, partial(take_turn, partial(exhaust, stream, parts)))


def exchange(method: Any, messages: Iterable[bytes]) -> Iterator[bytes]:
    """Send messages over one call, as many in flight as the client has; yield the answers."""
    free = threading.Semaphore(DEFAULT_IN_FLIGHT)

    def send() -> Iterator[bytes]:
        for message in messages:
            free.acquire()
            yield message

    for answer in method(send()):
        free.release()
        yield answer


def exhaust(method: Any, messages: Iterable[bytes]) -> None:
    """Exchange, and throw the answers away."""
    for _ in exchange(method, messages):
        pass
