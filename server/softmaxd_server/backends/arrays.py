"""What `Backend.softmax` makes of its arrays, the same for every backend."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from softmaxd_proto import dtypes

from softmaxd_server.backends.base import Variant, Work


class Operands(NamedTuple):
    """A source and a result of the same shape and type, both C-contiguous and little-endian, and the work on them.

    `work` is None where there is nothing to compute.
    """

    source: NDArray[Any]
    result: NDArray[Any]
    work: Work | None


def operands(x: NDArray[Any], out: NDArray[Any] | None, zero_masked_rows: bool) -> Operands:
    """Check the arguments of `Backend.softmax`.

    Raises:
        ValueError: The type or the rank of `x`, or `out`, is not allowed.
    """
    element = dtypes.of_numpy(x.dtype)
    if element is None:
        raise ValueError(f"got an array of {x.dtype}, allowed are {dtypes.NAMES}: convert it first")
    if x.ndim == 0:
        raise ValueError("got an array of rank 0, allowed is 1 and up: softmax runs over the last axis")
    source = np.ascontiguousarray(x, element.numpy)
    result = np.empty(x.shape, element.numpy) if out is None else out
    if result.shape != x.shape or result.dtype != element.numpy or not result.flags.c_contiguous:
        raise ValueError(
            f"got out with shape {result.shape}, type {result.dtype}, C-contiguous: {result.flags.c_contiguous}; "
            f"it must be a C-contiguous array of shape {x.shape} and type {element.numpy}"
        )
    cols = x.shape[-1]
    work = Work(source.size // cols, cols, element, zero_masked_rows) if source.size else None
    return Operands(source, result, work)


def check_variant(variant: str | None, variants: Sequence[Variant]) -> None:
    """Raise ValueError unless `variant` is None or a name out of `variants`."""
    names = [each.name for each in variants]
    if variant is not None and variant not in names:
        raise ValueError(f"got variant {variant!r}, allowed are {', '.join(names)}")
