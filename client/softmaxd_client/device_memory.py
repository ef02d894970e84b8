"""Requests whose tensors lie on a GPU that the server computes on too: the server opens the client's allocations."""

from __future__ import annotations

from softmaxd_proto.v1 import softmax_pb2

from softmaxd_client import device_tensors
from softmaxd_client.device_tensors import DeviceTensor, Export
from softmaxd_client.errors import InvalidTensorError
from softmaxd_client.lease import Lease
from softmaxd_client.placement import Placement, overlap_in_part
from softmaxd_client.tensors import Layout


class DeviceMemory:
    """Lets the server open the allocations that tensors lie in, each once. Thread-safe.

    An allocation stays open on the server until the client is closed, so that it is to stay allocated for as long.

    Args:
        lease: Registers allocations.
    """

    def __init__(self, lease: Lease) -> None:
        self._lease = lease

    def place(self, value: object, out: object | None, seconds: float | None) -> tuple[Layout, Placement]:
        """Find the places of a request's tensors; the device has done what it was told with the source.

        Args:
            value: A tensor for which `device_tensors.is_on_device` says so.
            out: Where the answer goes: a tensor of the same runtime, shape and element type; None for a new one.
            seconds: How long the server may take to open an allocation; None for as long as it likes.

        Returns:
            The layout, and the places, which mean nothing for a tensor without elements.

        Raises:
            InvalidTensorError: A tensor is unfit.
            ServerError: The server does not open the memory.
        """
        source = device_tensors.as_device_tensor(value)
        layout = Layout(source.element, source.shape, source.element.numpy)
        result = device_tensors.empty_like(value) if out is None else out
        if not device_tensors.is_on_device(result):
            raise InvalidTensorError(f"out is a {type(result).__name__}; allowed: a tensor on the GPU, as the input")
        destination = device_tensors.as_device_tensor(result)
        _check(source, destination)
        read = written = softmax_pb2.MemorySlice()
        if source.nbytes:
            device_tensors.synchronize(source)
            read, written = (
                self._slice(tensor, device_tensors.export(tensor), seconds) for tensor in (source, destination)
            )
        return layout, Placement(read, written, ((source, value), result), lambda: None)

    def _slice(self, tensor: DeviceTensor, export: Export, seconds: float | None) -> softmax_pb2.MemorySlice:
        def registration() -> softmax_pb2.RegisterMemoryRequest:
            memory = softmax_pb2.DeviceMemory(ipc_handle=export.ipc_handle, pci_bus_id=export.pci_bus_id)
            return softmax_pb2.RegisterMemoryRequest(device_memory=memory, byte_size=export.allocation_bytes)

        region = self._lease.region(export.ipc_handle, registration, seconds)
        return softmax_pb2.MemorySlice(region=region, offset=export.offset, byte_size=tensor.nbytes)


def _check(source: DeviceTensor, destination: DeviceTensor) -> None:
    """Make sure that an answer can be written to a tensor.

    Raises:
        InvalidTensorError: It cannot.
    """
    if (destination.runtime, destination.shape, destination.element) != (
        source.runtime,
        source.shape,
        source.element,
    ):
        raise InvalidTensorError(
            f"out is {destination.element.name} of shape {destination.shape} on {destination.runtime}; allowed: "
            f"{source.element.name} of shape {source.shape} on {source.runtime}, as the input"
        )
    if overlap_in_part(source.address, destination.address, source.nbytes):
        raise InvalidTensorError("out overlaps the input in part; allowed: the same memory, or none of it")
