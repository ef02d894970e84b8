"""What a run of kernels.py measured, as values that a file keeps: report, case (a shape and dtype), figure."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from timing import Timing

Kind = Literal["copy", "softmaxd", "peer"]
COPY = "copy"
DTYPES = ("float32", "float16", "bfloat16")  # in the order of softmaxd::DType


@dataclass(frozen=True)
class Figure:
    """One contestant in one case.

    Attributes:
        who: Its name.
        kind: Whether it is the copy of the same bytes, softmaxd (one of its variants), or a peer.
        microseconds: Of one call, the median over the rounds; None where it was not timed.
        of_copy: Lower quartile, median and upper quartile of copy's time / own time, each round's own.
        error: The largest relative error against float64; None where there is none.
        fault: Why it was not timed: one word, then details; empty where it was.
    """

    who: str
    kind: Kind
    microseconds: float | None = None
    of_copy: tuple[float, float, float] | None = None
    error: float | None = None
    fault: str = ""

    def timed(self, timing: Timing, copy: Timing) -> Figure:
        """Return this figure with its times."""
        return dataclasses.replace(self, microseconds=timing.median * 1e6, of_copy=timing.ratio_to(copy))


@dataclass(frozen=True)
class Case:
    """All contestants at one shape and dtype.

    Attributes:
        rows: Of the matrix.
        cols: Of the matrix.
        dtype: One of DTYPES.
        figures: The copy first.
        chosen: The variant that the server would choose, by its name in `figures`; None where nothing says so.
    """

    rows: int
    cols: int
    dtype: str
    figures: tuple[Figure, ...]
    chosen: str | None = None

    @property
    def moved_bytes(self) -> int:
        """Bytes of one read and one write."""
        return 2 * self.rows * self.cols * (4 if self.dtype == "float32" else 2)

    @property
    def best(self) -> Figure | None:
        """The fastest of softmaxd's own; None where none was timed."""
        own = [figure for figure in self.figures if figure.kind == "softmaxd" and figure.microseconds is not None]
        return min(own, key=lambda figure: figure.microseconds or 0.0, default=None)

    @property
    def softmaxd(self) -> Figure | None:
        """What the server would run, or the fastest where nothing says what that is."""
        return self.best if self.chosen is None else self.by_name(self.chosen)

    def by_name(self, who: str) -> Figure | None:
        """Return the contestant's figure, None where it did not take part."""
        return next((figure for figure in self.figures if figure.who == who), None)


@dataclass(frozen=True)
class Report:
    """One run.

    Attributes:
        backend: Its name.
        device: Its device's name.
        setup: What else a reader has to know: threads, versions.
        date: Of the run, ISO 8601.
        cases: In the order of the run.
    """

    backend: str
    device: str
    setup: str
    date: str
    cases: tuple[Case, ...] = ()

    def of_dtype(self, dtype: str) -> tuple[Case, ...]:
        """Return the cases of a dtype."""
        return tuple(case for case in self.cases if case.dtype == dtype)

    @property
    def dtypes(self) -> tuple[str, ...]:
        """The dtypes that were measured, in the order of DTYPES."""
        return tuple(dtype for dtype in DTYPES if self.of_dtype(dtype))

    @property
    def faults(self) -> tuple[tuple[Case, Figure], ...]:
        """What of softmaxd's own refused or was wrong."""
        return tuple(
            (case, figure)
            for case in self.cases
            for figure in case.figures
            if figure.kind == "softmaxd" and figure.fault
        )

    def save(self, path: Path) -> None:
        """Write the report as JSON."""
        path.write_text(json.dumps(dataclasses.asdict(self), indent=1) + "\n")


def load(path: Path) -> Report:
    """Read what `Report.save` wrote."""
    fields: dict[str, Any] = json.loads(path.read_text())
    cases = tuple(
        Case(**{**case, "figures": tuple(_figure(figure) for figure in case["figures"])}) for case in fields["cases"]
    )
    return Report(**{**fields, "cases": cases})


def _figure(fields: dict[str, Any]) -> Figure:
    of_copy = fields["of_copy"]
    return Figure(**{**fields, "of_copy": None if of_copy is None else tuple(of_copy)})
