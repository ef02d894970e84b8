"""Opens the shared memory that a client names, and trusts nothing that it says.

A client could name another one's segment, the server's own files, or a segment that is smaller than it says, and it can
truncate a segment at any time. So: only names with our prefix, which no path fits; only regular files of known owners;
the size of the file itself; a secret at its start, which only who can read the segment knows; a mapping that survives
the loss of its pages; and one answer to all that does not fit, so that nobody learns what there is.
"""

from __future__ import annotations

import contextlib
import fcntl
import hmac
import os
import re
import stat
from types import ModuleType

from softmaxd_proto.v1 import softmax_pb2

from softmaxd_server.backends.base import Backend
from softmaxd_server.errors import InvalidRegionError
from softmaxd_server.regions import Region
from softmaxd_server.transports import SHARED_MEMORY

TOKEN_BYTES = 16
_NAME = re.compile(r"softmaxd-[A-Za-z0-9_-]{1,64}", re.ASCII)
_FOLDER = "/dev/shm"  # where shm_open of the C library looks
_UNUSABLE = (
    "the segment cannot be used: it must be in the server's /dev/shm, belong to a user that the server takes "
    "(--shared-memory-uids), have the size that was given, and start with the token that was given; containers need a "
    "common /dev/shm (docker: --ipc=host)"
)


class SharedMemoryOpener:
    """Opens segments of shared memory.

    Args:
        backend: Told of each segment, so that a device can reach it without a copy.
        native: `softmaxd_native`, for its SharedMapping.
        user_ids: Whose segments are taken.
    """

    def __init__(self, backend: Backend, native: ModuleType, user_ids: frozenset[int]) -> None:
        self._backend = backend
        self._native = native
        self._user_ids = user_ids

    def open(self, named: softmax_pb2.SharedMemory, byte_size: int) -> Region:
        """See `regions.Opener.open`."""
        if not _NAME.fullmatch(named.name):
            raise InvalidRegionError(
                "got a segment's name that is not allowed: allowed is softmaxd- and 1 to 64 letters, digits, - or _"
            )
        if len(named.token) != TOKEN_BYTES:
            raise InvalidRegionError(f"got a token of {len(named.token)} bytes, wanted are {TOKEN_BYTES}")
        if byte_size < TOKEN_BYTES:
            raise InvalidRegionError(
                f"got a byte_size of {byte_size}: a segment starts with {TOKEN_BYTES} bytes of token"
            )
        with contextlib.ExitStack() as opened:
            descriptor = _open(named.name)
            opened.callback(os.close, descriptor)
            status = os.fstat(descriptor)
            if (
                not stat.S_ISREG(status.st_mode)
                or status.st_uid not in self._user_ids
                or status.st_size < byte_size
                or not hmac.compare_digest(os.pread(descriptor, TOKEN_BYTES, 0), named.token)
            ):
                raise InvalidRegionError(_UNUSABLE)
            if named.is_locked:
                opened.callback(_remove_if_orphaned, named.name, descriptor)
            try:
                mapping = self._native.SharedMapping(descriptor, byte_size)
            except ValueError as error:  # it has become smaller in the meantime
                raise InvalidRegionError(_UNUSABLE) from error
            opened.callback(mapping.close)
            memory = opened.enter_context(memoryview(mapping))
            self._backend.register_memory(memory)
            opened.callback(self._backend.unregister_memory, memory)
            # All of it is undone, last first, when the region is released.
            release = opened.pop_all().close
        identity = (status.st_dev, status.st_ino)
        return Region(SHARED_MEMORY, byte_size, memory, identity, lambda: bool(mapping.is_intact), release)


def _open(name: str) -> int:
    try:
        # A fifo would block, a link would lead elsewhere.
        return os.open(f"{_FOLDER}/{name}", os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise InvalidRegionError(_UNUSABLE) from error


def _remove_if_orphaned(name: str, descriptor: int) -> None:
    """Remove a segment's name if the client that held a lock on it is gone."""
    with contextlib.suppress(OSError):  # BlockingIOError: the client lives; others: the name is not ours to remove
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path = f"{_FOLDER}/{name}"
        if os.path.samestat(os.lstat(path), os.fstat(descriptor)):
            os.unlink(path)
