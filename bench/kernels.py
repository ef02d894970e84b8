"""Time a backend's kernels beside a copy of the same bytes and beside the libraries that everyone uses.

    python bench/kernels.py --backend cpu
    python bench/kernels.py --backend cuda

Each contestant's result is checked against float64 before it is timed. The ratios are to the copy, in the same rounds:
1.00 is a softmax at the speed of a copy. cuda times each variant on the device, in its own memory; every other backend
is timed as it is called, on arrays in the host's.
"""

from __future__ import annotations

import datetime
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import click
import figures
from figures import COPY, DTYPES, Case, Figure, Report
from rich import box
from rich.console import Console
from rich.progress import track
from rich.table import Table


class Race(Protocol):
    """What cpu_kernels.py and gpu_kernels.py offer."""

    backend: str
    device: str
    setup: str

    def shapes(self, dtype: str) -> tuple[tuple[int, int], ...]:
        """Return the shapes that are timed where none are asked for."""

    def measure(self, rows: int, cols: int, dtype: str) -> Case:
        """Check and time all contestants at one shape."""


def open_race(backend: str, threads: int, library: Path | None) -> Race:
    """Return the race for a backend; a GPU's needs nothing of the server, and a CPU's no PyTorch."""
    if backend == "cuda":
        import gpu_kernels

        return gpu_kernels.GpuRace(library or gpu_kernels.LIBRARY)
    import cpu_kernels

    return cpu_kernels.CpuRace(backend, threads)


def parse_shape(text: str) -> tuple[int, int]:
    """Read ROWSxCOLS."""
    rows, _, cols = text.partition("x")
    if not (rows.isdigit() and cols.isdigit()):
        raise click.BadParameter(f"{text!r} is not ROWSxCOLS, such as 4096x4096")
    return int(rows), int(cols)


def print_details(report: Report, dtype: str, console: Console) -> None:
    """Print a line for each contestant at each shape."""
    table = Table(title=f"softmax, {dtype}, backend {report.backend} ({report.device}), {report.setup}")
    table.add_column("rows x cols")
    table.add_column("who")
    for heading in ("us", "GB/s", "of the copy", "quartiles", "relative error"):
        table.add_column(heading, justify="right")
    for case in report.of_dtype(dtype):
        for figure in case.figures:
            if not (figure.kind == "peer" and figure.fault):
                table.add_row(f"{case.rows} x {case.cols}", figure.who, *_details(figure, case))
        if (choice := _choice(case)) is not None:
            table.add_row(f"{case.rows} x {case.cols}", choice[0], *_details(choice[1], case), style="bold")
        table.add_section()
    console.print(table)


def _details(figure: Figure, case: Case) -> tuple[str, ...]:
    error = f"{figure.error:.1e}" if figure.error is not None else ""
    if figure.microseconds is None or figure.of_copy is None:
        return figure.fault.partition(":")[0], "", "", "", error
    low, middle, high = figure.of_copy
    rate = case.moved_bytes / figure.microseconds / 1e3
    return f"{figure.microseconds:.1f}", f"{rate:.1f}", f"{middle:.2f}", f"{low:.2f}-{high:.2f}", error


def _choice(case: Case) -> tuple[str, Figure] | None:
    """Return a line of its own for what the server would run, where softmaxd has variants to choose from."""
    if case.softmaxd is None or sum(figure.kind == "softmaxd" for figure in case.figures) < 2:
        return None
    return f"{'best' if case.chosen is None else 'softmaxd'}: {case.softmaxd.who}", case.softmaxd


def print_summary(report: Report) -> None:
    """Print a line for each shape in Markdown: microseconds of a call, and in brackets the ratio to the copy."""
    console = Console(width=400, highlight=False)  # no line is cut
    for dtype in report.dtypes:
        cases = report.of_dtype(dtype)
        timed_or_ours = (
            figure.who
            for case in cases
            for figure in case.figures
            if figure.microseconds is not None or figure.kind == "softmaxd"
        )
        names = list(dict.fromkeys(timed_or_ours))
        table = Table(box=box.MARKDOWN)
        table.add_column("rows x cols" if len(report.dtypes) == 1 else f"{dtype}: rows x cols", no_wrap=True)
        for name in names:
            table.add_column(name, justify="right", no_wrap=True)
        has_choice = any(_choice(case) for case in cases)
        if has_choice:
            table.add_column("best or chosen", no_wrap=True)
        for case in cases:
            cells = [_cell(case.by_name(name)) for name in names]
            if has_choice:
                choice = _choice(case)
                cells.append("-" if choice is None else choice[0])
            table.add_row(f"{case.rows} x {case.cols}", *cells)
        console.print(table)


