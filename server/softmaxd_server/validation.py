"""Whether a request's data type, shape and payload are allowed and fit together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from softmaxd_proto import dtypes
from softmaxd_proto.v1 import softmax_pb2

from softmaxd_server.backends.base import Work
from softmaxd_server.errors import InvalidTensorError

MAX_RANK = 32  # numpy 1 had this bound, and no client has a use for more
_MAX_ELEMENTS = 2**63 - 1


class TensorHeader(Protocol):
    """The fields that a unary request and a request of a stream share."""

    @property
    def data_type(self) -> softmax_pb2.DataType:
        """The element type's number; any integer can come off the wire."""

    @property
    def shape(self) -> Sequence[int]:
        """Any integers can come off the wire."""

    @property
    def options(self) -> softmax_pb2.SoftmaxOptions:
        """All defaults where absent."""


def work_of(header: TensorHeader, payload_bytes: int) -> Work | None:
    """Return what a request asks for, or None where there is nothing to compute.

    Args:
        header: The request without its payload.
        payload_bytes: The payload's size.

    Raises:
        InvalidTensorError: The type is unknown; the rank is 0 or over `MAX_RANK`; a dimension is negative; the shape
            has more than 2**63 - 1 elements; or the payload's size is not what shape and type say.
    """
    element = dtypes.BY_NUMBER.get(header.data_type)
    if element is None:
        raise InvalidTensorError(f"got data_type {_data_type(header.data_type)}, allowed are {dtypes.NAMES}")
    shape = header.shape
    rank = len(shape)
    if not 1 <= rank <= MAX_RANK:
        raise InvalidTensorError(
            f"got a shape of rank {rank}, allowed is 1 to {MAX_RANK}: softmax runs over the last axis"
        )
    elements = 1
    for dimension in shape:
        if dimension < 0:
            raise InvalidTensorError(f"got shape {list(shape)}, every dimension must be 0 or more: send the real sizes")
        elements *= dimension
    if elements > _MAX_ELEMENTS:
        raise InvalidTensorError(f"got shape {list(shape)} of {elements} elements, allowed are up to {_MAX_ELEMENTS}")
    expected_bytes = elements * element.itemsize
    if payload_bytes != expected_bytes:
        raise InvalidTensorError(
            f"got a payload of {payload_bytes} bytes, expected {expected_bytes} for shape {list(shape)} of "
            f"{element.name} ({element.itemsize} bytes an element): send row-major little-endian elements"
        )
    if elements == 0:
        return None
    cols = shape[-1]
    return Work(elements // cols, cols, element, header.options.zero_masked_rows)


def _data_type(number: int) -> str:
    return "DATA_TYPE_UNSPECIFIED" if number == softmax_pb2.DATA_TYPE_UNSPECIFIED else str(number)
