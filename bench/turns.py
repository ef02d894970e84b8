"""A contestant's turn; no package is needed, so that a peer's interpreter can take turns by the same rules."""

from __future__ import annotations

import time
from collections.abc import Callable

# Threads that the contestant before has left spinning are to be done: timing.py has the figures.
SETTLE_SECONDS = 0.04
TURN_SECONDS = 0.05
MIN_CALLS = 3


def take_turn(run: Callable[[], object]) -> list[float]:
    """Call once untimed, then time calls until the turn is over; return the seconds of each."""
    time.sleep(SETTLE_SECONDS)
    run()
    seconds: list[float] = []
    start = now = time.perf_counter()
    while len(seconds) < MIN_CALLS or now - start < TURN_SECONDS:
        before = now
        run()
        now = time.perf_counter()
        seconds.append(now - before)
    return seconds
