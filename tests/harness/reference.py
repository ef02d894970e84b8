"""Softmax in float64, written apart from every backend, and what a backend may differ from it by."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

DTYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}

# Relative, on results that are normal numbers of their type.
# float32: the contract's bound. float16 and bfloat16: half a unit in the last place (2^-11, 2^-8) of rounding the
# result, and the float32 arithmetic before it.
RELATIVE_TOLERANCE = {"float32": 1e-6, "float16": 2.0**-11 * 1.01, "bfloat16": 2.0**-8 * 1.01}

# Below these a result is subnormal. float32 and bfloat16 are flushed to zero there; float16 keeps its subnormals,
# which are 2^-24 apart.
SMALLEST_NORMAL = {"float32": 2.0**-126, "float16": 2.0**-14, "bfloat16": 2.0**-126}
SUBNORMAL_TOLERANCE = {"float32": 2.0**-126, "float16": 2.0**-25 * 1.01, "bfloat16": 2.0**-126}


def softmax(x: Array) -> Array:
    """Return softmax over the last axis in float64; rows of -inf give NaN. Shape as x."""
    if x.size == 0:
        return x.astype(np.float64)
    wide = x.astype(np.float64)
    with np.errstate(invalid="ignore"):
        e = np.exp(wide - wide.max(-1, keepdims=True))
        return e / e.sum(-1, keepdims=True)


def assert_close(result: Array, x: Array) -> None:
    """Assert that `result` is the softmax of `x`, NaN for NaN, within the tolerance of x's dtype."""
    assert result.shape == x.shape
    assert result.dtype == x.dtype
    name = x.dtype.name
    expected = softmax(x)
    got = result.astype(np.float64)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(expected))
    finite = ~np.isnan(expected)
    tolerance = np.where(
        expected >= SMALLEST_NORMAL[name], expected * RELATIVE_TOLERANCE[name], SUBNORMAL_TOLERANCE[name]
    )
    excess = np.abs(got - expected)[finite] / tolerance[finite]
    assert excess.size == 0 or excess.max() <= 1, f"{excess.max():.2f} times the tolerance of {name}"


def masked_scores(rng: np.random.Generator, rows: int, cols: int) -> Array:
    """Return float32 scores with outliers, -inf and finfo.min masks: inputs that make a mistake visible."""
    x = rng.standard_normal((rows, cols), dtype=np.float32) * 3
    x[rng.random((rows, cols)) < 0.02] *= 20
    if cols > 1:
        x[:, 1:][rng.random((rows, cols - 1)) < 0.1] = -np.inf
        x[:, 1:][rng.random((rows, cols - 1)) < 0.1] = np.finfo(np.float32).min
    return x
