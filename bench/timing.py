"""Timing of contestants side by side: in each round every one of them has a turn, in a new order."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial


@dataclass(frozen=True)
class Timing:
    """What one contestant took, round by round.

    Attributes:
        seconds: One figure a round; the rounds of all contestants belong together by index.
    """

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        """The median in seconds."""
        return statistics.median(self.seconds)

    def ratio_to(self, reference: Timing) -> tuple[float, float, float]:
        """Return the lower quartile, median and upper quartile of reference / self over the rounds."""
        ratios = [theirs / ours for ours, theirs in zip(self.seconds, reference.seconds, strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        return low, middle, high


# A peer's threads spin after its work, on the cores that the next contestant needs: onnxruntime's for 25 ms, OpenMP's
# for 4 ms (process time after a call, 2-core Xeon).
SETTLE_SECONDS = 0.04
# A turn starts with calls that are not timed: after a rest the caches and the clock take some 3 ms to come back.
WARM_UP_SECONDS = 0.005
TURN_SECONDS = 0.01


def race(contestants: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, Timing]:
    """Time contestants on the CPU: a turn is the median of some calls."""
    return take_turns({name: partial(_turn, run) for name, run in contestants.items()}, rounds)


def take_turns(turns: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, Timing]:
    """Give each contestant a turn in each round, so that a change of the machine's speed meets them all.

    Args:
        turns: By name, what takes a turn and returns the seconds of one call.
        rounds: How many.
    """
    seconds: dict[str, list[float]] = {name: [] for name in turns}
    order = list(turns)
    for _ in range(rounds):
        random.shuffle(order)
        for name in order:
            seconds[name].append(turns[name]())
    return {name: Timing(tuple(values)) for name, values in seconds.items()}


def _turn(run: Callable[[], object]) -> float:
    """Return the median of the calls of one turn."""
    time.sleep(SETTLE_SECONDS)
    _time_calls(run, WARM_UP_SECONDS)
    return statistics.median(_time_calls(run, TURN_SECONDS))


def _time_calls(run: Callable[[], object], total_seconds: float) -> list[float]:
    """Call until `total_seconds` have passed, at least once; return the seconds of each call."""
    seconds: list[float] = []
    start = now = time.perf_counter()
    while now - start < total_seconds:
        before = now
        run()
        now = time.perf_counter()
        seconds.append(now - before)
    return seconds
