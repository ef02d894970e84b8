"""NVIDIA Triton Inference Server by its Python client, inline and through system shared memory: triton_peer.py."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from contest import COLS, ONE_CALL, Contestant, Job
from processes import next_line, script, script_process

TRANSPORTS = {"inline": "Triton inline, TCP", "shared_memory": "Triton shared memory"}


def missing(python: Path) -> str:
    """Say why an interpreter cannot run Triton; empty where it can."""
    if not python.exists():
        return f"{python} does not exist: bench/triton_peer.py says how to install it"
    imported = subprocess.run([python, "-c", "import pytriton, tritonclient.grpc"], stderr=subprocess.DEVNULL)
    return f"{python} lacks nvidia-pytriton or tritonclient[grpc]" if imported.returncode else ""


def enter(stack: ExitStack, python: Path, jobs: Sequence[Job]) -> Iterator[Contestant]:
    """Start Triton and its client, that live as long as the stack, and yield the contestants."""
    port = stack.enter_context(script("triton_peer.py", python=str(python)))
    rows = [str(len(job.x)) for job in jobs]
    client = stack.enter_context(script_process("triton_client.py", port, str(COLS), *rows, python=str(python)))
    assert next_line(client) == "ready"
    for job in jobs:
        for transport, who in TRANSPORTS.items():
            yield Contestant(ONE_CALL, job.size, who, partial(take_turn, client, f"{transport} {len(job.x)}"))


def take_turn(client: subprocess.Popen[str], line: str) -> list[float]:
    """Let the client take a turn; return the seconds of each call."""
    assert client.stdin is not None
    print(line, file=client.stdin, flush=True)
    seconds: list[float] = json.loads(next_line(client))
    return seconds
