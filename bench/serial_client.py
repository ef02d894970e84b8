"""Send one request after the other, check the first answer, print the seconds that each took as JSON.

    python bench/serial_client.py TARGET ROWS COLS REPEATS

A process of its own, so that the client and the server do not share one GIL.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import click
import numpy as np
from harness.reference import assert_close
from softmaxd_client import SoftmaxClient


@click.command()
@click.argument("target")
@click.argument("rows", type=int)
@click.argument("cols", type=int)
@click.argument("repeats", type=int)
def main(target: str, rows: int, cols: int, repeats: int) -> None:
    """Run it."""
    x = (np.random.default_rng(1).standard_normal((rows, cols)) * 3).astype(np.float32)
    seconds = []
    with SoftmaxClient(target) as client:
        assert_close(client.softmax(x), x)
        for _ in range(repeats):
            start = time.perf_counter()
            client.softmax(x)
            seconds.append(time.perf_counter() - start)
    print(json.dumps(seconds))


if __name__ == "__main__":
    main()
