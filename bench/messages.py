"""The requests that the serving benchmarks send."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from softmaxd_proto.v1 import softmax_pb2


def request_of(rows: int, cols: int) -> bytes:
    """Return a SoftmaxRequest of float32 random numbers, shape (rows, cols), as it goes over the wire."""
    return encode(np.random.default_rng(0).standard_normal((rows, cols), dtype=np.float32))


def encode(x: NDArray[Any]) -> bytes:
    """Return a SoftmaxRequest of a float32 array as it goes over the wire."""
    return softmax_pb2.SoftmaxRequest(
        id="0123abcd-4567", data_type=softmax_pb2.DATA_TYPE_FLOAT32, shape=x.shape, payload=x.tobytes()
    ).SerializeToString()
