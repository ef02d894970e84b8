"""The numpy backend: always there, and what the others are judged by."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from softmaxd_server.backends.arrays import check_variant, operands
from softmaxd_server.backends.base import Device, Plan, PoolUse, Variant, Work, warm_up_every_type

VARIANT = Variant("row_block", "A block of rows at a time in float64 by numpy; the reference for every shape.")
# float64 elements in flight: 2 MB a temporary stays in the cache, and a request's memory stays bounded.
_BLOCK_ELEMENTS = 256 * 1024
_SMALLEST_NORMAL_FLOAT32 = np.float32(2.0**-126)


class NumpyBackend:
    """A `Backend` that needs nothing but numpy."""

    name = "numpy"
    devices: Sequence[Device] = (Device("numpy", 1, "threads"),)
    variants: Sequence[Variant] = (VARIANT,)
    tuning = ""
    # 4096 elements of 2 bytes take 30-103 us on a Xeon with AVX-512.
    inline_bytes = 8 * 1024

    def pools(self) -> Sequence[PoolUse]:
        """Return nothing: numpy keeps no pool."""
        return ()

    def warm_up(self) -> None:
        """See `Backend.warm_up`."""
        warm_up_every_type(self)

    def close(self) -> None:
        """Do nothing: there is nothing to give back."""

    def plan(self, work: Work) -> Plan:
        """See `Backend.plan`; a row is one tile."""
        return Plan(VARIANT.name, work.cols, 1)

    def answer(self, prefix: bytes, source: memoryview, work: Work) -> tuple[bytes, Mapping[str, float]]:
        """See `Backend.answer`; numpy cannot write behind a prefix, so the result is copied once."""
        result = np.empty(source.nbytes, np.uint8).data
        phases = self.compute(source, result, work)
        return b"".join((prefix, result)), phases

    def compute(self, source: memoryview, destination: memoryview, work: Work) -> Mapping[str, float]:
        """See `Backend.compute`."""
        started = time.perf_counter()
        x, result = (
            np.frombuffer(memory, work.element.numpy).reshape(work.rows, work.cols) for memory in (source, destination)
        )
        _softmax(x, result, work.zero_masked_rows)
        return {"kernel": time.perf_counter() - started}

    def register_memory(self, memory: memoryview) -> None:
        """Do nothing: numpy reaches all memory."""

    def unregister_memory(self, memory: memoryview) -> None:
        """Do nothing."""

    def softmax(
        self,
        x: NDArray[Any],
        *,
        out: NDArray[Any] | None = None,
        variant: str | None = None,
        zero_masked_rows: bool = False,
    ) -> NDArray[Any]:
        """See `Backend.softmax`."""
        check_variant(variant, self.variants)
        source, result, work = operands(x, out, zero_masked_rows)
        if work is not None:
            shape = (work.rows, work.cols)
            _softmax(source.reshape(shape), result.reshape(shape), zero_masked_rows)
        return result


def _softmax(x: NDArray[Any], out: NDArray[Any], zero_masked_rows: bool) -> None:
    """Write softmax of each row of `x` `(rows, cols)` into `out`; both C-contiguous, of one element type."""
    rows, cols = x.shape
    step = max(1, _BLOCK_ELEMENTS // cols)
    with np.errstate(all="ignore"):  # NaN, inf and underflow are answers here, not accidents
        for start in range(0, rows, step):
            block = x[start : start + step].astype(np.float64)
            largest = block.max(axis=1, keepdims=True)  # NaN if there is one in the row
            block -= largest  # inf - inf: a row with +inf, or of nothing but -inf, becomes NaN
            np.exp(block, out=block)
            block /= block.sum(axis=1, keepdims=True)
            if zero_masked_rows:
                block[largest[:, 0] == -np.inf] = 0
            out[start : start + step] = _round(block, out.dtype)


def _round(block: NDArray[np.float64], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Round to the element type. Types with float32's exponent get no subnormals, which GPUs do not write either."""
    if dtype == np.float16:
        return block.astype(dtype)
    rounded = block.astype(np.float32)
    rounded[rounded < _SMALLEST_NORMAL_FLOAT32] = 0
    return rounded.astype(dtype)
