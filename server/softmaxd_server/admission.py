"""How many bytes of requests and answers the server holds at once."""

from __future__ import annotations

import asyncio
from collections import deque

from softmaxd_server.errors import OverloadedError


class Admission:
    """Counts the bytes in flight, for one event loop.

    A request's message counts from its arrival until its answer is sent, and its answer, as large as it, for as long. A
    stream is read only while there is room: gRPC's flow control then stops its client. A unary message has arrived
    whole before anyone is asked, so without room it is refused. A request finds room where nothing else is in flight,
    however large it is.

    Args:
        limit_bytes: What to hold. Streams that were being read when it was reached go beyond it by a message each.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._waiting: deque[asyncio.Future[None]] = deque()
        self.in_flight_bytes = 0
        """Bytes of the requests in flight, and as many for their answers."""

    def admit(self, message_bytes: int) -> None:
        """Let a request in whose message has arrived.

        Raises:
            OverloadedError: There is no room; nothing was counted.
        """
        if self.in_flight_bytes and self.in_flight_bytes + 2 * message_bytes > self._limit_bytes:
            raise OverloadedError(message_bytes, self.in_flight_bytes, self._limit_bytes)
        self.in_flight_bytes += 2 * message_bytes

    def enter(self, message_bytes: int) -> None:
        """Count a request of a stream, which waited for room before it was read."""
        self.in_flight_bytes += 2 * message_bytes
        self._wake_next()

    def leave(self, message_bytes: int) -> None:
        """Forget a request whose answer is sent, or not wanted any more."""
        self.in_flight_bytes -= 2 * message_bytes
        self._wake_next()
        # A stream whose turn has come may find nothing to read. While something is in flight the others' turns come
        # with its end; now they would not.
        while self._waiting and not self.in_flight_bytes:
            self._wake_next()

    async def room(self) -> None:
        """Wait until there is room; who waits longer comes first."""
        if self._has_room() and not self._waiting:
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        await turn

    def _wake_next(self) -> None:
        while self._waiting and self._has_room():
            turn = self._waiting.popleft()
            if not turn.done():  # else its stream has ended
                turn.set_result(None)
                return

    def _has_room(self) -> bool:
        return self.in_flight_bytes < self._limit_bytes
