"""The contest of transports: who takes part, on what tensors, and what the rounds gave."""

from __future__ import annotations

import random
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import numpy as np
from harness.reference import assert_close
from harness.server_process import ServerProcess
from numpy.typing import NDArray
from softmaxd_client import SoftmaxClient
from softmaxd_client.blocks import BLOCK_BYTES

COLS = 1024
ROWS = {"4KB": 1, "1MB": 256, "16MB": 4096, "64MB": 16384}
ONE_CALL, STREAM = "softmax()", "stream()"
CALLS = (ONE_CALL, STREAM)


@dataclass(frozen=True)
class Job:
    """One tensor to compute.

    Attributes:
        size: Its name in ROWS.
        x: float32 of shape (rows, COLS).
        expected: The backend's softmax of it, checked against float64. A backend gives a row the same bits always, so
            that every way to the server has to bring exactly these.
    """

    size: str
    x: NDArray[Any]
    expected: NDArray[Any]

    def check(self, result: NDArray[Any]) -> None:
        """Assert that a result is right, to the bit."""
        assert np.array_equal(result, self.expected), f"a result of {self.size} is wrong"


def make_jobs(backend: str, sizes: Sequence[str]) -> list[Job]:
    """Let a server of a backend compute what is expected, message by message, and hold it against float64."""
    jobs = []
    with ServerProcess("--backend", backend) as server, SoftmaxClient(server.target, transport="inline") as client:
        for size in sizes:
            x = np.random.default_rng(1).standard_normal((ROWS[size], COLS), dtype=np.float32) * 3
            expected = np.concatenate(list(client.stream(blocks(x))))
            assert_close(expected, x)
            jobs.append(Job(size, x, expected))
    return jobs


def blocks(x: Any) -> list[Any]:
    """Return the views, whole rows in messages of the client's size, that a matrix of numpy or PyTorch consists of."""
    rows = max(1, BLOCK_BYTES // (COLS * 4))
    return [x[start : start + rows] for start in range(0, len(x), rows)]


@dataclass(frozen=True)
class Contestant:
    """Someone who brings a tensor to a server and the answer back, checked already.

    Attributes:
        call: One of CALLS.
        size: A name in ROWS.
        who: Server, transport and client.
        turn: Takes a turn and returns the seconds of each call: for STREAM of the whole stream.
    """

    call: str
    size: str
    who: str
    turn: Callable[[], list[float]]


@dataclass
class Outcome:
    """What one contestant took: the seconds of each call, round by round.

    The rounds of all contestants belong together by index.
    """

    rounds: list[list[float]] = field(default_factory=list)

    @property
    def p50(self) -> float:
        """The median over the rounds of each round's median, in seconds."""
        return statistics.median(self._medians())

    @property
    def p99(self) -> float:
        """The 99th percentile of all calls, in seconds: of fewer than 100 the slowest or nearly so."""
        return float(np.percentile([call for calls in self.rounds for call in calls], 99))

    def speed_of(self, reference: Outcome) -> tuple[float, float, float]:
        """Return lower quartile, median and upper quartile of reference's time / own time, each round's own."""
        pairs = zip(self._medians(), reference._medians(), strict=True)
        low, middle, high = statistics.quantiles([theirs / ours for ours, theirs in pairs], n=4, method="inclusive")
        return low, middle, high

    def _medians(self) -> list[float]:
        return [statistics.median(calls) for calls in self.rounds]


# By call, size and who, in the order of the table.
Outcomes = dict[tuple[str, str, str], Outcome]


def play_round(contestants: Sequence[Contestant], outcomes: Outcomes) -> None:
    """Give each contestant a turn, in a random order."""
    for contestant in contestants:
        outcomes.setdefault((contestant.call, contestant.size, contestant.who), Outcome())
    for contestant in random.sample(contestants, len(contestants)):
        outcomes[contestant.call, contestant.size, contestant.who].rounds.append(contestant.turn())
