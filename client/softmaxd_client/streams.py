"""The exchange of many tensors over one bidirectional call, for threads.

gRPC pulls requests in a thread of its own, the feeder; the caller's thread takes the answers. Between them stands a
queue with one slot for each tensor, in order. It tells the caller's side what to wait for next, so that a tensor that
never went out keeps its place among the answers, and a call that breaks is noticed while the iterable is still waiting
for its next tensor.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import grpc

from softmaxd_client import transport
from softmaxd_client.errors import InvalidTensorError, ServerError, from_rpc
from softmaxd_client.tensors import TensorLike
from softmaxd_client.transport import Answer, Request

# Turns a value into a request and its message; raises InvalidTensorError.
Prepare: TypeAlias = Callable[[TensorLike], tuple[Request, bytes]]
# What became of one tensor: what was asked and answered, or why it was refused here.
Outcome: TypeAlias = "tuple[Request, Answer | ServerError] | InvalidTensorError"


@dataclass(frozen=True)
class Exhausted:
    """The slot behind the last tensor.

    Attributes:
        cause: What the iterable raised; None where it just ended.
    """

    cause: BaseException | None = None


class CallOver:
    """The slot that says that the call has ended, for whatever reason."""


Slot: TypeAlias = Request | InvalidTensorError | Exhausted | CallOver


def request_id_of(slot: Slot) -> str:
    """Return the id of the request in a slot; the empty string where there is none."""
    return slot.request_id if isinstance(slot, Request) else ""


def exchange(
    start: Callable[..., Any], arrays: Iterator[TensorLike], prepare: Prepare, *, in_flight: int, timeout: float | None
) -> Generator[Outcome, None, None]:
    """Send tensors and yield what became of each, in order.

    Args:
        start: Starts the call: a stream-stream method of a channel, with bytes in and out.
        arrays: Pulled from in another thread, never more than `in_flight` ahead of the answers.
        prepare: Called in that thread.
        in_flight: Tensors that may be un-answered at once.
        timeout: Seconds for the whole call.

    Raises:
        ServerError: The call as a whole failed.
        BaseException: Whatever `arrays` raised, after all that came before it was yielded.
    """
    feeder = _Feeder(arrays, prepare, in_flight)
    call = start(feeder, timeout=timeout)
    if not call.add_callback(feeder.announce_call_over):  # False: the call was over before
        feeder.announce_call_over()
    try:
        while not isinstance(slot := feeder.slots.get(), Exhausted):
            outcome = slot if isinstance(slot, InvalidTensorError) else _receive(call, slot)
            feeder.window.release()
            yield outcome
        if slot.cause is not None:
            raise slot.cause
        if _read(call, slot) is not None:
            raise transport.unasked_answer()
    finally:
        feeder.stop()
        call.cancel()


class _Feeder:
    """The iterator of messages that gRPC's thread pulls from."""

    def __init__(self, arrays: Iterator[TensorLike], prepare: Prepare, in_flight: int) -> None:
        self.window = threading.Semaphore(in_flight)
        self.slots: queue.SimpleQueue[Slot] = queue.SimpleQueue()
        self._arrays = arrays
        self._prepare = prepare
        self._is_stopped = False

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        while self._enter_window():
            try:
                message = self._take(next(self._arrays))
            except StopIteration:
                self.slots.put(Exhausted())
                raise
            except BaseException as error:  # all of it is the caller's, in whose stead this thread pulls
                self.slots.put(Exhausted(error))
                raise StopIteration from None
            if message is not None:
                return message
        raise StopIteration

    def _enter_window(self) -> bool:
        self.window.acquire()
        return not self._is_stopped

    def _take(self, array: TensorLike) -> bytes | None:
        """Fill the tensor's slot; return its message, or None where there is nothing to send."""
        try:
            request, message = self._prepare(array)
        except InvalidTensorError as error:
            self.slots.put(error)
            return None
        self.slots.put(request)
        return message

    def stop(self) -> None:
        """Let the iterable be pulled from no more, and end the thread where it waits for the window."""
        self._is_stopped = True
        self.window.release()

    def announce_call_over(self) -> None:
        self.slots.put(CallOver())


def _receive(call: Any, slot: Request | CallOver) -> Outcome:
    """Read the answer to a request; after the end of the call, raise the reason for it."""
    message = _read(call, slot)
    if message is None:
        raise transport.missing_answer(request_id_of(slot))
    if isinstance(slot, CallOver):
        raise transport.unasked_answer()
    return slot, transport.decode_stream_answer(message, slot)


def _read(call: Any, slot: Slot) -> bytes | None:
    """Return the next message; None at an end with status OK."""
    try:
        message: bytes = next(call)
    except StopIteration:
        return None
    except grpc.RpcError as error:
        raise from_rpc(error, request_id_of(slot)) from error
    return message
