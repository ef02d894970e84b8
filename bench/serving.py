"""Measure the real server beside raw echoes by the same kinds of server, in the same minutes.

    python bench/serving.py

Three questions: how much more than an echo does a 4 KB softmax cost; do 200 idle streams slow it down; how fast do
16 MB messages go. The load at 4 KB comes from h2load (Debian: nghttp2-client), so that the generator costs little.
"""

from __future__ import annotations

import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import click
import grpc
import numpy as np
from echo_server import SERVICE
from harness.reference import assert_close
from harness.server_process import ServerProcess
from messages import request_of
from rich.console import Console
from rich.table import Table
from softmaxd_client import SoftmaxClient
from timing import Timing, race

UNARY = f"/{SERVICE}/Softmax"
OURS, ECHO_AIO, ECHO_THREADS = "softmaxd", "echo, aio", "echo, threads"
ECHO_KINDS = {ECHO_AIO: "aio", ECHO_THREADS: "threads"}


@dataclass(frozen=True)
class Load:
    """What h2load saw: requests a second, and latencies in microseconds."""

    rate: float
    p50: float
    p99: float


def h2load(target: str, body: Path, connections: int, requests: int) -> Load:
    """Send the same unary request again and again.

    Raises:
        RuntimeError: Not every request was answered.
    """
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "requests"
        command = ["h2load", "-n", str(requests), "-c", str(connections), "-m", "1", "-d", str(body)]
        command += ["-H", "content-type: application/grpc", "-H", "te: trailers", f"--log-file={log}"]
        done = subprocess.run([*command, f"http://{target}{UNARY}"], capture_output=True, text=True, check=True)
        if f"{requests} succeeded" not in done.stdout:
            raise RuntimeError(f"h2load: {done.stdout}")
        [finished] = [line for line in done.stdout.splitlines() if line.startswith("finished in")]
        latencies = [float(line.split()[2]) for line in log.read_text().splitlines()]
    quantiles = statistics.quantiles(latencies, n=100)
    return Load(float(finished.split()[3]), quantiles[49], quantiles[98])


@contextmanager
def script(name: str, *arguments: str) -> Iterator[str]:
    """Run a script of this folder until the block ends; give the first line that it prints."""
    command = [sys.executable, str(Path(__file__).with_name(name)), *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.kill()


def answered_ok(server: ServerProcess) -> float:
    """Return how many unary requests the server has answered with OK; h2load sees only HTTP's 200."""
    text = urllib.request.urlopen(f"{server.metrics_url}/metrics").read().decode()
    return sum(
        float(line.split()[-1])
        for line in text.splitlines()
        if line.startswith("softmaxd_request_seconds_count{") and 'code="OK"' in line and 'method="Softmax"' in line
    )


def race_of_loads(targets: dict[str, str], body: Path, connections: int, requests: int, rounds: int) -> dict[str, Load]:
    """Load each target in turn, round after round; return medians."""
    seen: dict[str, list[Load]] = {name: [] for name in targets}
    for _ in range(rounds):
        for name, target in targets.items():
            seen[name].append(h2load(target, body, connections, requests))
    return {
        name: Load(*(statistics.median(values) for values in zip(*map(_figures, loads), strict=True)))
        for name, loads in seen.items()
    }


def _figures(load: Load) -> tuple[float, float, float]:
    return load.rate, load.p50, load.p99


def print_loads(console: Console, title: str, loads: dict[str, Load]) -> None:
    """Print a table of loads, each beside the echo of the same kind of server."""
    table = Table("who", title=title)
    for heading in ("requests/s", "of the aio echo", "p50 us", "of the aio echo", "p99 us"):
        table.add_column(heading, justify="right")
    echo = loads[ECHO_AIO]
    for name, load in loads.items():
        rates = f"{load.rate / echo.rate:.2f}", f"{load.p50 / echo.p50:.2f}"
        table.add_row(name, f"{load.rate:.0f}", rates[0], f"{load.p50:.0f}", rates[1], f"{load.p99:.0f}")
    console.print(table)


def race_of_messages(targets: dict[str, str], message: bytes, rounds: int) -> dict[str, Timing]:
    """Send one large message at a time to each target in turn."""
    unlimited = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    with ExitStack() as stack:
        calls: dict[str, Callable[[], object]] = {}
        for name, target in targets.items():
            method = stack.enter_context(grpc.insecure_channel(target, unlimited)).unary_unary(UNARY)
            calls[name] = lambda method=method: method(message)
        return race(calls, rounds)


def check(server: ServerProcess) -> None:
    """Assert that the server computes before anything is timed."""
    x = np.random.default_rng(1).standard_normal((4096, 1024), dtype=np.float32)
    with SoftmaxClient(server.target) as client:
        for rows in (1, 4096):
            assert_close(client.softmax(x[:rows]), x[:rows])


@click.command(help=__doc__)
@click.option("--backend", default="cpu", show_default=True)
@click.option("--rounds", default=5, show_default=True, help="Rounds of each load.")
@click.option("--requests", default=10_000, show_default=True, help="Requests of each load.")
def main(backend: str, rounds: int, requests: int) -> None:
    """Print the tables."""
    if shutil.which("h2load") is None:
        sys.exit("h2load is missing: apt-get install nghttp2-client")
    console = Console(width=max(100, Console().width))
    small, large = request_of(1, 1024), request_of(4096, 1024)
    with ExitStack() as stack:
        body = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "body"
        body.write_bytes(b"\0" + struct.pack(">I", len(small)) + small)
        server = stack.enter_context(ServerProcess("--backend", backend))
        check(server)
        targets = {OURS: server.target} | {
            name: f"127.0.0.1:{stack.enter_context(script('echo_server.py', kind))}"
            for name, kind in ECHO_KINDS.items()
        }
        for target in targets.values():
            h2load(target, body, 8, 1000)  # warm-up
        before = answered_ok(server)
        for connections in (1, 8):
            loads = race_of_loads(targets, body, connections, requests, rounds)
            print_loads(console, f"4 KB unary, {connections} connections", loads)
        assert answered_ok(server) - before == 2 * rounds * requests, "not every request was answered with OK"
        with (
            script("idle_streams.py", server.target, "200") as ready,
            script("idle_streams.py", targets[ECHO_AIO], "200") as echo_ready,
        ):
            assert ready == echo_ready == "ready"
            aio = {name: target for name, target in targets.items() if name != ECHO_THREADS}
            for connections in (1, 8):
                loads = race_of_loads(aio, body, connections, requests, rounds)
                print_loads(console, f"4 KB unary, {connections} connections, beside 200 idle streams", loads)
        table = Table("who", title=f"16 MB unary ({len(large)} bytes each way), one at a time, Python client")
        for heading in ("p50 ms", "quartiles", "GB/s each way", "of the aio echo"):
            table.add_column(heading, justify="right")
        timings = race_of_messages(targets, large, 15)
        for name, timing in timings.items():
            low, _, high = statistics.quantiles(timing.seconds, n=4)
            table.add_row(
                name,
                f"{timing.median * 1e3:.1f}",
                f"{low * 1e3:.1f}-{high * 1e3:.1f}",
                f"{len(large) / timing.median / 1e9:.2f}",
                f"{1 / timing.ratio_to(timings[ECHO_AIO])[1]:.2f}",
            )
        console.print(table)


if __name__ == "__main__":
    main()
