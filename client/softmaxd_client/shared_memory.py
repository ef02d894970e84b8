"""Requests whose tensors lie in shared memory: the messages carry references, and no element is sent."""

from __future__ import annotations

import threading
from typing import Any

import grpc
import numpy as np
from numpy.typing import NDArray
from softmaxd_proto import dtypes
from softmaxd_proto.v1 import softmax_pb2

from softmaxd_client import segments
from softmaxd_client.errors import ResourceExhaustedError, ServerError
from softmaxd_client.lease import Lease
from softmaxd_client.placement import Placement, overlap_in_part
from softmaxd_client.segments import Segment, SegmentPool
from softmaxd_client.tensors import Layout

# A tensor of the caller's own memory is copied into shared memory from this size on: below, a message is as fast.
MIN_STAGED_BYTES = 256 * 1024
IDLE_BYTES = 512 << 20
# What the server answers to a client of another host, or one that it does not want to share memory with.
_NEVER = {grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.UNIMPLEMENTED}


class SharedMemory:
    """Shares memory with the server, if that is wanted and it does, too. Thread-safe.

    Args:
        lease: Registers segments.
        is_required: Whether it is an error if memory cannot be shared; else tensors then travel inline.
    """

    def __init__(self, lease: Lease, *, is_required: bool) -> None:
        self._lease = lease
        self._is_required = is_required
        self._is_off = False
        self._is_probed = False
        self._lock = threading.Lock()
        self._pool: SegmentPool | None = None

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return an array in shared memory; in the process's own where there is no room for it and none is required.

        Raises:
            ResourceExhaustedError: There is no room, and shared memory is required.
        """
        try:
            return self._segments().lend(shape, dtype)
        except OSError as error:
            if self._is_required:
                raise _no_room(error) from error
            return np.empty(shape, dtype)

    def may_ask(self, value: object) -> bool:
        """Say whether `place` may have to wait for the server, once the value is an array."""
        if self._is_off or not isinstance(value, np.ndarray):
            return not self._is_off
        element = dtypes.of_numpy(value.dtype)
        return element is not None and self._concerns(value, Layout(element, value.shape, value.dtype))

    def _concerns(self, array: NDArray[Any], layout: Layout) -> bool:
        """Say whether a tensor is to travel in shared memory."""
        if self._is_off or layout.nbytes == 0:
            return False
        if self._is_required or layout.nbytes >= MIN_STAGED_BYTES:
            return True
        return self._pool is not None and _find(self._pool, array, layout) is not None

    def place(
        self, array: NDArray[Any], layout: Layout, out: NDArray[Any] | None, seconds: float | None
    ) -> Placement | None:
        """Find or make places for a request's tensors.

        Args:
            array: The elements; copied where they do not lie in shared memory as they have to.
            layout: The array's.
            out: Where the caller wants the answer; used as the destination where it is in shared memory.
            seconds: How long the server may take to register a segment; None for as long as it likes.

        Returns:
            The places; None where the tensor has to travel inline.

        Raises:
            ServerError: The server does not take the memory, or there is no room for a segment, and shared memory is
                required.
        """
        if not self._concerns(array, layout):
            return None
        pool = self._segments()
        found = _find(pool, array, layout)
        try:
            self._probe(seconds)
            return self._place(pool, array, found, layout, out, seconds)
        except ServerError as error:
            if self._is_required:
                raise
            self._is_off = error.code in _NEVER
            return None
        except OSError as error:
            if self._is_required:
                raise _no_room(error) from error
            return None
        finally:
            for segment in pool.discarded():
                self._lease.forget(segment)

    def close(self) -> None:
        """Let go of all segments; arrays in them stay what they are."""
        if self._pool is not None:
            self._pool.close()

    def _segments(self) -> SegmentPool:
        with self._lock:
            if self._pool is None:
                segments.remove_orphans()
                self._pool = SegmentPool(IDLE_BYTES)
            return self._pool

    def _probe(self, seconds: float | None) -> None:
        """Find out with a segment of one byte whether the server takes memory of this process at all."""
        if not self._is_probed:
            segment = Segment(1)
            try:
                self._lease.region(segment, segment.registration, seconds)
                self._lease.forget(segment)
            finally:
                segment.close()
            self._is_probed = True

    def _place(
        self,
        pool: SegmentPool,
        array: NDArray[Any],
        found: tuple[Segment, int] | None,
        layout: Layout,
        out: NDArray[Any] | None,
        seconds: float | None,
    ) -> Placement:
        destination = out if out is not None and _find(pool, out, layout) is not None else None
        if found is None:
            # Not where the answer goes: what is computed in place cannot be tried again.
            staged = pool.lend(layout.shape, layout.element.numpy)
            np.copyto(staged, array, casting="equiv")
            array = staged
        if destination is None or overlap_in_part(_address_of(array), _address_of(destination), layout.nbytes):
            destination = pool.lend(layout.shape, layout.element.numpy)
        places = [self._locate(pool, each, layout, seconds) for each in (array, destination)]
        (read_from, source), (written_to, destination_slice) = places
        pool.enter(read_from, written_to)
        return Placement(source, destination_slice, (array, destination), lambda: pool.leave(read_from, written_to))

    def _locate(
        self, pool: SegmentPool, array: NDArray[Any], layout: Layout, seconds: float | None
    ) -> tuple[Segment, softmax_pb2.MemorySlice]:
        found = _find(pool, array, layout)
        assert found is not None
        segment, offset = found
        region = self._lease.region(segment, segment.registration, seconds)
        return segment, softmax_pb2.MemorySlice(region=region, offset=offset, byte_size=array.nbytes)


def _no_room(error: OSError) -> ResourceExhaustedError:
    return ResourceExhaustedError(
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        f"no room for shared memory ({error}): enlarge /dev/shm (docker: --shm-size), or use transport='auto'",
    )


def _find(pool: SegmentPool, array: NDArray[Any], layout: Layout) -> tuple[Segment, int] | None:
    """Return where an array lies, if that is in a segment and as the server reads it."""
    if not array.flags.c_contiguous or array.dtype != layout.element.numpy:
        return None
    return pool.find(_address_of(array), array.nbytes)


def _address_of(array: NDArray[Any]) -> int:
    address: int = array.__array_interface__["data"][0]
    return address
