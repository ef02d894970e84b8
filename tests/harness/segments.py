"""Segments of POSIX shared memory, as a client makes them."""

from __future__ import annotations

import mmap
import os
import secrets
from pathlib import Path
from types import TracebackType

import numpy as np
from numpy.typing import NDArray
from softmaxd_proto.v1 import softmax_pb2

FOLDER = Path("/dev/shm")
TENSORS_START = 4096


class Segment:
    """A segment that starts with its token; gone from its folder when left.

    Args:
        byte_size: Its size, the first page included.
        name: Its name; None takes a random one.
    """

    def __init__(self, byte_size: int, name: str | None = None) -> None:
        self.name = name or f"softmaxd-{secrets.token_hex(16)}"
        self.token = secrets.token_bytes(16)
        self.byte_size = byte_size
        self.path = FOLDER / self.name
        self.descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        os.posix_fallocate(self.descriptor, 0, byte_size)
        self.memory = mmap.mmap(self.descriptor, byte_size)
        self.memory[: len(self.token)] = self.token

    def array(self, shape: tuple[int, ...], dtype: np.dtype, offset: int = TENSORS_START) -> NDArray:
        """Return an array in the segment."""
        return np.ndarray(shape, dtype, self.memory, offset)

    def registration(self) -> softmax_pb2.RegisterMemoryRequest:
        """Return the request that registers it."""
        named = softmax_pb2.SharedMemory(name=self.name, token=self.token)
        return softmax_pb2.RegisterMemoryRequest(shared_memory=named, byte_size=self.byte_size)

    def close(self) -> None:
        """Remove it; a second call does nothing. Its mapping lives as long as its arrays do."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1
            self.path.unlink(missing_ok=True)

    def __enter__(self) -> Segment:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
