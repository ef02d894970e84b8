"""The requests that the serving benchmarks send."""

from __future__ import annotations

import numpy as np
from softmaxd_proto.v1 import softmax_pb2


def request_of(rows: int, cols: int) -> bytes:
    """Return a SoftmaxRequest of float32 random numbers, shape (rows, cols), as it goes over the wire."""
    x = np.random.default_rng(0).standard_normal((rows, cols), dtype=np.float32)
    return softmax_pb2.SoftmaxRequest(
        id="0123abcd-4567", data_type=softmax_pb2.DATA_TYPE_FLOAT32, shape=x.shape, payload=x.tobytes()
    ).SerializeToString()
