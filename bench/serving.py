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
from dataclasses import astuple, dataclass
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
from rich.progress import track
from rich.table import Table
from softmaxd_client import SoftmaxClient
from timing import Timing, race

UNARY = f"/{SERVICE}/Softmax"
OURS, ECHO_AIO, ECHO_THREADS = "softmaxd", "echo, aio", "echo, threads"
ECHO_KINDS = {ECHO_AIO: "aio", ECHO_THREADS: "threads"}
CONNECTIONS = (1, 8)
LARGE_ROUNDS = 21


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


@contextmanager
def servers(backend: str) -> Iterator[tuple[ServerProcess, dict[str, str]]]:
    """Run the real server and the echoes until the block ends; give the server, and who is where."""
    with ExitStack() as stack:
        server = stack.enter_context(ServerProcess("--backend", backend))
        targets = {OURS: server.target} | {
            name: f"127.0.0.1:{stack.enter_context(script('echo_server.py', kind))}"
            for name, kind in ECHO_KINDS.items()
        }
        yield server, targets


def one_round(backend: str, body: Path, requests: int) -> Iterator[tuple[str, str, Load]]:
    """Start all servers anew, and load each in turn; yield what was done, who did it, and how it went.

    Two processes of one program differ by up to 20 % for as long as they live, so each round has new ones.
    """
    with servers(backend) as (server, targets):
        check(server)
        for target in targets.values():
            h2load(target, body, 8, 2000)  # warm-up
        before = answered_ok(server)
        for connections in CONNECTIONS:
            for name, target in targets.items():
                yield f"4 KB unary, {connections} connections", name, h2load(target, body, connections, requests)
        with (
            script("idle_streams.py", targets[OURS], "200") as ready,
            script("idle_streams.py", targets[ECHO_AIO], "200") as echo_ready,
        ):
            assert ready == echo_ready == "ready"
            for connections in CONNECTIONS:
                for name in (OURS, ECHO_AIO):
                    load = h2load(targets[name], body, connections, requests)
                    yield f"4 KB unary, {connections} connections, beside 200 idle streams", name, load
        expected = 2 * len(CONNECTIONS) * requests
        assert answered_ok(server) - before == expected, "not every request was answered with OK"


def median_of(loads: list[Load]) -> Load:
    """Return the medians of the figures."""
    return Load(*(statistics.median(values) for values in zip(*map(astuple, loads), strict=True)))


def print_loads(console: Console, title: str, loads: dict[str, list[Load]]) -> None:
    """Print medians over the rounds, and the median of each round's ratio to its aio echo, with quartiles."""
    table = Table("who", title=title)
    for heading in ("requests/s", "of the aio echo", "p50 us", "of the aio echo", "p99 us"):
        table.add_column(heading, justify="right")
    for name, rounds in loads.items():
        pairs = list(zip(rounds, loads[ECHO_AIO], strict=True))
        load = median_of(rounds)
        table.add_row(
            name,
            f"{load.rate:.0f}",
            _spread([ours.rate / echo.rate for ours, echo in pairs]),
            f"{load.p50:.0f}",
            _spread([ours.p50 / echo.p50 for ours, echo in pairs]),
            f"{load.p99:.0f}",
        )
    console.print(table)


def _spread(ratios: list[float]) -> str:
    low, middle, high = statistics.quantiles(ratios, n=4)
    return f"{middle:.2f} ({low:.2f}-{high:.2f})"


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
@click.option("--rounds", default=9, show_default=True, help="Rounds of the loads.")
@click.option("--requests", default=4000, show_default=True, help="Requests of each load.")
def main(backend: str, rounds: int, requests: int) -> None:
    """Print the tables."""
    if shutil.which("h2load") is None:
        sys.exit("h2load is missing: apt-get install nghttp2-client")
    console = Console(width=max(100, Console().width))
    small, large = request_of(1, 1024), request_of(4096, 1024)
    loads: dict[str, dict[str, list[Load]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        body = Path(folder) / "body"
        body.write_bytes(b"\0" + struct.pack(">I", len(small)) + small)
        for _ in track(range(rounds), console=Console(stderr=True), transient=True, description="loading"):
            for what, name, load in one_round(backend, body, requests):
                loads.setdefault(what, {}).setdefault(name, []).append(load)
    for what, by_name in loads.items():
        print_loads(console, what, by_name)
    with servers(backend) as (server, targets):
        check(server)
        print_messages(console, len(large), race_of_messages(targets, large, LARGE_ROUNDS))


def print_messages(console: Console, size: int, timings: dict[str, Timing]) -> None:
    """Print the times of large messages."""
    table = Table("who", title=f"16 MB unary ({size} bytes each way), one at a time, Python client")
    for heading in ("p50 ms", "GB/s each way", "times the aio echo", "quartiles"):
        table.add_column(heading, justify="right")
    for name, timing in timings.items():
        low, middle, high = (1 / ratio for ratio in timing.ratio_to(timings[ECHO_AIO]))
        figures = f"{timing.median * 1e3:.1f}", f"{size / timing.median / 1e9:.2f}", f"{middle:.2f}"
        table.add_row(name, *figures, f"{high:.2f}-{low:.2f}")
    console.print(table)


if __name__ == "__main__":
    main()
