"""The table of transports."""

from __future__ import annotations

from collections.abc import Sequence

from contest import CALLS, COLS, ONE_CALL, ROWS, STREAM, Outcome, Outcomes
from echo_contestants import ECHO
from rich.console import Console
from rich.table import Table
from softmaxd_client.blocks import BLOCK_BYTES
from transports import INLINE_TCP


def print_outcomes(console: Console, outcomes: Outcomes, backend: str, rounds: int) -> None:
    """Print one line for each contestant, beside the TCP echo of the same call and size."""
    title = f"float32, {COLS} columns, backend {backend}; medians of {rounds} rounds (quartiles), p99 of all calls"
    table = Table("call", "size", "who", title=title)
    for heading in ("p50 ms", "p99 ms", "GB/s each way", "speed of the echo's", "calls"):
        table.add_column(heading, justify="right")
    for call in CALLS:
        for size in ROWS:
            rows = {who: outcome for (c, s, who), outcome in outcomes.items() if (c, s) == (call, size)}
            for who, outcome in rows.items():
                speed = _spread(outcome.speed_of(rows[ECHO]))
                table.add_row(call, size, who, *_times(outcome, size), speed, str(sum(map(len, outcome.rounds))))
            table.add_section()
    console.print(table)


def print_key_figures(console: Console, outcomes: Outcomes, sizes: Sequence[str]) -> None:
    """Print how far the inline transport is from a raw echo stream, at the largest size."""
    size, ours = sizes[-1], f"softmaxd {INLINE_TCP.who}"
    echo = outcomes[STREAM, size, ECHO]
    for call in (STREAM, ONE_CALL):
        speed = _spread(outcomes[call, size, ours].speed_of(echo))
        console.print(
            f"inline {call} of {size} in all / raw echo stream of the same in messages of {BLOCK_BYTES} bytes: {speed}"
        )


def _times(outcome: Outcome, size: str) -> tuple[str, str, str]:
    speed = ROWS[size] * COLS * 4 / outcome.p50 / 1e9
    return f"{outcome.p50 * 1e3:.2f}", f"{outcome.p99 * 1e3:.2f}", f"{speed:.3f}"


def _spread(speed: tuple[float, float, float]) -> str:
    low, middle, high = speed
    return f"{middle:.2f} ({low:.2f}-{high:.2f})"
