"""Timing of contestants side by side: each round runs every one of them once, in a new order."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass


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


# OpenMP's and onnxruntime's threads spin for a while after their work, on the cores that the next contestant needs.
SETTLE_SECONDS = 0.005


def race(contestants: Mapping[str, Callable[[], object]], rounds: int, warm_up: int = 2) -> dict[str, Timing]:
    """Run each contestant `rounds` times, interleaved, so that a change of the machine's speed meets them all."""
    for run in contestants.values():
        for _ in range(warm_up):
            run()
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    order = list(contestants)
    for _ in range(rounds):
        random.shuffle(order)
        for name in order:
            time.sleep(SETTLE_SECONDS)
            start = time.perf_counter()
            contestants[name]()
            seconds[name].append(time.perf_counter() - start)
    return {name: Timing(tuple(values)) for name, values in seconds.items()}
