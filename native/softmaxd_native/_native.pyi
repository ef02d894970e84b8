from collections.abc import Sequence
from typing import Generic, TypeVar

from typing_extensions import Buffer

_Seconds = TypeVar("_Seconds")

# dtype, max_rows, max_cols, variant; None is each type, or no limit.
_Choice = tuple[str | None, int | None, int | None, str]

gpu_runtime: str | None
"""The GPU runtime that this build was made for, "hip" or "cuda"; None where it was built for the CPU alone."""

class InvalidArgument(ValueError): ...
class Unsupported(RuntimeError): ...
class DeviceError(RuntimeError): ...

# Only here: what both contexts have.
class _Context(Generic[_Seconds]):
    @property
    def threads(self) -> int: ...
    @property
    def variants(self) -> list[tuple[str, str]]: ...
    @property
    def pools(self) -> list[tuple[str, int, int, int]]: ...
    def plan(self, rows: int, cols: int, dtype: str, variant: str = "") -> tuple[str, int, int]: ...
    def softmax(
        self,
        source: Buffer,
        destination: Buffer,
        rows: int,
        cols: int,
        dtype: str,
        *,
        zero_masked_rows: bool = False,
        variant: str = "",
    ) -> _Seconds: ...
    def softmax_message(
        self,
        prefix: bytes,
        source: Buffer,
        rows: int,
        cols: int,
        dtype: str,
        *,
        zero_masked_rows: bool = False,
        variant: str = "",
    ) -> tuple[bytes, _Seconds]: ...

class CpuContext(_Context[float]):
    def __init__(self, threads: int = 0, target: str = "") -> None: ...
    @property
    def target(self) -> str: ...

class GpuContext(_Context[tuple[float, float, float]]):
    def __init__(
        self,
        *,
        devices: Sequence[int],
        choices: Sequence[_Choice] = (),
        threads: int = 0,
        device_pool_bytes: int = 0,
    ) -> None: ...
    def warm_up(self) -> None: ...
    def time_variant(self, variant: str, rows: int, cols: int, dtype: str) -> float: ...
    def candidates(self, cols: int) -> list[str]: ...
    def register_memory(self, buffer: Buffer) -> None:
        """Register writable memory of the host, so that all devices move what lies in it with no copy on the host.

        It stays as it is until it is unregistered, or the context ends: freed or unmapped before, another use of its
        addresses would be taken for it.

        Raises:
            InvalidArgument: It has 0 bytes, or overlaps with registered memory.
            DeviceError: The runtime cannot pin it; it is not registered then.
            MemoryError: There is no room for it, or for the buffers on a device that the first registration reserves.
        """

    def unregister_memory(self, buffer: Buffer) -> None:
        """Undo `register_memory` of the same buffer, on which no call is under way.

        Raises:
            InvalidArgument: It is not registered, or with another size.
        """

    def open_device_memory(self, ipc_handle: bytes, pci_bus_id: str, byte_size: int) -> DeviceMemory:
        """Open memory that another process has allocated on a device, and exported.

        Args:
            ipc_handle: The 64 bytes of a cudaIpcMemHandle_t or hipIpcMemHandle_t.
            pci_bus_id: Of its device, as in "0000:3b:00.0"; upper and lower case are the same.
            byte_size: How much of it will be used, from its start.

        Raises:
            InvalidArgument: The context has no such device, the handle cannot be opened, or the allocation is smaller.
            DeviceError: The device has failed.
        """

    def softmax_on_device(
        self,
        source: DeviceMemory,
        source_offset: int,
        destination: DeviceMemory,
        destination_offset: int,
        rows: int,
        cols: int,
        dtype: str,
        *,
        zero_masked_rows: bool = False,
        variant: str = "",
    ) -> tuple[float, float, float]:
        """Compute from one place on a device to another, or in place; return the seconds as `softmax` does.

        Nothing is moved: upload and download take 0.0. What other processes put into the source must be there when it
        is called; all is written when it returns. Offsets are in bytes.

        Raises:
            InvalidArgument: As `softmax`; or a place is not within the memory, not aligned to an element, overlaps with
                the other one, is closed, or is on another device than the other one or than the context's.
            DeviceError: A call of the runtime failed.
            MemoryError: There is no room for a workspace.
        """

    @property
    def devices(self) -> list[tuple[int, str, int]]: ...

class DeviceMemory:
    """Memory on a device that another process has allocated and lends: see `GpuContext.open_device_memory`."""

    @property
    def byte_size(self) -> int:
        """What was asked for; the allocation may be larger."""

    def close(self) -> None:
        """Let go of it; calls that compute on it end first, and a second call does nothing."""

class SharedMapping:
    """A file that another process shares with this one, as a writable buffer of bytes.

    A page that the other process takes away does not end this one: see `is_intact`.

    Args:
        fd: A file that is open for reading and writing; it may be closed afterwards.
        byte_size: How much of it is mapped, from its start.

    Raises:
        InvalidArgument: `byte_size` is 0 or more than the file has, or the file cannot be mapped.
        MemoryError: There is no room for it, or there are 4096 of them already.
    """

    def __init__(self, fd: int, byte_size: int) -> None: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    @property
    def byte_size(self) -> int: ...
    @property
    def is_intact(self) -> bool:
        """False once an access met a page that the file had no more; what was read since then means nothing."""

    def close(self) -> None:
        """Unmap it; a second call does nothing.

        Raises:
            InvalidArgument: Python has buffers of it; release them first.
        """

def targets() -> list[str]: ...
def gpu_devices() -> list[tuple[int, str, int]]: ...
def gpu_driver_version() -> int: ...
def check_choices(choices: Sequence[_Choice]) -> None: ...
