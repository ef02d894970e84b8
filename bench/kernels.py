"""Time a backend's kernels beside a copy of the same bytes and beside the libraries that everyone uses.

    python bench/kernels.py --backend cpu

Each contestant's result is checked against float64 before it is timed. The ratios are to the copy, in the same rounds.
"""

from __future__ import annotations

import ctypes
import itertools
import os
from concurrent.futures import ThreadPoolExecutor

import click
import ml_dtypes
import numpy as np
import peers
from peers import Array, Run
from rich.console import Console
from rich.progress import track
from rich.table import Table
from softmaxd_server import backends
from softmaxd_server.config import Config
from timing import Timing, race

# Many short rows, model-sized rows, rows larger than a cache, and few long rows: 64 MB each but for the small ones.
SHAPES = (
    (65536, 128),
    (16384, 1024),
    (4096, 4096),
    (1024, 16384),
    (256, 65536),
    (4, 32768),
    (1, 1048576),
    (1, 16777216),
)
DTYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
ROUNDS = 21
OURS = "softmaxd"
COPY = "copy"


def keep_freed_memory() -> None:
    """Let malloc keep what is freed: the first touch of a fresh page costs more than a copy of it."""
    m_trim_threshold, m_mmap_threshold = -1, -3
    libc = ctypes.CDLL(None)
    libc.mallopt(m_mmap_threshold, 1 << 30)
    libc.mallopt(m_trim_threshold, 1 << 30)


def copy_of(x: Array, out: Array, pool: ThreadPoolExecutor, threads: int) -> Run:
    """Return a copy of x to out by `threads` threads; by one, where waking the others would take longer."""
    source, destination = x.view(np.uint8).reshape(-1), out.view(np.uint8).reshape(-1)
    if x.nbytes < 1 << 20:
        return lambda: np.copyto(destination, source)
    bounds = [x.nbytes * i // threads for i in range(threads + 1)]
    parts = [slice(*pair) for pair in itertools.pairwise(bounds)]

    def run() -> None:
        others = [pool.submit(np.copyto, destination[part], source[part]) for part in parts[1:]]
        np.copyto(destination[parts[0]], source[parts[0]])
        for other in others:
            other.result()

    return run


def largest_relative_error(result: Array, x: Array) -> float:
    """Return the largest |result - p| / p over the results that are normal numbers, p by float64."""
    worst = 0.0
    smallest = 2.0**-14 if x.dtype.name == "float16" else 2.0**-126
    for row, got in zip(x, result, strict=True):
        e = np.exp(row.astype(np.float64) - np.float64(row.max()))
        p = e / e.sum()
        normal = p >= smallest
        worst = max(worst, float(np.max(np.abs(got.astype(np.float64)[normal] - p[normal]) / p[normal])))
    return worst


def measure(
    backend: backends.Backend, rows: int, cols: int, dtype: str, threads: int
) -> tuple[dict[str, Timing], dict[str, float], dict[str, str]]:
    """Check and time all contestants at one shape; return timings, errors, and why some are missing."""
    x = np.random.default_rng(0).standard_normal((rows, cols), dtype=np.float32).astype(DTYPES[dtype])
    out = np.zeros_like(x)
    contestants: dict[str, Run] = {OURS: lambda: backend.softmax(x, out=out)}
    errors: dict[str, float] = {}
    missing: dict[str, str] = {}
    contestants[OURS]()
    errors[OURS] = largest_relative_error(out, x)
    for name in peers.CPU_PEERS:
        try:
            peer = peers.prepare(name, x, out, threads)
        except peers.PeerUnavailableError as error:
            missing[name] = str(error)
            continue
        peer.run()
        errors[name] = largest_relative_error(peer.result(), x)
        contestants[name] = peer.run
    with ThreadPoolExecutor(max(1, threads - 1)) as pool:
        contestants[COPY] = copy_of(x, out, pool, threads)
        timings = race(contestants, ROUNDS)
    return timings, errors, missing


def parse_shape(text: str) -> tuple[int, int]:
    """Read ROWSxCOLS."""
    rows, _, cols = text.partition("x")
    if not (rows.isdigit() and cols.isdigit()):
        raise click.BadParameter(f"{text!r} is not ROWSxCOLS, such as 4096x4096")
    return int(rows), int(cols)


@click.command(help=__doc__)
@click.option("--backend", "backend_name", default="auto", show_default=True)
@click.option("--dtype", type=click.Choice(list(DTYPES)), default="float32", show_default=True)
@click.option("--threads", type=int, default=len(os.sched_getaffinity(0)), help="Threads of every contestant.")
@click.option("--shape", "shapes", multiple=True, help="ROWSxCOLS; may be given again.  [default: the table's]")
def main(backend_name: str, dtype: str, threads: int, shapes: tuple[str, ...]) -> None:
    """Print the table."""
    keep_freed_memory()
    console = Console(width=max(100, Console().width))
    backend = backends.select(backend_name, Config.model_construct(threads=threads))
    backend.warm_up()
    device = ", ".join(device.name for device in backend.devices)
    table = Table(title=f"softmax, {dtype}, backend {backend.name} ({device}), {threads} threads")
    table.add_column("rows x cols")
    table.add_column("who")
    for heading in ("us", "GB/s", "of the copy", "quartiles", "relative error"):
        table.add_column(heading, justify="right")
    reasons: dict[str, str] = {}
    chosen = [parse_shape(shape) for shape in shapes] or SHAPES
    for rows, cols in track(chosen, console=Console(stderr=True), transient=True, description="timing"):
        timings, errors, missing = measure(backend, rows, cols, dtype, threads)
        reasons |= missing
        moved = 2 * rows * cols * np.dtype(DTYPES[dtype]).itemsize
        for name in sorted(timings, key=[COPY, OURS, *peers.CPU_PEERS].index):
            low, middle, high = timings[name].ratio_to(timings[COPY])
            median = timings[name].median
            table.add_row(
                f"{rows} x {cols}",
                name,
                f"{median * 1e6:.1f}",
                f"{moved / median / 1e9:.1f}",
                f"{middle:.2f}",
                f"{low:.2f}-{high:.2f}",
                f"{errors[name]:.1e}" if name in errors else "",
                end_section=name == list(peers.CPU_PEERS)[-1],
            )
    console.print(table)
    for name, reason in reasons.items():
        console.print(f"{name}: {reason}")


if __name__ == "__main__":
    main()
