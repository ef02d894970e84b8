"""What a backend is: the seam between the dataplane and what computes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from softmaxd_proto.dtypes import ELEMENT_TYPES, ElementType

# The values below are named tuples, not frozen dataclasses: three are made for each request, and one costs 0.26 us
# against 0.55 us (CPython 3.11).


class Work(NamedTuple):
    """One softmax over the last axis of a `(rows, cols)` array.

    Attributes:
        rows: >= 1.
        cols: >= 1.
        element: The type of source and result.
        zero_masked_rows: Whether a row of nothing but -inf gives zeros; else it gives NaN.
    """

    rows: int
    cols: int
    element: ElementType
    zero_masked_rows: bool

    @property
    def byte_size(self) -> int:
        """The bytes of the source, and of the result."""
        return self.rows * self.cols * self.element.itemsize


class Plan(NamedTuple):
    """How a backend will compute a work.

    Attributes:
        variant: A name out of `Backend.variants`.
        tile_columns: Columns that are reduced at once.
        tile_count: Tiles in one row.
    """

    variant: str
    tile_columns: int
    tile_count: int


class Variant(NamedTuple):
    """A way of computing, and in one sentence what it does and when it is chosen."""

    name: str
    note: str


class Device(NamedTuple):
    """What is computed on: its name for a person, and how many of what compute, threads or multiprocessors."""

    name: str
    parallelism: int
    unit: str


class PoolUse(NamedTuple):
    """The use of one pool of memory: bytes in use now, bytes kept, allocations since the start."""

    name: str
    used_bytes: int
    reserved_bytes: int
    allocations: int


class Backend(Protocol):
    """Computes softmax. Every method but `close` may be called from many threads at once.

    One row's bits depend on that row, its length and its type, never on other rows. A NaN or a +inf makes its row NaN;
    -inf gives an exact 0; float32 and bfloat16 results below 2**-126 are 0.
    """

    @property
    def name(self) -> str:
        """The name in the backends' table: hip, cuda, cpu or numpy."""

    @property
    def devices(self) -> Sequence[Device]:
        """The devices that it computes on."""

    @property
    def variants(self) -> Sequence[Variant]:
        """The variants that it chooses from."""

    @property
    def tuning(self) -> str:
        """What chooses between the variants of a GPU, for a person; empty where the backend is not tuned."""

    @property
    def inline_bytes(self) -> int:
        """The largest request, in bytes, that the event loop may compute itself: it takes about 100 us at most."""

    def pools(self) -> Sequence[PoolUse]:
        """Return the use of its memory pools now."""

    def warm_up(self) -> None:
        """Compute each element type once, so that no request pays for what is set up on first use."""

    def close(self) -> None:
        """Give back what it holds. Call nothing afterwards."""

    def plan(self, work: Work) -> Plan:
        """Return how `answer` will compute this work."""

    def answer(self, prefix: bytes, source: memoryview, work: Work) -> tuple[bytes, Mapping[str, float]]:
        """Compute a payload straight behind the bytes that precede it in an answer.

        Args:
            prefix: The answer's message up to its payload.
            source: `work.rows * work.cols` elements, row-major, little-endian; only read.
            work: What to compute.

        Returns:
            `prefix` and the result's payload in one object, and the seconds in "upload", "kernel" and "download"; a
            phase that the backend does not have is absent.

        Raises:
            MemoryError: There is no room for the result.
        """

    def compute(self, source: memoryview, destination: memoryview, work: Work) -> Mapping[str, float]:
        """Compute from the host's memory to the host's memory, such as a client shares.

        Another process may write to both at any time: whatever it does, no other memory is read or written.

        Args:
            source: As for `answer`.
            destination: As large, writable; the same bytes as `source`, or none of them.
            work: What to compute.

        Returns:
            The phases, as `answer` does.

        Raises:
            MemoryError: There is no room for what it needs besides.
        """

    def register_memory(self, memory: memoryview) -> None:
        """Let the devices reach the host's memory by themselves, so that `compute` need not copy it; it may be costly.

        Args:
            memory: Writable, of a whole mapping; not to be unmapped before `unregister_memory`.

        Raises:
            MemoryError: The runtime could not register it.
        """

    def unregister_memory(self, memory: memoryview) -> None:
        """Undo `register_memory`; no call computes with the memory any more."""

    def softmax(
        self,
        x: NDArray[Any],
        *,
        out: NDArray[Any] | None = None,
        variant: str | None = None,
        zero_masked_rows: bool = False,
    ) -> NDArray[Any]:
        """Compute softmax over the last axis of an array, for tests and tools.

        Args:
            x: At least one dimension; float32, float16 or bfloat16.
            out: Takes the result; the shape and type of `x`, C-contiguous.
            variant: A name out of `variants`; None lets the backend choose.
            zero_masked_rows: As in `Work`.

        Returns:
            `out`, or a new array.

        Raises:
            ValueError: The type, the rank, `out` or `variant` is not allowed.
        """


class ExportedMemory(Protocol):
    """Memory of a device that another process allocated."""

    def close(self) -> None:
        """Let go of it; no call computes with it any more."""


@runtime_checkable
class DeviceBackend(Backend, Protocol):
    """A backend that computes in the devices' own memory as well."""

    def open_device_memory(self, ipc_handle: bytes, pci_bus_id: str, byte_size: int) -> ExportedMemory:
        """Open another process's allocation.

        Args:
            ipc_handle: What the runtime's IpcGetMemHandle gave to its owner.
            pci_bus_id: Of the device that it is on.
            byte_size: No more than its real size.

        Raises:
            ValueError: There is no such device or allocation, or it is smaller.
        """

    def compute_on_device(
        self,
        source: ExportedMemory,
        source_offset: int,
        destination: ExportedMemory,
        destination_offset: int,
        work: Work,
    ) -> Mapping[str, float]:
        """Compute from device memory to device memory, offsets in bytes.

        Returns:
            The seconds in "kernel".

        Raises:
            ValueError: They are not on one device, or an offset is not a multiple of the element's size.
            MemoryError: There is no room for what it needs besides.
        """


def warm_up_every_type(backend: Backend) -> None:
    """Compute one small array of each element type."""
    for element in ELEMENT_TYPES:
        backend.softmax(np.zeros((2, 64), element.numpy))
