"""Take turns with Triton when told to: the client of triton_contestants.py, in a process and interpreter of its own.

    build/triton/bin/python bench/triton_client.py PORT COLS ROWS...

Checks every tensor by every transport, prints "ready"; then answers each line TRANSPORT ROWS on standard input with a
line of JSON, the seconds of each call of one turn. float32. Inline, a call is what a user writes, from an array to an
array; through system shared memory the tensors are in place before it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import tritonclient.grpc as triton
from numpy.typing import NDArray
from tritonclient.utils import shared_memory
from turns import take_turn

MODEL = "softmax"
TOLERANCE = 1e-5  # numpy's float32 arithmetic


def call_inline(client: Any, x: NDArray[Any]) -> Callable[[], NDArray[Any]]:
    """Return what sends x in a message and gives the result."""
    outputs = [triton.InferRequestedOutput("y")]

    def call() -> NDArray[Any]:
        tensor = triton.InferInput("x", x.shape, "FP32")
        tensor.set_data_from_numpy(x)
        result: NDArray[Any] = client.infer(MODEL, [tensor], outputs=outputs).as_numpy("y")
        return result

    return call


def call_shared_memory(client: Any, x: NDArray[Any]) -> Callable[[], NDArray[Any]]:
    """Return what computes x, which lies in shared memory, and gives the result there."""
    regions = {name: f"bench-{name}-{len(x)}-{os.getpid()}" for name in "xy"}
    handles = {}
    for name, region in regions.items():
        handles[name] = shared_memory.create_shared_memory_region(region, f"/{region}", x.nbytes, create_only=True)
        client.register_system_shared_memory(region, f"/{region}", x.nbytes)
    shared_memory.set_shared_memory_region(handles["x"], [x])
    tensor = triton.InferInput("x", x.shape, "FP32")
    tensor.set_shared_memory(regions["x"], x.nbytes)
    output = triton.InferRequestedOutput("y")
    output.set_shared_memory(regions["y"], x.nbytes)
    result: NDArray[Any] = shared_memory.get_contents_as_numpy(handles["y"], np.float32, x.shape)
    HANDLES.extend(handles.values())

    def call() -> NDArray[Any]:
        client.infer(MODEL, [tensor], outputs=[output])
        return result

    return call


HANDLES: list[Any] = []
TRANSPORTS = {"inline": call_inline, "shared_memory": call_shared_memory}


def check(result: NDArray[Any], x: NDArray[Any]) -> None:
    """Assert that Triton computes."""
    wide = x.astype(np.float64)
    np.exp(wide - wide.max(-1, keepdims=True), out=wide)
    wide /= wide.sum(-1, keepdims=True)
    np.testing.assert_allclose(result, wide, rtol=TOLERANCE)


def main(port: str, cols: int, all_rows: list[int]) -> None:
    """Check, then serve the lines of standard input until SIGTERM."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    client = triton.InferenceServerClient(f"127.0.0.1:{port}")
    calls = {}
    try:
        for rows in all_rows:
            x = np.random.default_rng(1).standard_normal((rows, cols), dtype=np.float32) * 3
            for transport, make in TRANSPORTS.items():
                call = calls[transport, rows] = make(client, x)
                check(call(), x)
        print("ready", flush=True)
        for line in sys.stdin:
            transport, text = line.split()
            print(json.dumps(take_turn(calls[transport, int(text)])), flush=True)
    finally:
        client.unregister_system_shared_memory()
        calls.clear()
        for handle in HANDLES:
            shared_memory.destroy_shared_memory_region(handle)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), [int(rows) for rows in sys.argv[3:]])
