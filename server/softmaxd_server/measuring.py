"""Measures on a device which variant is the fastest for which matrices, and makes the rules of a tuning table of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple, Protocol

from softmaxd_proto.dtypes import ELEMENT_TYPES

from softmaxd_server.tuning import Choice, Measurement

# What is measured: a rule holds up to a size that was measured, from the one before it on.
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 1024, 4096, 16384, 65536)
COLUMNS = (32, 128, 512, *(1 << power for power in range(10, 25)))
_MAX_BYTES = 256 << 20
# Where they are as fast; what is not here comes last.
_SIMPLEST_FIRST = ("warp_row", "block_row", "reread_row", "cluster_row", "pipelined_row", "split_row")
_AS_FAST = 1.02


class TimedDevice(Protocol):
    """What can be measured; a `GpuBackend` is."""

    def candidates(self, cols: int) -> Sequence[str]:
        """Return the names of the variants that may be chosen for rows of `cols` columns."""

    def time_variant(self, variant: str, rows: int, cols: int, dtype: str) -> float:
        """Return the seconds of one launch; raise MemoryError where the matrix does not fit."""


class Shape(NamedTuple):
    """A matrix to measure."""

    dtype: str
    rows: int
    cols: int


def grid(rows: Sequence[int] = ROWS, columns: Sequence[int] = COLUMNS) -> Iterator[Shape]:
    """Yield the matrices that are measured: of each type, from few columns to many, up to 256 MiB."""
    for element in ELEMENT_TYPES:
        for cols in columns:
            for count in rows:
                if count * cols * element.itemsize <= _MAX_BYTES:
                    yield Shape(element.name, count, cols)


def measure(
    device: TimedDevice, shapes: Iterable[Shape], report: Callable[[Measurement], None] = lambda _: None
) -> list[Measurement]:
    """Time every variant that may be chosen on every matrix; what does not fit on the device is left out.

    Args:
        device: Where.
        shapes: The matrices.
        report: Told of each of them, at once.
    """
    measured = []
    for shape in shapes:
        microseconds = {}
        for variant in device.candidates(shape.cols):
            try:
                seconds = device.time_variant(variant, shape.rows, shape.cols, shape.dtype)
            except MemoryError:
                break
            microseconds[variant] = round(seconds * 1e6, 3)
        else:
            measured.append(Measurement(**shape._asdict(), microseconds=microseconds))
            report(measured[-1])
    return measured


def fastest(microseconds: Mapping[str, float]) -> str:
    """Return the fastest variant; the simplest of those that are as fast within 2 %."""
    bound = min(microseconds.values()) * _AS_FAST
    return min((name for name, taken in microseconds.items() if taken <= bound), key=_complexity)


def choices_from(measured: Iterable[Measurement]) -> tuple[Choice, ...]:
    """Return rules that choose the fastest variant, ordered by columns, then by rows.

    Each holds from the size that was measured before up to its own; the last ones hold for all that is larger. Types
    with the same rules share them.
    """
    winners: dict[str, dict[int, dict[int, str]]] = {}
    for each in measured:
        winners.setdefault(each.dtype, {}).setdefault(each.cols, {})[each.rows] = fastest(each.microseconds)
    rules = {dtype: _rules(by_cols) for dtype, by_cols in winners.items()}
    distinct = list(dict.fromkeys(map(tuple, rules.values())))
    if len(distinct) == 1:
        return tuple(_choice(None, rule) for rule in distinct[0])
    return tuple(_choice(dtype, rule) for dtype, own in rules.items() for rule in own)


class _Rule(NamedTuple):
    max_cols: int | None
    max_rows: int | None
    variant: str


def _rules(by_cols: Mapping[int, Mapping[int, str]]) -> list[_Rule]:
    """Merge neighbours: numbers of rows with the same winner, then numbers of columns with the same rules."""
    bands = [(cols, _merged(by_rows)) for cols, by_rows in sorted(by_cols.items())]
    merged = [(list(group)[-1][0], segments) for segments, group in groupby(bands, key=lambda band: band[1])]
    last_cols = merged[-1][0]
    return [
        _Rule(None if cols == last_cols else cols, max_rows, variant)
        for cols, segments in merged
        for max_rows, variant in segments
    ]


def _merged(by_rows: Mapping[int, str]) -> tuple[tuple[int | None, str], ...]:
    groups = [(variant, [rows for rows, _ in group]) for variant, group in groupby(sorted(by_rows.items()), _winner)]
    return tuple(
        (None if index == len(groups) - 1 else rows[-1], variant) for index, (variant, rows) in enumerate(groups)
    )


def _winner(cell: tuple[int, str]) -> str:
    return cell[1]


def _choice(dtype: str | None, rule: _Rule) -> Choice:
    return Choice.model_validate({"dtype": dtype, **rule._asdict()})


def _complexity(variant: str) -> int:
    return _SIMPLEST_FIRST.index(variant) if variant in _SIMPLEST_FIRST else len(_SIMPLEST_FIRST)
