"""Time the GPU variants beside a copy of the same bytes and torch.softmax, on one NVIDIA device and in one run.

    make bench-gpu

Needs PyTorch, and the library that `make` builds from gpu_kernels.cpp. float32; each result is checked first. Shapes of
64 MiB and more, in and out, are timed call by call; smaller ones as replays of a captured graph, so that the figure is
the device's and not the launch's. Medians.
"""

from __future__ import annotations

import ctypes
import statistics
from collections.abc import Callable
from pathlib import Path

import click
import torch

SHAPES = [
    (262144, 128),
    (65536, 1024),
    (16384, 4096),
    (8192, 8192),
    (4096, 16384),
    (2048, 32768),
    (1024, 65536),
    (512, 131072),
    (256, 262144),
    (1, 1024),
    (4, 32768),
    (4, 65536),
    (16, 131072),
    (1, 1048576),
    (4, 1048576),
    (1, 16777216),
]
SMALL_BYTES = 64 * 2**20
REPEATS = 31
REPLAYS = 20
TOLERANCE = 1e-6


def load(path: str) -> ctypes.CDLL:
    """Load the library and declare its functions."""
    library = ctypes.CDLL(path)
    size, text, pointer = ctypes.c_size_t, ctypes.c_char_p, ctypes.c_void_p
    library.variant_name.restype, library.variant_name.argtypes = text, [size]
    library.workspace_bytes.restype, library.workspace_bytes.argtypes = size, [text, size, size]
    library.start.restype = ctypes.c_int
    library.start.argtypes = [text, pointer, pointer, size, size, pointer, pointer, pointer]
    library.counter_bytes.restype, library.counter_bytes.argtypes = size, []
    library.max_columns.restype, library.max_columns.argtypes = size, [text]
    return library


def microseconds(run: Callable[[], object], moved_bytes: int) -> float:
    """Return the median time of one call, which puts its work into torch's current stream."""
    calls = 1
    run()
    if moved_bytes < SMALL_BYTES:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(REPLAYS):
                run()
        run, calls = graph.replay, REPLAYS
    times = []
    for i in range(REPEATS + 3):
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        run()
        stop.record()
        stop.synchronize()
        if i >= 3:  # the first ones warm up
            times.append(start.elapsed_time(stop) * 1e3 / calls)
    return statistics.median(times)


@click.command()
@click.argument("library_path", default=str(Path(__file__).parents[1] / "build" / "gpu" / "libgpu_kernels.so"))
def main(library_path: str) -> None:
    """Print one line a shape."""
    library = load(library_path)
    numbers = iter(range(100))
    variants = list(iter(lambda: library.variant_name(next(numbers)), None))
    print(f"device: {torch.cuda.get_device_name()}, torch {torch.__version__}, CUDA {torch.version.cuda}")
    titles = ["copy", "torch", *(name.decode() for name in variants)]
    print(f"{'rows x cols':>20}" + "".join(f"{title:>11}" for title in titles) + "   microseconds")
    torch.manual_seed(1)
    counters = torch.zeros(library.counter_bytes(), dtype=torch.uint8, device="cuda")
    for rows, cols in SHAPES:
        source = torch.randn(rows, cols, device="cuda") * 3
        result = torch.empty_like(source)
        expected = torch.softmax(source[: 2**24 // cols + 1].double(), dim=-1)
        moved_bytes = 2 * source.nbytes
        runs: list[Callable[[], object] | None] = [
            lambda source=source, result=result: result.copy_(source),
            lambda source=source, result=result: torch.softmax(source, -1, out=result),
        ]
        for name in variants:
            if cols > library.max_columns(name):
                runs.append(None)
                continue
            workspace = torch.empty(max(1, library.workspace_bytes(name, rows, cols)), dtype=torch.uint8, device="cuda")

            def start(name=name, source=source, result=result, workspace=workspace) -> None:
                stream = torch.cuda.current_stream().cuda_stream
                pointers = (workspace.data_ptr(), counters.data_ptr(), stream)
                error = library.start(name, source.data_ptr(), result.data_ptr(), *source.shape, *pointers)
                assert error == 0, f"{name}: error {error}"

            result.fill_(torch.nan)
            start()
            got = result[: len(expected)].double()
            worst = ((got - expected).abs() / expected.clamp_min(2**-126)).max().item()
            assert worst <= TOLERANCE, f"{name} at {rows} x {cols} is off by {worst:.2g}"
            assert not result.isnan().any(), f"{name} at {rows} x {cols} left out elements"
            runs.append(start)
        cells = ["-" if run is None else f"{microseconds(run, moved_bytes):.1f}" for run in runs]
        print(f"{rows:>10} x {cols:>7}" + "".join(f"{cell:>11}" for cell in cells), flush=True)


if __name__ == "__main__":
    main()
