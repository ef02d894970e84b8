"""Memory that clients have registered: who may use it, for how long, and how much of it there is."""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from softmaxd_server.errors import InvalidTensorError, RegionLimitError, TransportOffError, UnknownRegionError
from softmaxd_server.transports import DEVICE_MEMORY, SHARED_MEMORY

# What clients may register, by the names of RegisterMemoryRequest's fields, and the flag that allows it.
ALLOWED_BY = {SHARED_MEMORY: "--allow-shared-memory", DEVICE_MEMORY: "--allow-device-memory"}

MAX_REGIONS_PER_LEASE = 256
MAX_REGIONS = 2048
_ID_BYTES = 16


@dataclass(frozen=True)
class Region:
    """Registered memory.

    Attributes:
        kind: `SHARED_MEMORY` or `DEVICE_MEMORY`.
        byte_size: As it was registered.
        memory: A writable memoryview, or what `Backend.open_device_memory` gave.
        identity: Equal for regions over the same memory, which then start at the same byte of it.
        is_intact: Says whether all its pages are still there.
        release: Gives it back; called once, from any thread, when nobody uses it any more.
    """

    kind: str
    byte_size: int
    memory: Any
    identity: Hashable
    is_intact: Callable[[], bool]
    release: Callable[[], None]


class Opener(Protocol):
    """Opens one kind of memory."""

    def open(self, named: Any, byte_size: int) -> Region:
        """Open what a RegisterMemoryRequest names.

        Args:
            named: The message in its field of this kind.
            byte_size: Its `byte_size`.

        Raises:
            InvalidRegionError: It cannot be used.
            OutOfMemoryError: The device's runtime could not take it.
        """


class SliceMessage(Protocol):
    """The contract's MemorySlice."""

    @property
    def region(self) -> bytes:
        """A region's id; any bytes can come off the wire."""

    @property
    def offset(self) -> int:
        """From 0 to 2**64 - 1."""

    @property
    def byte_size(self) -> int:
        """From 0 to 2**64 - 1."""


@dataclass(frozen=True)
class Slice:
    """A part of a region, on loan.

    Attributes:
        region: What it is a part of.
        offset: Its first byte.
        byte_size: Its size; it ends within the region.
    """

    region: Region
    offset: int
    byte_size: int

    def view(self) -> memoryview:
        """Return the bytes, of a region in shared memory; to be released before the slice is given back."""
        view: memoryview = self.region.memory[self.offset : self.offset + self.byte_size]
        return view

    def overlaps_in_part(self, other: Slice) -> bool:
        """Say whether two slices share some bytes but are not the same ones."""
        if self.region.identity != other.region.identity or self.offset == other.offset:
            return False
        return self.offset < other.offset + other.byte_size and other.offset < self.offset + self.byte_size


class _Entry:
    def __init__(self, region: Region) -> None:
        self.region = region
        self.borrowers = 0
        self.is_retired = False