def _cell(figure: Figure | None) -> str:
    if figure is None:
        return "-"
    if figure.microseconds is None or figure.of_copy is None:
        return figure.fault.partition(":")[0] if figure.kind == "softmaxd" else "-"
    digits = 1 if figure.microseconds < 1000 else 0
    ratio = "" if figure.who == COPY else f" ({figure.of_copy[1]:.2f})"
    return f"{figure.microseconds:.{digits}f}{ratio}"


def print_absences(report: Report, console: Console) -> None:
    """Print why a peer is missing, once a reason, and what of softmaxd's own failed, once a case."""
    peers = ((figure.who, figure.fault) for case in report.cases for figure in case.figures if figure.kind == "peer")
    for who, fault in dict.fromkeys((who, fault) for who, fault in peers if fault):
        console.print(f"{who}: {fault}", soft_wrap=True)
    for case, figure in report.faults:
        console.print(f"{figure.who} at {case.rows} x {case.cols}, {case.dtype}: {figure.fault}", soft_wrap=True)


def run(race: Race, dtypes: tuple[str, ...], shapes: list[tuple[int, int]], saved: Path | None) -> Report:
    """Measure all cases; what is done so far is saved after each, since a machine may be taken away."""
    report = Report(race.backend, race.device, race.setup, datetime.date.today().isoformat())
    cases = [(rows, cols, dtype) for dtype in dtypes for rows, cols in shapes or race.shapes(dtype)]
    for case in track(cases, console=Console(stderr=True), transient=True, description="timing"):
        report = replace(report, cases=(*report.cases, race.measure(*case)))
        if saved is not None:
            report.save(saved)
    return report


FILE = click.Path(dir_okay=False, path_type=Path)


@click.command(help=__doc__)
@click.option("--backend", default="auto", show_default=True)
@click.option(
    "--dtype",
    "dtypes",
    multiple=True,
    type=click.Choice(DTYPES),
    help="May be given again.  [default: float32; cuda: all]",
)
@click.option("--threads", type=int, default=len(os.sched_getaffinity(0)), help="Threads of every contestant on a CPU.")
@click.option("--shape", "shapes", multiple=True, help="ROWSxCOLS; may be given again.  [default: the table's]")
@click.option("--library", type=FILE, help="The GPU variants.  [default: what make bench-gpu builds]")
@click.option("--save", "saved", type=FILE, help="Write the figures to this file, JSON.")
@click.option("--from", "source", type=FILE, help="Measure nothing: take the figures from such a file.")
@click.option("--plot", type=FILE, help="Draw the first dtype's figures into this file, such as an SVG.")
def main(
    backend: str,
    dtypes: tuple[str, ...],
    threads: int,
    shapes: tuple[str, ...],
    library: Path | None,
    saved: Path | None,
    source: Path | None,
    plot: Path | None,
) -> None:
    """Print the tables; exit with 1 if a variant refused or was wrong."""
    if source is not None:
        report = figures.load(source)
        wanted = {parse_shape(shape) for shape in shapes}
        cases = (case for case in report.cases if not dtypes or case.dtype in dtypes)
        report = replace(report, cases=tuple(case for case in cases if not wanted or (case.rows, case.cols) in wanted))
    else:
        race = open_race(backend, threads, library)
        every = DTYPES if backend == "cuda" else ("float32",)
        report = run(race, dtypes or every, [parse_shape(shape) for shape in shapes], saved)
    console = Console(width=max(160, Console().width), highlight=False)
    for dtype in report.dtypes:
        print_details(report, dtype, console)
    print_summary(report)
    print_absences(report, console)
    if plot is not None:
        import plot as picture

        picture.draw(report, dtypes[0] if dtypes else report.dtypes[0], plot)
    if report.faults:
        sys.exit(1)


if __name__ == "__main__":
    main()
