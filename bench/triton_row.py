"""The softmax that one writes in Triton: a program a row, the row in registers, one read and one write."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

# A block is a power of two, and the row of a program has to fit into one multiprocessor's registers, or spills.
MAX_COLUMNS = 131072
# Columns of the block, up to and including -> warps of the program.
WARPS = {256: 1, 512: 2, 1024: 4, 4096: 8, 16384: 16, MAX_COLUMNS: 32}


@triton.jit
def _softmax_row(source, destination, cols, BLOCK: tl.constexpr):  # noqa: N803 - Triton's way to write a constant
    """Compute softmax of row program_id(0). source, destination: (rows, cols), row-major and contiguous."""
    start = tl.program_id(0).to(tl.int64) * cols
    columns = tl.arange(0, BLOCK)
    is_inside = columns < cols
    x = tl.load(source + start + columns, mask=is_inside, other=-float("inf")).to(tl.float32)
    e = tl.exp(x - tl.max(x, axis=0))
    tl.store(destination + start + columns, e / tl.sum(e, axis=0), mask=is_inside)


def softmax(source: Any, destination: Any) -> None:
    """Start a softmax over the rows of a tensor in torch's current stream.

    Args:
        source: A tensor on the device, shape (rows, cols), cols up to MAX_COLUMNS, contiguous.
        destination: The same shape and dtype.
    """
    rows, cols = source.shape
    block = triton.next_power_of_2(cols)
    warps = next(count for columns, count in WARPS.items() if block <= columns)
    _softmax_row[(rows,)](source, destination, cols, BLOCK=block, num_warps=warps)