class Regions:
    """All regions of a server. Thread-safe.

    Args:
        openers: For each kind that is allowed, what opens it.
        shared_memory_bytes: The most bytes of shared memory that may be registered at once.
    """

    def __init__(self, openers: Mapping[str, Opener], shared_memory_bytes: int) -> None:
        self._openers = openers
        self.limit_bytes = shared_memory_bytes if SHARED_MEMORY in openers else 0
        self._lock = threading.Lock()
        self._entries: dict[bytes, _Entry] = {}
        self._held_bytes = dict.fromkeys(ALLOWED_BY, 0)
        self._held = dict.fromkeys(ALLOWED_BY, 0)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds that are allowed."""
        return tuple(self._openers)

    def use(self) -> Mapping[str, tuple[int, int]]:
        """Return for each kind how many regions there are, and their bytes."""
        with self._lock:
            return {kind: (self._held[kind], self._held_bytes[kind]) for kind in ALLOWED_BY}

    def register(self, kind: str, named: Any, byte_size: int) -> bytes:
        """Open memory and return its region's id.

        Raises:
            TransportOffError: This kind is not allowed.
            RegionLimitError: There are too many regions, or bytes of them.
            InvalidRegionError, OutOfMemoryError: As `Opener.open`.
        """
        opener = self._openers.get(kind)
        if opener is None:
            raise TransportOffError(kind, f"it was started without {ALLOWED_BY[kind]}")
        self._reserve(kind, byte_size)
        try:
            region = opener.open(named, byte_size)
        except BaseException:
            self._unreserve(kind, byte_size)
            raise
        region_id = secrets.token_bytes(_ID_BYTES)
        with self._lock:
            self._entries[region_id] = _Entry(region)
        return region_id

    def retire(self, region_id: bytes) -> None:
        """Let nobody borrow a region any more, and release it, now or when the last borrower gives it back."""
        with self._lock:
            entry = self._entries.pop(region_id)
            entry.is_retired = True
            is_free = entry.borrowers == 0
        if is_free:
            self._release(entry.region)

    @contextlib.contextmanager
    def borrow(self, wanted: SliceMessage) -> Iterator[Slice]:
        """Lend a slice, and keep its region as long.

        Raises:
            UnknownRegionError: There is no such region.
            InvalidTensorError: The slice does not end within it.
        """
        with self._lock:
            entry = self._entries.get(wanted.region)
            if entry is None:
                raise UnknownRegionError
            entry.borrowers += 1
        try:
            region, offset, byte_size = entry.region, wanted.offset, wanted.byte_size
            if offset + byte_size > region.byte_size:  # Python's integers do not overflow
                raise InvalidTensorError(
                    f"got a slice of {byte_size} bytes at offset {offset}, and the region has {region.byte_size}: the "
                    "slice must end within it"
                )
            yield Slice(region, offset, byte_size)
        finally:
            with self._lock:
                entry.borrowers -= 1
                is_free = entry.is_retired and entry.borrowers == 0
            if is_free:
                self._release(entry.region)

    def _reserve(self, kind: str, byte_size: int) -> None:
        with self._lock:
            if sum(self._held.values()) >= MAX_REGIONS:
                raise RegionLimitError(
                    f"{MAX_REGIONS} regions are registered, and no more are allowed: unregister some, or use "
                    "slices of one"
                )
            held = self._held_bytes[kind]
            if kind == SHARED_MEMORY and held + byte_size > self.limit_bytes:
                raise RegionLimitError(
                    f"got a region of {byte_size} bytes beside {held} that are registered, allowed are "
                    f"{self.limit_bytes} in all (--shared-memory-bytes={self.limit_bytes}): register less, or send "
                    "tensors inline"
                )
            self._held[kind] += 1
            self._held_bytes[kind] += byte_size

    def _unreserve(self, kind: str, byte_size: int) -> None:
        with self._lock:
            self._held[kind] -= 1
            self._held_bytes[kind] -= byte_size

    def _release(self, region: Region) -> None:
        try:
            region.release()
        finally:
            self._unreserve(region.kind, region.byte_size)


class Lease:
    """The regions of one RegisterMemory call. Thread-safe.

    Args:
        regions: Where they are kept.
    """

    def __init__(self, regions: Regions) -> None:
        self._regions = regions
        self._lock = threading.Lock()
        self._ids: set[bytes] = set()
        self._is_ended = False

    def register(self, kind: str, named: Any, byte_size: int) -> bytes:
        """See `Regions.register`; the region lives until it is unregistered or the lease ends.

        Raises:
            RegionLimitError: This lease has too many regions, or as for `Regions.register`.
        """
        with self._lock:  # held while memory is opened, so that what a lease has at its end is all that it will have
            if self._is_ended:
                raise UnknownRegionError
            if len(self._ids) >= MAX_REGIONS_PER_LEASE:
                raise RegionLimitError(
                    f"this call has registered {MAX_REGIONS_PER_LEASE} regions, and no more are allowed: unregister "
                    "some, or use slices of one"
                )
            region_id = self._regions.register(kind, named, byte_size)
            self._ids.add(region_id)
            return region_id

    def unregister(self, region_id: bytes) -> None:
        """Let a region go.

        Raises:
            UnknownRegionError: This lease has no such region.
        """
        with self._lock:
            if region_id not in self._ids:
                raise UnknownRegionError
            self._ids.remove(region_id)
        self._regions.retire(region_id)

    def end(self) -> None:
        """Let all its regions go, and register no more."""
        with self._lock:
            self._is_ended = True
            ids, self._ids = self._ids, set()
        for region_id in ids:
            self._regions.retire(region_id)
