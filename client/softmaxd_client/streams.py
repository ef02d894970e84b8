"""The exchange of many tensors over one bidirectional call, for threads.

gRPC pulls requests in a thread of its own, the feeder; the caller's thread takes the answers. Between them stands a
queue with one slot for each tensor, in order. It tells the caller's side what to wait for next, so that a tensor that
never went out keeps its place among the answers, and a call that breaks is noticed while the iterable is still waiting
for its next tensor.
"""

from __future__ import annotations

import contextlib
import itertools
import queue
import threading
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import grpc

from softmaxd_client import transport
from softmaxd_client.chunks import BLOCKS_IN_FLIGHT, Block, ChunkedRequest
from softmaxd_client.errors import InvalidTensorError, ServerError, from_rpc
from softmaxd_client.transport import Answer, Request

T = TypeVar("T")

# How a tensor is sent: as one message, or in blocks.
Outgoing: TypeAlias = "tuple[Request, bytes] | ChunkedRequest"
# What became of one tensor: what was asked and answered, in blocks or not, or why it was refused here.
Outcome: TypeAlias = "tuple[Request, Answer | ServerError] | ChunkedRequest | InvalidTensorError"


@dataclass(frozen=True)
class Exhausted:
    """The slot behind the last tensor.

    Attributes:
        cause: What the iterable raised; None where it just ended.
    """

    cause: BaseException | None = None


class CallOver:
    """The slot that says that the call has ended, for whatever reason."""


# A slot with nothing to receive: a tensor refused here, or a chunked request, behind the slots of its blocks.
Settled = InvalidTensorError, ChunkedRequest
Slot: TypeAlias = Request | Block | ChunkedRequest | InvalidTensorError | Exhausted | CallOver


def request_id_of(slot: Slot) -> str:
    """Return the id of the request in a slot; the empty string where there is none."""
    if isinstance(slot, Block):
        slot = slot.request
    return slot.request_id if isinstance(slot, Request) else ""


def exchange(
    start: Callable[..., Any],
    values: Iterator[T],
    prepare: Callable[[T], Outgoing],
    *,
    in_flight: int,
    timeout: float | None,
) -> Generator[Outcome, None, None]:
    """Send tensors and yield what became of each, in order.

    Args:
        start: Starts the call: a stream-stream method of a channel, with bytes in and out.
        values: Pulled from in another thread, never more than `in_flight` ahead of the answers.
        prepare: Turns a value into what is sent for it, in that thread; raises InvalidTensorError.
        in_flight: Tensors that may be un-answered at once; of blocks there may be `BLOCKS_IN_FLIGHT`.
        timeout: Seconds for the whole call.

    Raises:
        ServerError: The call as a whole failed.
        BaseException: Whatever `values` raised, after all that came before it was yielded.
    """
    feeder = _Feeder(values, prepare, in_flight)
    call = start(feeder.messages(), timeout=timeout)
    if not call.add_callback(feeder.announce_call_over):  # False: the call was over before
        feeder.announce_call_over()
    try:
        while not isinstance(slot := feeder.slots.get(), Exhausted):
            if isinstance(slot, Block):
                _, answer = _receive(call, slot.request)
                slot.owner.accept(slot, answer)
                feeder.block_window.leave(slot.weight)
                continue
            outcome = slot if isinstance(slot, Settled) else _receive(call, slot)
            feeder.window.leave()
            yield outcome
        if slot.cause is not None:
            raise slot.cause
        if _read(call, slot) is not None:
            raise transport.unasked_answer()
    finally:
        feeder.stop()
        call.cancel()


class _Window:
    """How much may be un-answered at once."""

    def __init__(self, size: int) -> None:
        self._free = size
        self._is_stopped = False
        self._condition = threading.Condition()

    def enter(self, amount: int = 1) -> bool:
        """Wait for room; return False, with or without room, once the window is stopped."""
        with self._condition:
            self._condition.wait_for(lambda: self._is_stopped or self._free >= amount)
            self._free -= amount
            return not self._is_stopped

    def leave(self, amount: int = 1) -> None:
        with self._condition:
            self._free += amount
            self._condition.notify_all()

    def stop(self) -> None:
        with self._condition:
            self._is_stopped = True
            self._condition.notify_all()


class _Feeder:
    """Pulls the values, and makes their messages."""

    def __init__(self, values: Iterator[Any], prepare: Callable[[Any], Outgoing], in_flight: int) -> None:
        self.window = _Window(in_flight)
        self.block_window = _Window(BLOCKS_IN_FLIGHT)
        self.slots: queue.SimpleQueue[Slot] = queue.SimpleQueue()
        self._values = values
        self._prepare = prepare

    def messages(self) -> Iterator[bytes]:
        """Yield the messages of all values, for gRPC's thread to pull from."""
        messages = itertools.chain.from_iterable(map(self._messages_of, self._pull()))
        while (message := self._next(messages)) is not None:
            yield message

    def _next(self, messages: Iterator[bytes]) -> bytes | None:
        """Return the next message; None behind the last one, whose slot then says why."""
        try:
            return next(messages)
        except StopIteration:
            end = Exhausted()
        except BaseException as error:  # all of it is the caller's, in whose stead this thread pulls
            end = Exhausted(error)
        self.slots.put(end)
        return None

    def _pull(self) -> Iterator[Any]:
        """Yield the values, each when there is room for it."""
        with contextlib.suppress(StopIteration):
            while self.window.enter():
                yield next(self._values)

    def _messages_of(self, value: Any) -> Iterator[bytes]:
        """Yield the messages of a value, each behind its slot; none where there is nothing to send."""
        try:
            outgoing = self._prepare(value)
        except InvalidTensorError as error:
            self.slots.put(error)
            return
        if isinstance(outgoing, ChunkedRequest):
            for block in outgoing.blocks():
                if not self.block_window.enter(block.weight):
                    return
                message = outgoing.encode(block)
                self.slots.put(block)
                yield message
            self.slots.put(outgoing)
        else:
            request, message = outgoing
            self.slots.put(request)
            yield message

    def stop(self) -> None:
        """Let the iterable be pulled from no more, and end the thread where it waits for room."""
        self.window.stop()
        self.block_window.stop()

    def announce_call_over(self) -> None:
        self.slots.put(CallOver())


def _receive(call: Any, slot: Request | CallOver) -> tuple[Request, Answer | ServerError]:
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
