"""softmaxd by each of its transports, through the Python client."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import numpy as np
from contest import ONE_CALL, STREAM, Contestant, Job, blocks
from harness.server_process import ServerProcess
from softmaxd_client import SoftmaxClient
from softmaxd_client import transport as wire
from turns import take_turn


@dataclass(frozen=True)
class Transport:
    """A way to the server and back.

    Attributes:
        who: Its name in the table.
        name: The client's name for it.
        flag: The server's flag that allows it; empty where none is needed.
        place: Puts a float32 numpy array where the transport wants it; returns it and an array like it for the result.
    """

    who: str
    name: str
    flag: str
    place: Callable[[SoftmaxClient, Any], tuple[Any, Any]]


def _place_on_host(client: SoftmaxClient, x: Any) -> tuple[Any, Any]:
    return x, np.zeros_like(x)


def _place_in_shared_memory(client: Any, x: Any) -> tuple[Any, Any]:
    source, destination = (client.empty(x.shape, x.dtype) for _ in range(2))
    source[...] = x
    return source, destination


def _place_on_device(client: SoftmaxClient, x: Any) -> tuple[Any, Any]:
    import torch

    source = torch.from_numpy(x).cuda()
    destination = torch.zeros_like(source)
    torch.cuda.synchronize()
    return source, destination


INLINE_TCP = Transport("inline, TCP", "inline", "", _place_on_host)
INLINE_UNIX = Transport("inline, unix:", "inline", "--unix-socket", _place_on_host)
SHARED_MEMORY = Transport("shared memory", "shared_memory", "--allow-shared-memory", _place_in_shared_memory)
DEVICE_MEMORY = Transport("device memory", "device_memory", "--allow-device-memory", _place_on_device)
TRANSPORTS = (INLINE_TCP, INLINE_UNIX, SHARED_MEMORY, DEVICE_MEMORY)


def missing(transport: Transport, backend: str) -> str:
    """Say why a transport cannot be measured here; empty where it can."""
    if transport.flag not in _server_flags():
        return f"the server has no {transport.flag}"
    if transport.name not in wire.TRANSPORTS:
        return f"the client has no transport {transport.name!r}"
    return _missing_device(backend) if transport is DEVICE_MEMORY else ""


def enter(
    stack: ExitStack, backend: str, jobs: Sequence[Job], folder: Path, transports: Sequence[Transport]
) -> tuple[str, Iterator[Contestant]]:
    """Start a server that lives as long as the stack.

    Args:
        stack: Closes what is opened.
        backend: The server's.
        jobs: What is computed.
        folder: Where the unix: socket goes.
        transports: Those to measure.

    Returns:
        Where the server is, by TCP, and the contestants, each checked when it is taken.
    """
    socket = folder / "softmaxd"
    flags = [flag for transport in transports if (flag := transport.flag)]
    if INLINE_UNIX.flag in flags:
        flags.insert(flags.index(INLINE_UNIX.flag) + 1, str(socket))
    server = stack.enter_context(ServerProcess("--backend", backend, *flags))
    targets = {INLINE_UNIX: f"unix:{socket}"}

    def contestants() -> Iterator[Contestant]:
        for transport in transports:
            target = targets.get(transport, server.target)
            client = stack.enter_context(SoftmaxClient(target, transport=transport.name))
            for job in jobs:
                yield from _contestants(client, transport, job)

    return server.target, contestants()


def _contestants(client: Any, transport: Transport, job: Job) -> Iterator[Contestant]:
    x, out = transport.place(client, job.x)
    who = f"softmaxd {transport.who}"
    client.softmax(x, out=out)
    job.check(_on_host(out))
    yield Contestant(ONE_CALL, job.size, who, partial(take_turn, partial(client.softmax, x, out=out)))
    job.check(np.concatenate([_on_host(answer) for answer in client.stream(blocks(x))]))
    yield Contestant(STREAM, job.size, who, partial(take_turn, partial(_exhaust, client, x)))


def _exhaust(client: SoftmaxClient, x: Any) -> None:
    for _ in client.stream(blocks(x)):
        pass


def _on_host(result: Any) -> Any:
    return result if isinstance(result, np.ndarray) else result.cpu().numpy()


@cache
def _server_flags() -> str:
    command = [sys.executable, "-m", "softmaxd_server", "--help"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def _missing_device(backend: str) -> str:
    if backend not in ("cuda", "hip"):
        return f"the backend is {backend}, not a GPU"
    try:
        import torch
    except ImportError:
        return "PyTorch is not installed"
    return "" if torch.cuda.is_available() else "PyTorch sees no GPU"
