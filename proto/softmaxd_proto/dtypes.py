"""The element types that travel, and what each is called by the contract and by numpy."""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np
from numpy.typing import DTypeLike

from softmaxd_proto.v1 import softmax_pb2


@dataclass(frozen=True)
class ElementType:
    """One row of the table `ELEMENT_TYPES`.

    Attributes:
        name: As it is said in messages, flags and by the native module.
        number: The contract's `DataType`.
        itemsize: Bytes per element.
        numpy: The little-endian numpy type.
    """

    name: str
    number: softmax_pb2.DataType
    itemsize: int
    numpy: np.dtype[np.generic]


ELEMENT_TYPES = (
    ElementType("float32", softmax_pb2.DATA_TYPE_FLOAT32, 4, np.dtype("<f4")),
    ElementType("float16", softmax_pb2.DATA_TYPE_FLOAT16, 2, np.dtype("<f2")),
    ElementType("bfloat16", softmax_pb2.DATA_TYPE_BFLOAT16, 2, np.dtype(ml_dtypes.bfloat16)),
)
BY_NAME = {element.name: element for element in ELEMENT_TYPES}
BY_NUMBER: dict[int, ElementType] = {int(element.number): element for element in ELEMENT_TYPES}
NAMES = ", ".join(BY_NAME)


def of_numpy(dtype: DTypeLike) -> ElementType | None:
    """Return the element type of a numpy dtype in any byte order, or None where there is none."""
    return BY_NAME.get(np.dtype(dtype).name)
