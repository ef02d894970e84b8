"""Start a server on the CPU, stream the real tensors of tests/data through the client, check them, time them.

`make demo` runs this. It exits with 1 if a result is wrong.
"""

from __future__ import annotations

import itertools
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from harness.real_tensors import RealTensor, load
from harness.server_process import ServerProcess
from rich.console import Console
from rich.table import Table
from softmaxd_client import SoftmaxClient

SECONDS_A_TENSOR = 1.5
MIN_REPEATS = 30


def time_unary(client: SoftmaxClient, tensor: RealTensor) -> list[float]:
    """Send the tensor again and again, one call at a time; return seconds a call."""
    seconds: list[float] = []
    end = time.perf_counter() + SECONDS_A_TENSOR
    while time.perf_counter() < end or len(seconds) < MIN_REPEATS:
        start = time.perf_counter()
        client.softmax(tensor.array)
        seconds.append(time.perf_counter() - start)
    return seconds


def time_stream(client: SoftmaxClient, tensor: RealTensor, count: int) -> float:
    """Send the tensor `count` times over one stream, several in flight; return tensors a second."""
    start = time.perf_counter()
    received = sum(1 for _ in client.stream(itertools.repeat(tensor.array, count)))
    assert received == count
    return count / (time.perf_counter() - start)


def main() -> None:
    """Print the table; exit with 1 if a result is wrong."""
    console = Console(width=max(96, Console().width))
    tensors = load()
    table = Table(title="real tensors through gRPC: every result checked, then timed")
    table.add_column("tensor", no_wrap=True)
    table.add_column("shape", no_wrap=True)
    for heading in ("p50 ms", "p99 ms", "stream/s", "stream MB/s", "check"):
        table.add_column(heading, justify="right")
    wrong = 0
    with ServerProcess("--backend", "cpu") as server, SoftmaxClient(server.target) as client:
        console.print(server.log.strip(), style="dim", highlight=False)
        for tensor, result in zip(tensors, client.stream(tensor.array for tensor in tensors), strict=True):
            try:
                tensor.check(result)
                verdict = "ok"
            except AssertionError as error:
                wrong += 1
                verdict = f"WRONG: {error}"
            seconds = time_unary(client, tensor)
            rate = time_stream(client, tensor, len(seconds))
            table.add_row(
                tensor.name,
                "x".join(map(str, tensor.array.shape)),
                f"{statistics.median(seconds) * 1e3:.2f}",
                f"{statistics.quantiles(seconds, n=100)[98] * 1e3:.2f}",
                f"{rate:.0f}",
                f"{rate * tensor.array.nbytes / 1e6:.0f}",
                verdict,
            )
    console.print(table)
    console.print("MB/s counts one way. Times are from the client, on this machine, the server on the same cores.")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
