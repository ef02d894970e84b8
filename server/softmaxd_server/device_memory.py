"""Opens the GPU memory that another process exports."""

from __future__ import annotations

from softmaxd_proto.v1 import softmax_pb2

from softmaxd_server.backends.base import DeviceBackend
from softmaxd_server.errors import InvalidRegionError
from softmaxd_server.regions import Region
from softmaxd_server.transports import DEVICE_MEMORY


class DeviceMemoryOpener:
    """Opens allocations by their IPC handles.

    Args:
        backend: Whose devices they are on.
    """

    def __init__(self, backend: DeviceBackend) -> None:
        self._backend = backend

    def open(self, named: softmax_pb2.DeviceMemory, byte_size: int) -> Region:
        """See `regions.Opener.open`."""
        try:
            memory = self._backend.open_device_memory(named.ipc_handle, named.pci_bus_id, byte_size)
        except ValueError as error:
            raise InvalidRegionError(str(error)) from error
        identity = (named.pci_bus_id.lower(), named.ipc_handle)
        return Region(DEVICE_MEMORY, byte_size, memory, identity, lambda: True, memory.close)
