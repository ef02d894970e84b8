"""Time a backend beside a copy of the same bytes and the CPU's peers, all on arrays in the host's memory."""

from __future__ import annotations

import ctypes
import itertools
from concurrent.futures import ThreadPoolExecutor

import ml_dtypes
import numpy as np
import peers
from figures import COPY, Case, Figure
from peers import Array, Run
from softmaxd_server import backends
from softmaxd_server.config import Config
from timing import race

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


class CpuRace:
    """The contestants on arrays of the host.

    Args:
        backend_name: One of the server's backends, or auto.
        threads: Of every contestant.
    """

    def __init__(self, backend_name: str, threads: int) -> None:
        _keep_freed_memory()
        self._backend = backends.select(backend_name, Config.model_construct(threads=threads))
        self._backend.warm_up()
        self._threads = threads
        self.backend = self._backend.name
        self.device = ", ".join(device.name for device in self._backend.devices)
        self.setup = f"{threads} threads"

    def shapes(self, dtype: str) -> tuple[tuple[int, int], ...]:
        """Return the shapes that are timed where none are asked for."""
        return SHAPES

    def measure(self, rows: int, cols: int, dtype: str) -> Case:
        """Check and time all contestants at one shape."""
        x = np.random.default_rng(0).standard_normal((rows, cols), dtype=np.float32).astype(DTYPES[dtype])
        out = np.zeros_like(x)
        runs: dict[str, Run] = {OURS: lambda: self._backend.softmax(x, out=out)}
        figures = {COPY: Figure(COPY, "copy")}
        runs[OURS]()
        figures[OURS] = Figure(OURS, "softmaxd", error=largest_relative_error(out, x))
        for name in peers.CPU_PEERS:
            try:
                peer = peers.prepare(name, x, out, self._threads)
            except peers.PeerUnavailableError as error:
                figures[name] = Figure(name, "peer", fault=str(error))
                continue
            peer.run()
            figures[name] = Figure(name, "peer", error=largest_relative_error(peer.result(), x))
            runs[name] = peer.run
        with ThreadPoolExecutor(max(1, self._threads - 1)) as pool:
            runs[COPY] = _copy_of(x, out, pool, self._threads)
            timings = race(runs, ROUNDS)
        for name, timing in timings.items():
            figures[name] = figures[name].timed(timing, timings[COPY])
        return Case(rows, cols, dtype, tuple(figures.values()))


def _keep_freed_memory() -> None:
    """Let malloc keep what is freed: the first touch of a fresh page costs more than a copy of it."""
    m_trim_threshold, m_mmap_threshold = -1, -3
    libc = ctypes.CDLL(None)
    libc.mallopt(m_mmap_threshold, 1 << 30)
    libc.mallopt(m_trim_threshold, 1 << 30)


def _copy_of(x: Array, out: Array, pool: ThreadPoolExecutor, threads: int) -> Run:
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
    """Return the largest |result - p| / p, p by float64 and no smaller than the smallest normal number."""
    worst = 0.0
    smallest = 2.0**-14 if x.dtype.name == "float16" else 2.0**-126
    for row, got in zip(x, result, strict=True):
        e = np.exp(row.astype(np.float64) - np.float64(row.max()))
        p = e / e.sum()
        worst = max(worst, float(np.max(np.abs(got.astype(np.float64) - p) / np.maximum(p, smallest))))
    return worst
