"""Whether a request's data type, shape and payload are allowed and fit together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from softmaxd_proto import dtypes
from softmaxd_proto.v1 import softmax_pb2

from softmaxd_server.backends.base import Work
from softmaxd_server.errors import InvalidTensorError, LostRegionError
from softmaxd_server.regions import Slice
from softmaxd_server.transports import DEVICE_MEMORY

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


class Slices(NamedTuple):
    """The slices of registered memory that a request names, at least one; called as the request's fields are."""

    source: Slice | None
    destination: Slice | None

    @property
    def named(self) -> tuple[Slice, ...]:
        """Those that there are."""
        return tuple(each for each in self if each is not None)

    @property
    def transport(self) -> str:
        """The kind of memory; where both are named, that of the source."""
        return self.named[0].region.kind

    def are_intact(self) -> bool:
        """Say whether all their pages are still there."""
        return all(each.region.is_intact() for each in self.named)


def work_of_slices(header: TensorHeader, payload_bytes: int, slices: Slices) -> Work | None:
    """Return what a request asks for that names registered memory, or None where there is nothing to compute.

    Args:
        header: As for `work_of`.
        payload_bytes: As for `work_of`; 0 where there is a source.
        slices: What it names.

    Raises:
        InvalidTensorError: As by `work_of`; or a slice has not the tensor's size; there is both a source and a payload;
            only one side is on a device; the slices overlap in part; or one on a device does not start at a multiple of
            the element's size.
        LostRegionError: A slice's memory is not there any more.
    """
    source, destination = slices
    if source is not None and payload_bytes:
        raise InvalidTensorError(f"got a source and a payload of {payload_bytes} bytes: send one of them")
    size, what = (payload_bytes, "a payload") if source is None else (source.byte_size, "a source")
    work = work_of(header, size, what)
    if destination is not None and destination.byte_size != size:
        raise InvalidTensorError(
            f"got a destination of {destination.byte_size} bytes, expected {size}, as the tensor has"
        )
    on_device = [each.region.kind == DEVICE_MEMORY for each in slices.named]
    if any(on_device) and on_device != [True, True]:
        raise InvalidTensorError(
            "got device memory on one side only: source and destination must both be device memory, or neither"
        )
    if source is not None and destination is not None and source.overlaps_in_part(destination):
        raise InvalidTensorError("got a source and a destination that overlap in part: send the same bytes, or none")
    if work is not None and any(on_device) and any(each.offset % work.element.itemsize for each in slices.named):
        raise InvalidTensorError(
            f"got offsets {[each.offset for each in slices.named]}; in device memory they must be multiples of "
            f"{work.element.itemsize}, the size of {work.element.name}"
        )
    if not slices.are_intact():
        raise LostRegionError
    return work


def work_of(header: TensorHeader, payload_bytes: int, what: str = "a payload") -> Work | None:
    """Return what a request asks for, or None where there is nothing to compute.

    Args:
        header: The request without its payload.
        payload_bytes: The payload's size.
        what: What has this size, for messages.

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
            f"got {what} of {payload_bytes} bytes, expected {expected_bytes} for shape {list(shape)} of "
            f"{element.name} ({element.itemsize} bytes an element): send row-major little-endian elements"
        )
    if elements == 0:
        return None
    cols = shape[-1]
    return Work(elements // cols, cols, element, header.options.zero_masked_rows)


def _data_type(number: int) -> str:
    return "DATA_TYPE_UNSPECIFIED" if number == softmax_pb2.DATA_TYPE_UNSPECIFIED else str(number)
