"""4 KB requests from h2load: how much more than an echo a softmax costs, and what 200 idle streams change.

The load comes from h2load (Debian: nghttp2-client), so that the generator costs little.
"""

from __future__ import annotations

import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import astuple, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import numpy as np
from echo_server import SERVICE
from harness.reference import assert_close
from harness.server_process import ServerProcess
from messages import request_of
from processes import script
from rich.console import Console
from rich.progress import track
from rich.table import Table
from softmaxd_client import SoftmaxClient

UNARY = f"/{SERVICE}/Softmax"
OURS, ECHO_AIO, ECHO_THREADS = "softmaxd", "echo, aio", "echo, threads"
ECHO_KINDS = {ECHO_AIO: "aio", ECHO_THREADS: "threads"}
CONNECTIONS = (1, 8)


@dataclass(frozen=True)
class Load:
    """What h2load saw: requests a second, and latencies in microseconds."""

    rate: float
    p50: float
    p99: float


def measure(backend: str, rounds: int, requests: int, console: Console) -> None:
    """Print a table for each load.

    Args:
        backend: The server's.
        rounds: How often each contestant is loaded, with new servers.
        requests: Requests of each load.
        console: Where the tables go.
    """
    if shutil.which("h2load") is None:
        sys.exit("h2load is missing: apt-get install nghttp2-client, or leave it out by --only transports")
    small = request_of(1, 1024)
    loads: dict[str, dict[str, list[Load]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        body = Path(folder) / "body"
        body.write_bytes(b"\0" + struct.pack(">I", len(small)) + small)
        for _ in track(range(rounds), console=Console(stderr=True), transient=True, description="loading"):
            for what, name, load in one_round(backend, body, requests):
                loads.setdefault(what, {}).setdefault(name, []).append(load)
    for what, by_name in loads.items():
        print_loads(console, what, by_name)


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


def check(server: ServerProcess) -> None:
    """Assert that the server computes before anything is timed."""
    x = np.random.default_rng(1).standard_normal((1, 1024), dtype=np.float32)
    with SoftmaxClient(server.target) as client:
        assert_close(client.softmax(x), x)


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
