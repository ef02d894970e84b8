"""softmaxd inline, through cpp/unary_client.cpp: gRPC's C++ library and protoc's stubs, nothing of ours.

Needs Debian's libgrpc++-dev, libprotobuf-dev, protobuf-compiler-grpc, pkg-config, cmake and a C++ compiler.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from contest import COLS, ONE_CALL, STREAM, Contestant, Job
from softmaxd_client.blocks import BLOCK_BYTES
from softmaxd_client.config import DEFAULT_IN_FLIGHT

SOURCE = Path(__file__).parent / "cpp"
BUILD = Path(__file__).parents[1] / "build" / "bench_cpp"
CLIENT = BUILD / "unary_client"
WHO = "softmaxd inline, TCP, C++ client"
TOOLS = ("cmake", "pkg-config", "protoc", "grpc_cpp_plugin")
# Calls of one turn, by the rows of the tensor; three where it has more.
TURN_CALLS = {1: 200, 256: 20}


def missing() -> str:
    """Say why the client cannot be built here; empty where it can."""
    absent = [tool for tool in TOOLS if shutil.which(tool) is None]
    if not absent and subprocess.run(["pkg-config", "--exists", "grpc++", "protobuf"]).returncode:
        absent = ["grpc++"]
    if absent:
        return f"{', '.join(absent)} not found: apt-get install libgrpc++-dev protobuf-compiler-grpc pkg-config cmake"
    return ""


def build() -> None:
    """Build the client, where its sources have changed.

    Raises:
        subprocess.CalledProcessError: That failed; the compiler's words are on standard error.
    """
    for step in (["-S", str(SOURCE), "-B", str(BUILD), "-DCMAKE_BUILD_TYPE=Release"], ["--build", str(BUILD)]):
        subprocess.run(["cmake", *step], stdout=subprocess.DEVNULL, check=True)


def enter(target: str, jobs: Sequence[Job]) -> Iterator[Contestant]:
    """Yield the contestants. The client checks the first answer of each turn."""
    for job in jobs:
        rows = len(job.x)
        calls = str(TURN_CALLS.get(rows, 3))
        command = [str(CLIENT), target, str(rows), str(COLS), calls]
        yield Contestant(ONE_CALL, job.size, WHO, partial(take_turn, command))
        block_rows = BLOCK_BYTES // (COLS * job.x.itemsize)
        streaming = [*command, "--stream", str(block_rows), str(DEFAULT_IN_FLIGHT)]
        yield Contestant(STREAM, job.size, WHO, partial(take_turn, streaming))


def take_turn(command: Sequence[str]) -> list[float]:
    """Run the client; return the seconds of each call."""
    printed = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    return [json.loads(line) for line in printed.splitlines()]
