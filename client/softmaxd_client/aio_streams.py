"""The exchange of many tensors over one bidirectional call, for an event loop.

The same as `streams`, with a task for the feeder in place of gRPC's thread.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import grpc

from softmaxd_client import transport
from softmaxd_client.chunks import BLOCKS_IN_FLIGHT, Block, ChunkedRequest
from softmaxd_client.errors import InvalidTensorError, ServerError, from_status
from softmaxd_client.streams import CallOver, Exhausted, Outcome, Outgoing, Settled, Slot, request_id_of
from softmaxd_client.transport import Answer, Request

T = TypeVar("T")

_WRITE_FAILED = "Internal error from Core"
# The server's status is on its way when a write fails; on a busy machine grpc.aio loses it in 2 of 100 such calls.
_SERVER_STATUS_SECONDS = 1.0


async def exchange(
    start: Callable[..., Any],
    values: AsyncIterator[T],
    prepare: Callable[[T], Awaitable[Outgoing]],
    *,
    in_flight: int,
    timeout: float | None,
) -> AsyncGenerator[Outcome, None]:
    """Send tensors and yield what became of each, in order.

    Args:
        start: Starts the call: a stream-stream method of an aio channel, with bytes in and out.
        values: Pulled from in another task, never more than `in_flight` ahead of the answers.
        prepare: Turns a value into what is sent for it, in that task; raises InvalidTensorError.
        in_flight: Tensors that may be un-answered at once; of blocks there may be `BLOCKS_IN_FLIGHT`.
        timeout: Seconds for the whole call.

    Raises:
        ServerError: The call as a whole failed.
        BaseException: Whatever `values` raised, after all that came before it was yielded.
    """
    feeder = _Feeder(values, prepare, in_flight)
    call = start(timeout=timeout)
    ending = _Ending()
    call.add_done_callback(ending.note)
    call.add_done_callback(feeder.announce_call_over)
    feeding = asyncio.create_task(feeder.feed(call))
    try:
        while not isinstance(slot := await feeder.slots.get(), Exhausted):
            if isinstance(slot, Block):
                _, answer = await _receive(call, ending, slot.request)
                slot.owner.accept(slot, answer)
                feeder.block_window.leave(slot.weight)
                continue
            outcome = slot if isinstance(slot, Settled) else await _receive(call, ending, slot)
            feeder.window.leave()
            yield outcome
        if slot.cause is not None:
            raise slot.cause
        if await _read(call, ending, slot) is not None:
            raise transport.unasked_answer()
    finally:
        call.cancel()
        feeding.cancel()
        await asyncio.gather(feeding, return_exceptions=True)


class _Window:
    """How much may be un-answered at once."""

    def __init__(self, size: int) -> None:
        self._free = asyncio.Semaphore(size)

    async def enter(self, amount: int = 1) -> None:
        """Wait for room; for one task only."""
        for _ in range(amount):
            await self._free.acquire()

    def leave(self, amount: int = 1) -> None:
        for _ in range(amount):
            self._free.release()


class _Feeder:
    """Pulls the values, and sends their messages."""

    def __init__(
        self, values: AsyncIterator[Any], prepare: Callable[[Any], Awaitable[Outgoing]], in_flight: int
    ) -> None:
        self.window = _Window(in_flight)
        self.block_window = _Window(BLOCKS_IN_FLIGHT)
        self.slots: asyncio.Queue[Slot] = asyncio.Queue()
        self._values = values
        self._prepare = prepare

    async def feed(self, call: Any) -> None:
        """Send until the values are exhausted or the call is over, of which the reader hears from the call itself."""
        async with contextlib.aclosing(self._messages()) as messages:
            with contextlib.suppress(grpc.RpcError, grpc.aio.UsageError, asyncio.InvalidStateError):
                while (message := await self._next(messages)) is not None:
                    await call.write(message)
                await call.done_writing()

    def announce_call_over(self, _: object) -> None:
        self.slots.put_nowait(CallOver())

    async def _next(self, messages: AsyncIterator[bytes]) -> bytes | None:
        """Return the next message; None behind the last one, whose slot then says why."""
        try:
            return await anext(messages)
        except StopAsyncIteration:
            end = Exhausted()
        except BaseException as error:  # all of it is the caller's, in whose stead this task pulls
            end = Exhausted(error)
        self.slots.put_nowait(end)
        return None

    async def _messages(self) -> AsyncGenerator[bytes, None]:
        """Yield the messages of all values, each behind its slot and when there is room for it."""
        while (outgoing := await self._pull()) is not None:
            if isinstance(outgoing, ChunkedRequest):
                for block in outgoing.blocks():
                    await self.block_window.enter(block.weight)
                    message = outgoing.encode(block)
                    self.slots.put_nowait(block)
                    yield message
                self.slots.put_nowait(outgoing)
            else:
                request, message = outgoing
                self.slots.put_nowait(request)
                yield message

    async def _pull(self) -> Outgoing | None:
        """Return what to send for the next value that can be sent, when there is room for it; None behind the last."""
        while True:
            await self.window.enter()
            try:
                value = await anext(self._values)
            except StopAsyncIteration:
                return None
            try:
                return await self._prepare(value)
            except InvalidTensorError as error:
                self.slots.put_nowait(error)


class _Ending:
    """The status that a call ended with.

    grpc.aio says "Internal error from Core" instead of the server's status where a message was being written as the
    call ended. It calls back for each of the two, in either order, and the later one is all that the call remembers.
    """

    def __init__(self) -> None:
        self._status: asyncio.Future[tuple[grpc.StatusCode, str]] = asyncio.get_running_loop().create_future()

    def note(self, call: Any) -> None:
        """Take down the status that the call has now; to be called each time that it is done."""
        code, details = _completed(call.code()), _completed(call.details())
        if details != _WRITE_FAILED and not self._status.done():
            self._status.set_result((code, details))

    async def status(self) -> tuple[grpc.StatusCode, str]:
        """Return the server's status, once it is there.

        Where it is lost, no more is known than that the call ended while there was more to send. It is then said to be
        UNAVAILABLE, the likeliest reason: a server that drains ends a call so.
        """
        with contextlib.suppress(asyncio.TimeoutError):
            return await asyncio.wait_for(asyncio.shield(self._status), _SERVER_STATUS_SECONDS)
        return grpc.StatusCode.UNAVAILABLE, f"{transport.MISSING_ANSWER}; gRPC lost the status that says why"


def _completed(coroutine: Coroutine[Any, Any, T]) -> T:
    """Return what a coroutine returns that has nothing to wait for."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    raise AssertionError("the status of a call that is done has to be waited for")


async def _receive(call: Any, ending: _Ending, slot: Request | CallOver) -> tuple[Request, Answer | ServerError]:
    """Read the answer to a request; after the end of the call, raise the reason for it."""
    message = await _read(call, ending, slot)
    if message is None:
        raise transport.missing_answer(request_id_of(slot))
    if isinstance(slot, CallOver):
        raise transport.unasked_answer()
    return slot, transport.decode_stream_answer(message, slot)


async def _read(call: Any, ending: _Ending, slot: Slot) -> bytes | None:
    """Return the next message; None at an end with status OK."""
    with contextlib.suppress(grpc.RpcError):
        message: Any = await call.read()
        if isinstance(message, bytes):  # else grpc.aio.EOF
            return message
    code, details = await ending.status()
    if code is grpc.StatusCode.OK:
        return None
    raise from_status(code, details, request_id_of(slot))
