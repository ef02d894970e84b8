"""The exchange of many tensors over one bidirectional call, for an event loop.

The same as `streams`, with a task for the feeder in place of gRPC's thread.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from typing import Any, TypeVar

import grpc

from softmaxd_client import transport
from softmaxd_client.errors import InvalidTensorError, from_status
from softmaxd_client.streams import CallOver, Exhausted, Outcome, Prepare, Slot, request_id_of
from softmaxd_client.tensors import TensorLike
from softmaxd_client.transport import Request

T = TypeVar("T")

_WRITE_FAILED = "Internal error from Core"
# The server's status is on its way when a write fails; on a busy machine grpc.aio loses it in 2 of 100 such calls.
_SERVER_STATUS_SECONDS = 1.0


async def exchange(
    start: Callable[..., Any],
    arrays: AsyncIterator[TensorLike],
    prepare: Prepare,
    *,
    in_flight: int,
    timeout: float | None,
) -> AsyncGenerator[Outcome, None]:
    """Send tensors and yield what became of each, in order.

    Args:
        start: Starts the call: a stream-stream method of an aio channel, with bytes in and out.
        arrays: Pulled from in another task, never more than `in_flight` ahead of the answers.
        prepare: Called in that task.
        in_flight: Tensors that may be un-answered at once.
        timeout: Seconds for the whole call.

    Raises:
        ServerError: The call as a whole failed.
        BaseException: Whatever `arrays` raised, after all that came before it was yielded.
    """
    feeder = _Feeder(arrays, prepare, in_flight)
    call = start(timeout=timeout)
    ending = _Ending()
    call.add_done_callback(ending.note)
    call.add_done_callback(feeder.announce_call_over)
    feeding = asyncio.create_task(feeder.feed(call))
    try:
        while not isinstance(slot := await feeder.slots.get(), Exhausted):
            outcome = slot if isinstance(slot, InvalidTensorError) else await _receive(call, ending, slot)
            feeder.window.release()
            yield outcome
        if slot.cause is not None:
            raise slot.cause
        if await _read(call, ending, slot) is not None:
            raise transport.unasked_answer()
    finally:
        call.cancel()
        feeding.cancel()
        await asyncio.gather(feeding, return_exceptions=True)


class _Feeder:
    """Pulls the arrays, and sends their messages."""

    def __init__(self, arrays: AsyncIterator[TensorLike], prepare: Prepare, in_flight: int) -> None:
        self.window = asyncio.Semaphore(in_flight)
        self.slots: asyncio.Queue[Slot] = asyncio.Queue()
        self._arrays = arrays
        self._prepare = prepare

    async def feed(self, call: Any) -> None:
        """Send until the arrays are exhausted or the call is over, of which the reader hears from the call itself."""
        with contextlib.suppress(grpc.RpcError, grpc.aio.UsageError, asyncio.InvalidStateError):
            while not isinstance(message := await self._next(), Exhausted):
                if message is not None:
                    await call.write(message)
            await call.done_writing()

    def announce_call_over(self, _: object) -> None:
        self.slots.put_nowait(CallOver())

    async def _next(self) -> bytes | Exhausted | None:
        """Pull one array and fill its slot; return its message, or None where there is nothing to send."""
        await self.window.acquire()
        try:
            message = self._take(await anext(self._arrays))
        except StopAsyncIteration:
            end = Exhausted()
        except BaseException as error:  # all of it is the caller's, in whose stead this task pulls
            end = Exhausted(error)
        else:
            return message
        self.slots.put_nowait(end)
        return end

    def _take(self, array: TensorLike) -> bytes | None:
        try:
            request, message = self._prepare(array)
        except InvalidTensorError as error:
            self.slots.put_nowait(error)
            return None
        self.slots.put_nowait(request)
        return message


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
        """Return the server's status, once it is there; OK where it is lost, since no more is known than the end."""
        with contextlib.suppress(asyncio.TimeoutError):
            return await asyncio.wait_for(asyncio.shield(self._status), _SERVER_STATUS_SECONDS)
        return grpc.StatusCode.OK, ""


def _completed(coroutine: Coroutine[Any, Any, T]) -> T:
    """Return what a coroutine returns that has nothing to wait for."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    raise AssertionError("the status of a call that is done has to be waited for")


async def _receive(call: Any, ending: _Ending, slot: Request | CallOver) -> Outcome:
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
