"""DLPack's descriptor of a tensor, and DLPack tensors of the CPU as numpy arrays, bfloat16 included.

numpy reads no bfloat16 through DLPack, and frameworks such as PyTorch give it to numpy in no other way either. Here the
exported descriptor is told to say uint16, an element of the same size, before numpy sees it; the array is then viewed
as `ml_dtypes.bfloat16`. No framework is imported for it, and no element is copied.
"""

from __future__ import annotations

import ctypes
from typing import Any, Protocol, runtime_checkable

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

# dlpack.h, DLDataTypeCode and DLDeviceType.
_CODE_UINT = 1
CODE_FLOAT = 2
CODE_BFLOAT = 4
_BFLOAT16_BITS = 16
_HOST_DEVICES = {1: "CPU", 3: "CUDA pinned host memory", 11: "ROCm pinned host memory"}


@runtime_checkable
class SupportsDLPack(Protocol):
    """An object that exports its memory through DLPack: a tensor of PyTorch, JAX, CuPy and others."""

    def __dlpack__(self, *, stream: Any = None) -> Any: ...

    def __dlpack_device__(self) -> tuple[int, int]: ...


class DataType(ctypes.Structure):
    """DLDataType."""

    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class Tensor(ctypes.Structure):
    """DLTensor; the strides count elements, and may be NULL for a C-contiguous tensor."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("dtype", DataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class VersionedTensor(ctypes.Structure):
    """DLManagedTensorVersioned; DLManagedTensor starts with the tensor itself."""

    _fields_ = (
        ("version_major", ctypes.c_uint32),
        ("version_minor", ctypes.c_uint32),
        ("manager_context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", Tensor),
    )


_CAPSULE_NAMES = (b"dltensor", b"dltensor_versioned")
_VERSION_MAJOR = 1


def to_array(exporter: SupportsDLPack) -> NDArray[Any]:
    """Return a numpy array over the memory of a DLPack exporter, without a copy.

    Args:
        exporter: A tensor in host memory, of any element type that numpy or ml_dtypes knows.

    Raises:
        ValueError: The memory is not the host's.
        BufferError, RuntimeError, TypeError: The exporter refused, or numpy does not know the element type.
    """
    device_type, _ = exporter.__dlpack_device__()
    if device_type not in _HOST_DEVICES:
        raise ValueError(
            f"got a tensor in the memory of a device (DLPack device type {int(device_type)}); "
            "allowed: CPU memory. Copy it to the CPU first, e.g. tensor.cpu()"
        )
    relay = _Bfloat16AsUint16(exporter)
    array = np.from_dlpack(relay)
    return array.view(ml_dtypes.bfloat16) if relay.was_bfloat16 else array


class _Bfloat16AsUint16:
    """Passes an exporter's descriptor on, saying uint16 where it said bfloat16.

    The consumer owns the descriptor once it is exported, and no deleter looks at the data type in it.
    """

    def __init__(self, exporter: SupportsDLPack) -> None:
        self._exporter = exporter
        self.was_bfloat16 = False

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._exporter.__dlpack_device__()

    def __dlpack__(self, **options: Any) -> Any:
        capsule = self._exporter.__dlpack__(**options)
        dtype = tensor_of(capsule).dtype
        if (dtype.code, dtype.bits) == (CODE_BFLOAT, _BFLOAT16_BITS):
            dtype.code = _CODE_UINT
            self.was_bfloat16 = True
        return capsule


def tensor_of(capsule: object) -> Tensor:
    """Return the tensor that a capsule holds, in place: it lives as long as the capsule.

    Raises:
        TypeError: This is no capsule, or one that was consumed before.
        ValueError: Its descriptor has another layout, that of a later DLPack.
    """
    is_valid, get_pointer = ctypes.pythonapi.PyCapsule_IsValid, ctypes.pythonapi.PyCapsule_GetPointer
    is_valid.argtypes = get_pointer.argtypes = (ctypes.py_object, ctypes.c_char_p)
    get_pointer.restype = ctypes.c_void_p
    for name in _CAPSULE_NAMES:
        if is_valid(capsule, name):
            address = get_pointer(capsule, name)
            if name == b"dltensor":
                return Tensor.from_address(address)
            versioned = VersionedTensor.from_address(address)
            if versioned.version_major != _VERSION_MAJOR:
                raise ValueError(f"got DLPack {versioned.version_major}; allowed: DLPack {_VERSION_MAJOR}")
            tensor: Tensor = versioned.tensor
            return tensor
    raise TypeError(f"{capsule!r} is not an unused DLPack capsule")
