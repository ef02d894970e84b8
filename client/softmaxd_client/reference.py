"""What the right answer is: softmax in float64, and how far an answer may be from it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

# Absolute, for a probability and for a row's sum. An answer is rounded to its dtype, by half a unit of its last place:
# 2^-25 of a probability for float32, 2^-12 for float16, 2^-9 for bfloat16; the bounds leave room for a row's roundings
# to add up.
TOLERANCES = {"float32": 1e-4, "float16": 1e-3, "bfloat16": 1e-2}


def softmax(array: NDArray[Any]) -> NDArray[np.float64]:
    """Compute softmax over the last axis in float64.

    Args:
        array: The values as they were sent, shape (..., cols) with cols >= 1.

    Returns:
        float64 of the same shape.
    """
    wide = array.astype(np.float64)
    exponentials = np.exp(wide - wide.max(axis=-1, keepdims=True))
    probabilities: NDArray[np.float64] = exponentials / exponentials.sum(axis=-1, keepdims=True)
    return probabilities
