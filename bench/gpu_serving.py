"""Measure a server on a GPU: where the time of an inline request goes, beside the bus's own speed.

    python bench/gpu_serving.py --backend cuda

One client, in another process, sends one request after the other; the server is the real one with a backend that notes
the phases of each answer. The floor is what the same bytes take to a device from pinned memory and back, one way after
the other, in the same run (by PyTorch; left out where it is not installed). Results are checked first. Medians, with
quartiles.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import click
import uvloop
from softmaxd_server.app import Server
from softmaxd_server.backends.base import Work
from softmaxd_server.backends.native import GpuBackend
from softmaxd_server.config import Config

PHASES = ("upload", "kernel", "download")
SHAPES = {(1, 1024): 1000, (64, 4096): 200, (4096, 1024): 50, (1024, 4096): 50, (128, 32768): 50, (1, 4194304): 50}


class NotingBackend(GpuBackend):
    """Keeps the phases of each answer."""

    def __init__(self, name: str, config: Config) -> None:
        super().__init__(name, config)
        self.noted: list[Mapping[str, float]] = []

    def answer(self, prefix: bytes, source: memoryview, work: Work) -> tuple[bytes, Mapping[str, float]]:
        """Compute, and note the phases."""
        answer, phases = super().answer(prefix, source, work)
        self.noted.append(phases)
        return answer, phases


def floor_seconds(size: int) -> float | None:
    """Return what `size` bytes take to a device and back, from and to pinned memory."""
    try:
        import torch
    except ImportError:
        return None
    host = torch.empty(size, dtype=torch.uint8, pin_memory=True)
    device = torch.empty(size, dtype=torch.uint8, device="cuda")
    times = []
    for _ in range(30):
        torch.cuda.synchronize()
        start = time.perf_counter()
        device.copy_(host, non_blocking=True)
        torch.cuda.synchronize()
        host.copy_(device, non_blocking=True)
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def spread(seconds: list[float]) -> str:
    """Format a median and its quartiles in microseconds."""
    low, middle, high = (figure * 1e6 for figure in statistics.quantiles(seconds, n=4))
    return f"{middle:.0f} ({low:.0f}-{high:.0f})"


async def measure(backend_name: str, threads: int) -> None:
    """Serve, and print a line for each shape."""
    config = Config(port=0, metrics_port=-1, threads=threads)
    backend = NotingBackend(backend_name, config)
    server = Server(config, backend)
    await server.start()
    for (rows, cols), repeats in SHAPES.items():
        backend.noted.clear()
        command = (str(Path(__file__).with_name("serial_client.py")), f"127.0.0.1:{server.port}", rows, cols, repeats)
        client = await asyncio.create_subprocess_exec(
            sys.executable, *map(str, command), stdout=asyncio.subprocess.PIPE
        )
        printed, _ = await client.communicate()
        assert client.returncode == 0
        noted = backend.noted[1:]  # the first one is the check
        assert len(noted) == repeats
        device = [sum(phases.values()) for phases in noted]
        floor = floor_seconds(rows * cols * 4)
        cells = [f"{rows} x {cols}", *(spread([phases[phase] for phases in noted]) for phase in PHASES), spread(device)]
        cells += ["-", "-"] if floor is None else [f"{floor * 1e6:.0f}", f"{statistics.median(device) / floor:.2f}"]
        print(" | ".join((*cells, spread(json.loads(printed)))), flush=True)
    await server.stop()


@click.command()
@click.option("--backend", default="cuda", show_default=True)
@click.option("--threads", default=0, show_default=True, help="The server's copying threads.")
def main(backend: str, threads: int) -> None:
    """Print one line a shape, float32, times in microseconds."""
    print(" | ".join(("rows x cols", *PHASES, "device part", "floor", "times floor", "client")))
    uvloop.run(measure(backend, threads))


if __name__ == "__main__":
    main()
