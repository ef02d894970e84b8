"""One open SoftmaxStream call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import perf_counter
from typing import Any, NamedTuple

import grpc

from softmaxd_server.admission import Admission
from softmaxd_server.dataplane import Outcome

# Requests of one stream that are held at once, the one whose answer is being sent included: enough that computing,
# receiving and sending overlap, few enough that one stream cannot take all of --in-flight-bytes.
READ_AHEAD = 4

Pending = Outcome | asyncio.Future[Outcome]
Context = grpc.aio.ServicerContext[bytes, bytes]


class _Entry(NamedTuple):
    """A request that has no answer yet."""

    message_bytes: int
    arrived: float
    pending: Pending


class SoftmaxStream:
    """Reads requests a little ahead and writes their answers in the order in which they came.

    Args:
        context: The call.
        admission: Asked before each request is read.
        start: Starts one request, given its message and its arrival; gives its outcome, at once or later.
        finish: Turns an outcome into an answer's message, given the request's arrival too.
        drop: Told of each request that gets no answer, because the call ended.
    """

    def __init__(
        self,
        context: Context,
        admission: Admission,
        start: Callable[[bytes, float], Pending],
        finish: Callable[[Outcome, float], bytes],
        drop: Callable[[float], None],
    ) -> None:
        self._context = context
        self._admission = admission
        self._start, self._finish, self._drop = start, finish, drop
        self._slots = asyncio.Semaphore(READ_AHEAD)
        self._pending: asyncio.Queue[_Entry | None] = asyncio.Queue()
        self._reader: asyncio.Task[None] | None = None
        self._outstanding = 0
        self._quiet_since = perf_counter()
        self.is_ended_early = False

    async def run(self) -> None:
        """Answer until the client has sent its last request, or until `end_early`."""
        self._reader = reader = asyncio.create_task(self._read())
        try:
            while (entry := await self._pending.get()) is not None:
                message_bytes, arrived, pending = entry
                try:
                    await self._answer(arrived, pending)
                finally:
                    self._admission.leave(message_bytes)
                del entry, pending  # what they hold is not kept until the next request
                self._outstanding -= 1
                self._quiet_since = perf_counter()
                self._slots.release()
        finally:
            reader.cancel()
            await asyncio.wait((reader,))
            self._drop_unanswered()
        if not reader.cancelled() and (error := reader.exception()) is not None:
            raise error

    async def _answer(self, arrived: float, pending: Pending) -> None:
        try:
            outcome = await pending if isinstance(pending, asyncio.Future) else pending
        except asyncio.CancelledError:
            self._drop(arrived)
            raise
        # Counted as done before it is sent: who has the answer finds it in the metrics.
        await self._context.write(self._finish(outcome, arrived))

    def quiet_seconds(self) -> float:
        """Return for how long there has been nothing to do; 0 while a request has no answer."""
        return 0.0 if self._outstanding else perf_counter() - self._quiet_since

    def end_early(self) -> None:
        """Read no more; `run` returns once all that was read is answered."""
        self.is_ended_early = True
        if self._reader is not None:
            self._reader.cancel()

    async def _read(self) -> None:
        try:
            while True:
                await self._slots.acquire()
                await self._admission.room()
                message: Any = await self._context.read()
                if message is grpc.aio.EOF:
                    return
                arrived = perf_counter()
                self._outstanding += 1
                self._admission.enter(len(message))
                self._pending.put_nowait(_Entry(len(message), arrived, self._start(message, arrived)))
                del message  # it is not kept until the next one comes
        finally:
            self._pending.put_nowait(None)

    def _drop_unanswered(self) -> None:
        while not self._pending.empty():
            entry = self._pending.get_nowait()
            if entry is not None:
                message_bytes, arrived, pending = entry
                if isinstance(pending, asyncio.Future):
                    pending.cancel()  # a worker that has not begun will not begin
                self._admission.leave(message_bytes)
                self._drop(arrived)
