"""When to try again what gRPC does not: a call over a stream, whose messages it would lose."""

from __future__ import annotations

import random
import time

from softmaxd_client.config import RetryPolicy
from softmaxd_client.errors import UnavailableError

# As gRPC spreads its own retries: clients that failed together do not come back together.
_JITTER = 0.2


class Attempts:
    """The attempts that one call has, and the time that all of them share.

    Args:
        retry: How many, and how far apart; None for a single one.
        seconds: From now on until the call fails; None for no deadline.
    """

    def __init__(self, retry: RetryPolicy | None, seconds: float | None) -> None:
        self._backoffs = iter(() if retry is None else retry.backoffs())
        self._expires = None if seconds is None else time.monotonic() + seconds

    def seconds_left(self) -> float | None:
        """Return the timeout of an attempt that begins now; None for no deadline."""
        return None if self._expires is None else self._expires - time.monotonic()

    def backoff_seconds(self, error: UnavailableError) -> float:
        """Return how long to wait before the next attempt.

        Args:
            error: What ended the last one.

        Raises:
            UnavailableError: `error`, as there is no attempt left, or no time for one.
        """
        backoff = next(self._backoffs, None)
        if backoff is None:
            raise error
        backoff *= random.uniform(1 - _JITTER, 1 + _JITTER)
        left = self.seconds_left()
        if left is not None and left <= backoff:
            raise error
        return backoff
