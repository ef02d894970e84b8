"""Tensors in the memory of a GPU: what they are, and their allocations exported to another process.

A tensor is described by DLPack, or else by `__cuda_array_interface__`; neither copies an element, and no framework is
imported. The vendor's library is the one that the tensor's framework has loaded, called through ctypes, which lets go
of the interpreter lock meanwhile. All functions may be called by any thread.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from softmaxd_proto import dtypes

from softmaxd_client import dlpack
from softmaxd_client.errors import InvalidTensorError

# dlpack.h, DLDeviceType.
_RUNTIME_BY_DEVICE = {2: "cuda", 10: "hip"}
_CUDA_MANAGED = 13
_ELEMENT_BY_DLPACK = {
    (dlpack.CODE_FLOAT, 32, 1): dtypes.BY_NAME["float32"],
    (dlpack.CODE_FLOAT, 16, 1): dtypes.BY_NAME["float16"],
    (dlpack.CODE_BFLOAT, 16, 1): dtypes.BY_NAME["bfloat16"],
}
_NAME_BY_CODE = {0: "int", 1: "uint", dlpack.CODE_FLOAT: "float", dlpack.CODE_BFLOAT: "bfloat", 5: "complex", 6: "bool"}
_ELEMENT_BY_TYPESTR = {"<f4": dtypes.BY_NAME["float32"], "<f2": dtypes.BY_NAME["float16"]}

# What objects raise that describe themselves badly, or do not want to.
_REFUSALS = (AttributeError, BufferError, LookupError, RuntimeError, TypeError, ValueError)

_HANDLE_BYTES = 64  # of CUipcMemHandle and hipIpcMemHandle_t
_BUS_ID_BYTES = 32
_POINTER_CONTEXT = 1  # CU_POINTER_ATTRIBUTE_CONTEXT


@dataclass(frozen=True)
class DeviceTensor:
    """A C-contiguous tensor in the memory of a GPU.

    Attributes:
        runtime: "cuda" or "hip".
        element: Its element type.
        shape: At least one dimension.
        address: Of the first element, in this process; means nothing where there is no element.
        owner: What keeps the memory alive.
        device: The GPU's index in this process, as DLPack says it; -1 where only CUDA's driver can say.
    """

    runtime: str
    element: dtypes.ElementType
    shape: tuple[int, ...]
    address: int
    owner: Any
    device: int = -1

    @property
    def nbytes(self) -> int:
        """Its size in bytes."""
        return math.prod(self.shape) * self.element.itemsize


@dataclass(frozen=True)
class Export:
    """What another process needs to open the allocation that a tensor lies in.

    Attributes:
        ipc_handle: The allocation's, 64 bytes. Another allocation at the same address has another handle.
        pci_bus_id: The GPU, as in "0000:19:00.0".
        allocation_bytes: The size of the whole allocation.
        offset: Of the tensor in it, in bytes.
    """

    ipc_handle: bytes
    pci_bus_id: str
    allocation_bytes: int
    offset: int


def is_on_device(value: object) -> bool:
    """Say whether a value is a tensor in the memory of a GPU, be it one that `as_device_tensor` refuses."""
    device_type = _dlpack_device_type(value)
    if device_type is None:
        return _cuda_array_interface(value) is not None
    return device_type in _RUNTIME_BY_DEVICE or device_type == _CUDA_MANAGED


def as_device_tensor(value: object) -> DeviceTensor:
    """Describe a tensor in the memory of a GPU, without a copy.

    Its elements may still be on their way: see `synchronize`.

    Args:
        value: A C-contiguous tensor of float32, float16 or bfloat16 and rank >= 1 that exports DLPack, such as those of
            PyTorch, CuPy and JAX, or that has `__cuda_array_interface__`, which knows no bfloat16.

    Raises:
        InvalidTensorError: The value is none.
    """
    device_type = _dlpack_device_type(value)
    interface = _cuda_array_interface(value) if device_type is None else None
    try:
        if device_type is not None:
            return _from_dlpack(value, device_type)
        if interface is not None:
            return _from_cuda_array_interface(value, interface)
    except InvalidTensorError:
        raise
    except _REFUSALS as error:
        raise InvalidTensorError(f"a {type(value).__name__} on a GPU could not be read as a tensor: {error}") from error
    raise InvalidTensorError(
        f"got a {type(value).__name__}; allowed: a tensor on a GPU that has __dlpack__ or __cuda_array_interface__"
    )


def empty_like(value: object) -> Any:
    """Make a tensor of the same framework, shape, dtype and device.

    Args:
        value: A tensor whose class, or a base of it, comes from a module with an `empty_like`, such as PyTorch's.

    Raises:
        InvalidTensorError: There is no such module.
    """
    for kind in reversed(type(value).__mro__):  # the framework's own class comes before what derives from it
        name = kind.__module__
        while name:  # torch.nn.Parameter, say, is of torch.nn.parameter, and empty_like of torch
            make = getattr(sys.modules.get(name), "empty_like", None)
            if make is not None:
                return make(value)
            name = name.rpartition(".")[0]
    kind = type(value)
    raise InvalidTensorError(
        f"got a {kind.__module__}.{kind.__qualname__}, whose module has no empty_like to make the answer's tensor. "
        "Pass out=, a tensor on the same GPU"
    )


def export(tensor: DeviceTensor) -> Export:
    """Export the allocation that a tensor lies in; costs a few calls of the driver and may be repeated.

    Another process sees all of the allocation, which may hold other tensors too. It must stay allocated for as long as
    that process has it open.

    Raises:
        InvalidTensorError: There is no IPC handle for such memory, or the driver failed.
    """
    if tensor.nbytes == 0:
        raise InvalidTensorError("got a tensor without elements, which has no memory to export")
    start, size = ctypes.c_uint64(), ctypes.c_size_t()
    handle = (ctypes.c_char * _HANDLE_BYTES)()
    device = ctypes.c_int()
    bus_id = ctypes.create_string_buffer(_BUS_ID_BYTES)
    with _current_device(tensor) as (runtime, call):
        call(runtime.address_range, ctypes.byref(start), ctypes.byref(size), ctypes.c_uint64(tensor.address))
        with _explained(runtime.only_exportable):
            call(runtime.ipc_handle, ctypes.byref(handle), start)
        call(runtime.device, ctypes.byref(device))
        call(runtime.pci_bus_id, bus_id, ctypes.c_int(_BUS_ID_BYTES), device)
    return Export(handle.raw, bus_id.value.decode(), size.value, tensor.address - start.value)


def synchronize(tensor: DeviceTensor) -> None:
    """Wait for all work that this process has given the tensor's GPU, on every stream.

    Another process knows nothing of this one's streams, so all that was started before must be over before it may touch
    the tensor.

    Raises:
        InvalidTensorError: The work failed, or this is no memory of this process.
    """
    with _current_device(tensor) as (runtime, call):
        call(runtime.synchronize)


def _dlpack_device_type(value: Any) -> int | None:
    """Return a DLDeviceType; None for what exports no DLPack."""
    try:
        return int(value.__dlpack_device__()[0])
    except _REFUSALS:
        return None


def _cuda_array_interface(value: Any) -> Any:
    """Return the interface; None for what has none."""
    try:
        return value.__cuda_array_interface__
    except _REFUSALS:
        return None


def _from_dlpack(value: Any, device_type: int) -> DeviceTensor:
    if device_type == _CUDA_MANAGED:
        raise InvalidTensorError(
            "got a tensor in CUDA managed memory; allowed: memory of cudaMalloc, as managed memory has no IPC handle. "
            "Copy it into a tensor of plain device memory first"
        )
    if device_type not in _RUNTIME_BY_DEVICE:
        raise InvalidTensorError(
            f"got a tensor of DLPack device type {device_type}; allowed: 2 (CUDA) and 10 (ROCm), the memory of a GPU"
        )
    # None stands for the default stream, for CUDA as for ROCm, and every framework takes it: what computes the elements
    # is at least under way on the GPU when it returns. `synchronize` does the waiting.
    capsule = value.__dlpack__(stream=None)
    tensor = dlpack.tensor_of(capsule)
    code, bits, lanes = tensor.dtype.code, tensor.dtype.bits, tensor.dtype.lanes
    element = _ELEMENT_BY_DLPACK.get((code, bits, lanes))
    if element is None:
        name = _NAME_BY_CODE.get(code, f"DLPack type {code} of bits ")
        raise _wrong_element(f"{name}{bits}" + (f" x {lanes}" if lanes != 1 else ""))
    shape = tuple(tensor.shape[: tensor.ndim]) if tensor.ndim else ()
    strides = tuple(tensor.strides[: tensor.ndim]) if tensor.ndim and tensor.strides else None
    _check_layout(shape, strides, 1)
    return DeviceTensor(
        runtime=_RUNTIME_BY_DEVICE[device_type],
        element=element,
        shape=shape,
        address=(tensor.data or 0) + tensor.byte_offset,
        owner=capsule,  # never consumed, it keeps the memory alive, and gives it back by itself
        device=tensor.device_id,
    )


def _from_cuda_array_interface(value: object, interface: Any) -> DeviceTensor:
    """Describe by the interface's version 2 or 3; a version 3's `stream` is covered by `synchronize`."""
    if interface.get("mask") is not None:
        raise InvalidTensorError("got a masked array, whose mask would be lost. Fill it first, e.g. with -inf")
    element = _ELEMENT_BY_TYPESTR.get(interface["typestr"])
    if element is None:
        raise _wrong_element(f"{interface['typestr']} (__cuda_array_interface__ knows no bfloat16, DLPack does)")
    shape = tuple(int(dimension) for dimension in interface["shape"])
    _check_layout(shape, interface.get("strides"), element.itemsize)
    address, _ = interface["data"]
    return DeviceTensor(runtime="cuda", element=element, shape=shape, address=int(address or 0), owner=value)


def _wrong_element(name: str) -> InvalidTensorError:
    return InvalidTensorError(f"got a tensor of {name}; allowed: {dtypes.NAMES}. Convert it first, e.g. tensor.float()")


def _check_layout(shape: tuple[int, ...], strides: Sequence[int] | None, step: int) -> None:
    """Make sure that a tensor has a dimension and lies in one piece, row-major.

    Args:
        shape: Its shape.
        strides: In the unit of `step`; None says that it is C-contiguous.
        step: From one element to the next.

    Raises:
        InvalidTensorError: It does not.
    """
    if not shape:
        raise InvalidTensorError(
            "got a tensor without dimensions; allowed: one dimension or more, as softmax runs over the last. "
            "Reshape it first, e.g. tensor.reshape(1)"
        )
    if strides is None or 0 in shape:
        return
    expected = step
    for dimension, stride in zip(reversed(shape), reversed(strides), strict=True):
        if dimension != 1 and stride != expected:  # frameworks say anything where there is nothing to step to
            raise InvalidTensorError(
                f"got a tensor of shape {shape} and strides {tuple(strides)}; allowed: C-contiguous ones, as the "
                "server reads the memory as it is. Call .contiguous() first"
            )
        expected *= dimension


# Calls a function of a vendor's library by its name.
_Call = Callable[..., None]


@dataclass(frozen=True)
class _Runtime:
    """One row of the table `_RUNTIMES`: a vendor's library, and its names for calls whose arguments are the same.

    Attributes:
        libraries: Its sonames.
        address_range: Takes where to write the start and the size of an allocation, and an address in it.
        ipc_handle: Takes where to write the handle, and the allocation's start.
        device: Takes where to write the current device.
        pci_bus_id: Takes where to write the text, the room for it, and a device.
        synchronize: Takes nothing.
        current: Makes a tensor's device the calling thread's, for a while.
        only_exportable: Which memory has IPC handles, and what to do with any other.
    """

    libraries: tuple[str, ...]
    address_range: str
    ipc_handle: str
    device: str
    pci_bus_id: str
    synchronize: str
    current: Callable[[_Call, DeviceTensor], AbstractContextManager[None]]
    only_exportable: str


@contextlib.contextmanager
def _cuda_context(call: _Call, tensor: DeviceTensor) -> Iterator[None]:
    # The context of the allocation, not the device's primary one: PyCUDA, for one, has contexts of its own. A thread
    # need not have any to ask for it.
    context = ctypes.c_void_p()
    with _explained(_RUNTIMES["cuda"].only_exportable):
        call(
            "cuPointerGetAttribute",
            ctypes.byref(context),
            ctypes.c_int(_POINTER_CONTEXT),
            ctypes.c_uint64(tensor.address),
        )
        if not context:  # memory of a pool, or mapped piece by piece
            raise InvalidTensorError("the memory belongs to no CUDA context")
    call("cuCtxPushCurrent_v2", context)
    try:
        yield
    finally:
        call("cuCtxPopCurrent_v2", ctypes.byref(context))


@contextlib.contextmanager
def _hip_device(call: _Call, tensor: DeviceTensor) -> Iterator[None]:
    previous = ctypes.c_int()
    call("hipGetDevice", ctypes.byref(previous))
    call("hipSetDevice", ctypes.c_int(tensor.device))
    try:
        yield
    finally:
        call("hipSetDevice", previous)


_RUNTIMES = {
    "cuda": _Runtime(
        libraries=("libcuda.so.1",),
        address_range="cuMemGetAddressRange_v2",
        ipc_handle="cuIpcGetMemHandle",
        device="cuCtxGetDevice",
        pci_bus_id="cuDeviceGetPCIBusId",
        synchronize="cuCtxSynchronize",
        current=_cuda_context,
        only_exportable="only memory that this process has from cudaMalloc has an IPC handle. PyTorch: run without "
        "expandable_segments and backend:cudaMallocAsync in PYTORCH_CUDA_ALLOC_CONF; CuPy: use no malloc_async and no "
        "malloc_managed. Or send a copy in CPU memory, e.g. tensor.cpu()",
    ),
    "hip": _Runtime(
        # Hygon's first.
        libraries=("libgalaxyhip.so.5", "libamdhip64.so", *(f"libamdhip64.so.{major}" for major in range(4, 8))),
        address_range="hipMemGetAddressRange",
        ipc_handle="hipIpcGetMemHandle",
        device="hipGetDevice",
        pci_bus_id="hipDeviceGetPCIBusId",
        synchronize="hipDeviceSynchronize",
        current=_hip_device,
        only_exportable="only memory that this process has from hipMalloc has an IPC handle. PyTorch: run without "
        "expandable_segments in PYTORCH_HIP_ALLOC_CONF. Or send a copy in CPU memory, e.g. tensor.cpu()",
    ),
}


@contextlib.contextmanager
def _current_device(tensor: DeviceTensor) -> Iterator[tuple[_Runtime, _Call]]:
    """Make a tensor's device the calling thread's, and give what to call."""
    runtime = _RUNTIMES[tensor.runtime]
    call = functools.partial(_call, _library(runtime.libraries))
    with runtime.current(call, tensor):
        yield runtime, call


@functools.cache
def _library(names: tuple[str, ...]) -> Any:
    # Only what is loaded already: a second HIP runtime, say, would know nothing of the first one's memory.
    for name in names:
        with contextlib.suppress(OSError):
            return ctypes.CDLL(name, mode=os.RTLD_NOLOAD)
    raise InvalidTensorError(f"got a tensor on a GPU, but this process has loaded none of {', '.join(names)}")


def _call(library: Any, name: str, *arguments: Any) -> None:
    try:
        function = getattr(library, name)
    except AttributeError as error:
        raise InvalidTensorError(f"the GPU's library has no {name}: use a later one") from error
    if code := function(*arguments):
        raise InvalidTensorError(f"{name} failed with error {code}")


@contextlib.contextmanager
def _explained(reason: str) -> Iterator[None]:
    try:
        yield
    except InvalidTensorError as error:
        raise InvalidTensorError(f"the tensor's memory cannot be shared: {error}; {reason}") from error
