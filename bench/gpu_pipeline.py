"""Time the device core without a server: phases of a call, by the number of copying threads.

    python bench/gpu_pipeline.py --backend cuda

The result goes to memory that is written anew each time, as an answer's is, and is checked once. float32, medians.
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import click
import numpy as np
from harness.reference import assert_close
from softmaxd_proto import dtypes
from softmaxd_server.backends import select
from softmaxd_server.backends.base import Work
from softmaxd_server.config import Config

PHASES = ("upload", "kernel", "download")
SHAPES = {(1, 1024): 1000, (64, 4096): 100, (1024, 4096): 30, (4096, 4096): 30, (128, 32768): 30, (1, 4194304): 30}


@click.command()
@click.option("--backend", "name", default="cuda", show_default=True)
@click.option("--threads", multiple=True, type=int, default=(1, 4, 8, 12), show_default=True)
def main(name: str, threads: tuple[int, ...]) -> None:
    """Print one line for each number of threads and shape, times in microseconds."""
    print(" | ".join(("threads", "rows x cols", *PHASES, "all")))
    for count in threads:
        backend = select(name, Config.model_construct(threads=count))
        backend.warm_up()
        for (rows, cols), repeats in SHAPES.items():
            x = (np.random.default_rng(1).standard_normal((rows, cols)) * 3).astype(np.float32)
            work = Work(rows, cols, dtypes.BY_NAME["float32"], False)
            answer, _ = backend.answer(b"", memoryview(x.tobytes()), work)
            assert_close(np.frombuffer(answer, np.float32).reshape(x.shape), x)
            source = memoryview(x.tobytes())
            noted = [backend.answer(b"", source, work)[1] for _ in range(repeats)]
            figures = [statistics.median(phases[phase] for phases in noted) for phase in PHASES]
            figures.append(statistics.median(sum(phases.values()) for phases in noted))
            print(
                " | ".join((str(count), f"{rows} x {cols}", *(f"{figure * 1e6:.0f}" for figure in figures))), flush=True
            )
        backend.close()


if __name__ == "__main__":
    main()
