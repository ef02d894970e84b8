"""Arrays of any make into a tensor's bytes, and an answer's bytes into arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from softmaxd_proto import dtypes

from softmaxd_client import dlpack
from softmaxd_client.errors import InvalidTensorError

# What `to_tensor` takes; see there.
TensorLike: TypeAlias = "ArrayLike | dlpack.SupportsDLPack"

# protobuf's bound on a message, less room for the header.
MAX_PAYLOAD_BYTES = 2**31 - 1 - 64 * 1024


@dataclass(frozen=True)
class Layout:
    """All of a tensor but its elements.

    Attributes:
        element: What travels.
        shape: At least one dimension; softmax runs over the last.
        dtype: The caller's numpy type, which may be of the other byte order.
    """

    element: dtypes.ElementType
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def nbytes(self) -> int:
        """The payload's size in bytes."""
        size = self.element.itemsize
        for dimension in self.shape:
            size *= dimension
        return size


@dataclass(frozen=True)
class Tensor:
    """A tensor ready to be sent.

    Attributes:
        layout: Its element type and shape.
        payload: Its elements, row-major and little-endian, as contiguous bytes. A view of the caller's memory where
            that already is so; else of a copy.
    """

    layout: Layout
    payload: memoryview


def to_tensor(value: TensorLike) -> Tensor:
    """Turn a value into a tensor.

    Args:
        value: float32, float16 or bfloat16 of rank >= 1, as one of

            * a numpy array, `ml_dtypes.bfloat16` included, in any memory order and any byte order;
            * a tensor that exports DLPack from CPU memory, such as PyTorch's, bfloat16 included;
            * an object with `__array__`;
            * a list or tuple, nested or not. Python's numbers say nothing of a precision and become float32.

    Raises:
        InvalidTensorError: The value is none of these, has no dimension, another element type, or more bytes than one
            message can hold.
    """
    array = as_array(value)
    layout = layout_of(array)
    check_message_bytes(layout.nbytes)
    contiguous = np.ascontiguousarray(array, dtype=layout.element.numpy)
    # Through uint8, as Python's buffers know no bfloat16.
    return Tensor(layout, contiguous.reshape(-1).view(np.uint8).data)


def check_message_bytes(nbytes: int) -> None:
    """Make sure that one message can hold a tensor, or a block of one, of so many bytes.

    Raises:
        InvalidTensorError: It cannot.
    """
    if nbytes > MAX_PAYLOAD_BYTES:
        raise InvalidTensorError(
            f"got {nbytes} bytes for one message; allowed: {MAX_PAYLOAD_BYTES} bytes, as protobuf holds no more. "
            "A tensor is split by rows, but never within one: send shorter rows"
        )


def layout_of(array: NDArray[Any]) -> Layout:
    """Return the layout of an array that can be a tensor, whatever its size.

    Raises:
        InvalidTensorError: It has no dimension, or another element type than the allowed ones.
    """
    element = dtypes.of_numpy(array.dtype)
    if element is None:
        raise InvalidTensorError(
            f"got an array of {array.dtype.name}; allowed: {dtypes.NAMES}. "
            "Convert it first, e.g. array.astype(numpy.float32)"
        )
    if array.ndim == 0:
        raise InvalidTensorError(
            "got an array without dimensions; allowed: one dimension or more, as softmax runs over the last. "
            "Reshape it first, e.g. array.reshape(1)"
        )
    return Layout(element, array.shape, array.dtype)


def to_array(payload: memoryview, layout: Layout, *, out: NDArray[Any] | None, writable: bool) -> NDArray[Any]:
    """Turn an answer's payload into an array of the request's shape and dtype.

    The received bytes are Python `bytes`, which nothing may write to, so a writable array costs one copy. It is made
    by default, as an array that refuses `+=` surprises more than the copy costs; `out` and `writable=False` spare its
    memory, and the copy itself.

    Args:
        payload: As many bytes as `layout` says.
        layout: The request's.
        out: Where to write the answer; see `check_out`.
        writable: False gives a read-only view of the payload, which may be unaligned.

    Returns:
        `out` where it is given.
    """
    view = np.ndarray(layout.shape, layout.element.numpy, payload)
    if out is not None:
        np.copyto(out, view, casting="equiv")
        return out
    return view.astype(layout.dtype, copy=writable)


def check_out(out: NDArray[Any], layout: Layout) -> None:
    """Make sure that an answer can be written into an array.

    Args:
        out: A writable array of the request's shape and element type, in any memory order and either byte order. It
            may overlap the request's own memory, which is read in full before the answer is written.
        layout: The request's.

    Raises:
        InvalidTensorError: It cannot.
    """
    if not isinstance(out, np.ndarray):
        raise InvalidTensorError(f"out is a {type(out).__name__}; allowed: a numpy array")
    if out.shape != layout.shape or dtypes.of_numpy(out.dtype) != layout.element:
        raise InvalidTensorError(
            f"out is {out.dtype.name} of shape {out.shape}; allowed: {layout.element.name} of shape {layout.shape}, "
            "as the input"
        )
    if not out.flags.writeable:
        raise InvalidTensorError("out is read-only; allowed: a writable array")


def as_array(value: TensorLike) -> NDArray[Any]:
    """Return a value as a numpy array, not copied where it has memory of its own.

    Args:
        value: As for `to_tensor`.

    Raises:
        InvalidTensorError: It is no array; its element type and shape are not looked at.
    """
    if isinstance(value, np.ma.MaskedArray):
        raise InvalidTensorError(
            "got a masked array, whose mask would be lost. Fill it first, e.g. array.filled(-numpy.inf)"
        )
    try:
        if isinstance(value, (list, tuple, int, float)):
            return _from_numbers(value)
        if isinstance(value, dlpack.SupportsDLPack) and not isinstance(value, np.ndarray):
            return dlpack.to_array(value)
        return np.asarray(value)
    except (ValueError, TypeError, OverflowError, FloatingPointError, BufferError, RuntimeError) as error:
        raise InvalidTensorError(f"a {type(value).__name__} could not be read as an array: {error}") from error


def _from_numbers(numbers: ArrayLike) -> NDArray[Any]:
    """Return Python numbers as float32, and a list of arrays as what those are."""
    array = np.asarray(numbers)
    if array.dtype == np.float64 or array.dtype.kind in "iu":
        with np.errstate(over="raise"):  # an infinity that nobody wrote would turn the whole row into NaN
            return array.astype(np.float32)
    return array
