"""POSIX shared memory that arrays lie in: made, found again by an array's address, kept, and removed."""

from __future__ import annotations

import bisect
import contextlib
import ctypes
import fcntl
import mmap
import os
import re
import secrets
import threading
import weakref
from collections import deque
from typing import Any

import numpy as np
from numpy.typing import NDArray
from softmaxd_proto.v1 import softmax_pb2

_FOLDER = "/dev/shm"  # where shm_open of the C library looks
_PREFIX = "softmaxd-"
_OURS = re.compile(r"softmaxd-[0-9a-f]{32}")
TOKEN_BYTES = 16
# Tensors start on a page of their own, behind the one that the token is on.
TENSOR_OFFSET = mmap.PAGESIZE


class Segment:
    """A segment of shared memory with room for one tensor.

    Its pages are reserved: without that, writing to it could end the process with SIGBUS once the file system is full.
    A lock on it tells others that this process lives: see `remove_orphans`. It gets its name when it is complete.

    Args:
        byte_size: Room for the tensor.

    Attributes:
        name: As the contract's SharedMemory has it.
        token: What it starts with.
        byte_size: Of the whole segment.
        address: Of the tensor, in this process.
        in_use: Requests without an answer that the server may still compute, here; changed under the pool's lock.

    Raises:
        OSError: There is no room.
    """

    def __init__(self, byte_size: int) -> None:
        self.name = f"{_PREFIX}{secrets.token_hex(16)}"
        self.token = secrets.token_bytes(TOKEN_BYTES)
        self.byte_size = TENSOR_OFFSET + byte_size
        self.in_use = 0
        path = f"{_FOLDER}/{self.name}"
        descriptor = os.open(_FOLDER, os.O_RDWR | os.O_TMPFILE | os.O_CLOEXEC, 0o600)
        self._close = weakref.finalize(self, _remove, path, descriptor)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            os.posix_fallocate(descriptor, 0, self.byte_size)
            self.memory = mmap.mmap(descriptor, self.byte_size)
            self.memory[:TOKEN_BYTES] = self.token
            # With a folder's descriptor, which an absolute path does not need: else Python calls link(), which does not
            # follow, whatever it is told.
            os.link(f"/proc/self/fd/{descriptor}", path, src_dir_fd=descriptor, follow_symlinks=True)
        except BaseException:
            self._close()
            raise
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory, TENSOR_OFFSET))

    @property
    def room(self) -> int:
        """The bytes that a tensor may have."""
        return self.byte_size - TENSOR_OFFSET

    def registration(self) -> softmax_pb2.RegisterMemoryRequest:
        """Return the request that registers it."""
        named = softmax_pb2.SharedMemory(name=self.name, token=self.token, is_locked=True)
        return softmax_pb2.RegisterMemoryRequest(shared_memory=named, byte_size=self.byte_size)

    def close(self) -> None:
        """Remove it from the file system; arrays in it stay. A second call does nothing."""
        self._close()


def _remove(path: str, descriptor: int) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    os.close(descriptor)


class SegmentPool:
    """The segments of one client. Thread-safe.

    A segment is on loan to the array that lies in it, and to all that are made from that one; when the last of them is
    gone it is kept for the next array, as mapping new pages on both sides costs more than the softmax.

    Args:
        idle_bytes: Memory without an array in it to keep at most.
        discarded: Told of each segment that is not kept.
    """

    def __init__(self, idle_bytes: int) -> None:
        self._idle_bytes = idle_bytes
        self._lock = threading.Lock()
        self._idle: list[Segment] = []  # who was given back last stands last
        self._on_loan: list[tuple[int, Segment]] = []  # by address
        # Arrays end wherever Python collects them, possibly in a thread that holds the lock: see `_take_back`.
        self._returned: deque[Segment] = deque()
        self._discarded: list[Segment] = []
        self._is_closed = False

    def lend(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return an array in a segment, with whatever bytes are there.

        Raises:
            OSError: There is no room for a segment.
        """
        byte_size = max(1, int(np.prod(shape, dtype=object)) * dtype.itemsize)
        segment = self._borrow(byte_size)
        # The base of all arrays that are made from this one: when it goes, nobody uses the segment any more.
        base = (ctypes.c_ubyte * segment.room).from_buffer(segment.memory, TENSOR_OFFSET)
        weakref.finalize(base, self._returned.append, segment).atexit = False
        return np.ndarray(shape, dtype, memoryview(base))

    def find(self, address: int, byte_size: int) -> tuple[Segment, int] | None:
        """Return the segment on loan that a range of memory lies in, and the range's offset in it; None for no such."""
        with self._lock:
            self._take_back()
            index = bisect.bisect_right(self._on_loan, address, key=_address_of) - 1
            if index < 0:
                return None
            start, segment = self._on_loan[index]
            if address + byte_size > start + segment.room:
                return None
            return segment, TENSOR_OFFSET + address - start

    def enter(self, *segments: Segment) -> None:
        """Note that a request is sent which the server computes in segments."""
        with self._lock:
            for segment in segments:
                segment.in_use += 1

    def leave(self, *segments: Segment) -> None:
        """Note that the server has answered it. Where it never does, the segments are not lent again."""
        with self._lock:
            for segment in segments:
                segment.in_use -= 1

    def discarded(self) -> list[Segment]:
        """Return the segments that are not kept any more; each once."""
        with self._lock:
            self._take_back()
            discarded, self._discarded = self._discarded, []
            return discarded

    def close(self) -> None:
        """Remove all segments from the file system; arrays in them stay what they are."""
        with self._lock:
            self._is_closed = True
            self._take_back()
            for segment in (*self._idle, *(segment for _, segment in self._on_loan), *self._discarded):
                segment.close()
            self._idle.clear()
            self._discarded.clear()

    def _borrow(self, byte_size: int) -> Segment:
        with self._lock:
            self._take_back()
            fitting = [segment for segment in self._idle if byte_size <= segment.room <= 2 * byte_size]
            segment = min(fitting, key=_room_of, default=None)
            if segment is None:
                segment = Segment(byte_size)
            else:
                self._idle.remove(segment)
            bisect.insort(self._on_loan, (segment.address, segment), key=_address_of)
            return segment

    def _take_back(self) -> None:
        """Make idle what was returned, and discard the oldest that are too many."""
        while self._returned:
            segment = self._returned.popleft()
            self._on_loan.pop(bisect.bisect_left(self._on_loan, segment.address, key=_address_of))
            if segment.in_use or self._is_closed:  # the server may yet write to it
                self._discard(segment)
            else:
                self._idle.append(segment)
        kept = 0
        for index in range(len(self._idle) - 1, -1, -1):
            kept += self._idle[index].byte_size
            if kept > self._idle_bytes:
                self._discard(self._idle.pop(index))

    def _discard(self, segment: Segment) -> None:
        segment.close()
        self._discarded.append(segment)


def _address_of(entry: tuple[int, Segment]) -> int:
    return entry[0]


def _room_of(segment: Segment) -> int:
    return segment.room


def remove_orphans() -> None:
    """Remove the segments of this user's processes that were killed, which a server has not removed already."""
    with contextlib.suppress(OSError):
        for entry in os.scandir(_FOLDER):
            if _OURS.fullmatch(entry.name):
                with contextlib.suppress(OSError):  # another user's, or in use, or gone by now
                    _remove_orphan(entry.path)


def _remove_orphan(path: str) -> None:
    descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.unlink(path)
    finally:
        os.close(descriptor)
