"""The client's side of a RegisterMemory call: what the server has registered for it, for as long as it is open."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from softmaxd_proto.v1 import softmax_pb2

from softmaxd_client.errors import ServerError, UnavailableError, broken_answer, from_rpc, from_status

# One answer, or why none came.
_Slot = queue.SimpleQueue["softmax_pb2.RegisterMemoryResponse | ServerError"]


@dataclass
class _Call:
    """One RegisterMemory call, and what was registered by it."""

    requests: queue.SimpleQueue[bytes | None] = field(default_factory=queue.SimpleQueue)
    waiting: deque[_Slot] = field(default_factory=deque)
    regions: dict[Hashable, bytes] = field(default_factory=dict)
    error: ServerError | None = None
    call: Any = None

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.requests.get, None)


class Lease:
    """Registers memory with the server, each only once while the call is open. Thread-safe.

    A call that ended, because the server went away, is started anew when memory is next asked for.

    Args:
        start: Starts a call: the method RegisterMemory of a channel for threads, with bytes in and out.
    """

    def __init__(self, start: Callable[..., Any]) -> None:
        self._start = start
        self._lock = threading.Lock()
        self._open: _Call | None = None

    def region(
        self, key: Hashable, request: Callable[[], softmax_pb2.RegisterMemoryRequest], seconds: float | None
    ) -> bytes:
        """Return a region's id.

        Args:
            key: Says which memory it is.
            request: Makes the request that registers it, where it is not registered yet.
            seconds: How long to wait for the server; None for as long as it takes.

        Raises:
            ServerError: The server refused, or did not answer.
        """
        with self._lock:
            open_call = self._opened()
            known = open_call.regions.get(key)
            if known is not None:
                return known
            answer = self._ask(open_call, request(), seconds)
            if answer.status.code:
                raise from_status(answer.status.code, answer.status.message)
            open_call.regions[key] = answer.region
            return answer.region

    def forget(self, key: Hashable) -> None:
        """Let the server unregister memory, if it is registered; do not wait for it."""
        with self._lock:
            if self._open is None or (region := self._open.regions.pop(key, None)) is None:
                return
            self._open.waiting.append(queue.SimpleQueue())
            self._open.requests.put(softmax_pb2.RegisterMemoryRequest(unregister=region).SerializeToString())

    def drop(self, region: bytes) -> None:
        """Forget a region that the server says it does not know."""
        with self._lock:
            if self._open is not None:
                regions = self._open.regions
                for key in [key for key, known in regions.items() if known == region]:
                    del regions[key]

    def close(self) -> None:
        """End the call, and with it all that it registered."""
        with self._lock:
            if self._open is not None:
                self._open.requests.put(None)
                self._open.call.cancel()
                self._open = None

    def _opened(self) -> _Call:
        if self._open is None or self._open.error is not None:
            self._open = opened = _Call()
            opened.call = self._start(iter(opened))
            threading.Thread(target=_read, args=(opened,), name="softmaxd-lease", daemon=True).start()
        return self._open

    def _ask(
        self, open_call: _Call, request: softmax_pb2.RegisterMemoryRequest, seconds: float | None
    ) -> softmax_pb2.RegisterMemoryResponse:
        slot: _Slot = queue.SimpleQueue()
        open_call.waiting.append(slot)
        open_call.requests.put(request.SerializeToString())
        if open_call.error is not None:  # it ended before it could see the slot
            raise _anew(open_call.error)
        try:
            answer = slot.get(timeout=seconds)
        except queue.Empty:
            open_call.call.cancel()
            self._open = None
            raise UnavailableError(
                grpc.StatusCode.UNAVAILABLE, f"the server did not register memory within {seconds} seconds"
            ) from None
        if isinstance(answer, ServerError):
            raise _anew(answer)
        return answer


def _anew(error: ServerError) -> ServerError:
    """Make the same error again: one that is kept, once raised, would keep the arrays of the calls it came through."""
    return type(error)(error.code, error.details)


def _read(open_call: _Call) -> None:
    """Give each answer to who waits for it, until the call ends; then its error to all who wait."""
    error: ServerError = UnavailableError(grpc.StatusCode.UNAVAILABLE, "the server ended the RegisterMemory call")
    try:
        for message in open_call.call:
            answer = softmax_pb2.RegisterMemoryResponse.FromString(message)
            open_call.waiting.popleft().put(answer)
    except grpc.RpcError as failure:
        error = from_rpc(failure)
    except (DecodeError, IndexError):
        error = broken_answer("an answer of RegisterMemory was malformed, or not asked for")
        open_call.call.cancel()
    open_call.error = error
    open_call.requests.put(None)
    while open_call.waiting:
        open_call.waiting.popleft().put(error)
