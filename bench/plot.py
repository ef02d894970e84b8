"""Draw a report: share of a copy's speed over columns, and microseconds of few long rows. Needs matplotlib alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from figures import COPY, Case, Figure, Report
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Picture
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, NullLocator

SOFTMAXD = "softmaxd"
# At most so many rows: bars. There the question is how a row is shared, not how near the memory's speed is.
FEW_ROWS = 32
# Okabe and Ito's palette, which the colour-blind can tell apart, and marks that differ without any colour.
STYLES = {
    SOFTMAXD: ("#0072B2", "o"),
    "torch": ("#D55E00", "s"),
    "Triton": ("#009E73", "^"),
    "onnxruntime": ("#E69F00", "D"),
    "oneDNN": ("#CC79A7", "v"),
    "numpy": ("#7F7F7F", "P"),
}
INK, FAINT, GRID = "#222222", "#666666", "#E3E3E3"
RC_PARAMS: dict[Any, Any] = {
    "svg.hashsalt": "softmaxd",  # the same file from the same figures
    "font.size": 9.0,
    "text.color": INK,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.titlelocation": "left",
    "axes.titlesize": 10.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "xtick.color": INK,
    "ytick.color": INK,
    "grid.color": GRID,
}
BAR_HEIGHT_INCHES = 0.11
# What lies between the hollow marks of two names, which would hide each other.
DODGE_OCTAVES = 0.2


def draw(report: Report, dtype: str, path: Path) -> None:
    """Write the picture of one dtype's figures; the format is the file name's."""
    cases = report.of_dtype(dtype)
    many = sorted((case for case in cases if case.rows > FEW_ROWS), key=lambda case: case.cols)
    few = sorted((case for case in cases if case.rows <= FEW_ROWS), key=lambda case: (case.rows * case.cols, case.cols))
    peers = dict.fromkeys(figure.who for case in cases for figure in case.figures if figure.kind == "peer")
    names = [SOFTMAXD, *(name for name in peers if any(_timed(case, name) for case in cases))]
    with mpl.rc_context(RC_PARAMS):
        bars = sum(_timed(case, name) is not None for case in few for name in names) + len(few)
        picture = Picture(
            figsize=(5.6 * (bool(many) + bool(few)), max(4.4, BAR_HEIGHT_INCHES * bars + 1.6)),
            facecolor="white",
            layout="constrained",
        )
        axes = iter(picture.subplots(1, bool(many) + bool(few), squeeze=False)[0])
        if many:
            _draw_shares(next(axes), many, names)
        if few:
            _draw_microseconds(next(axes), few, names)
        is_chosen = any(case.chosen for case in cases) or not any(_has_variants(case) for case in cases)
        _draw_frame(picture, report, dtype, names, SOFTMAXD if is_chosen else "softmaxd, its fastest variant")
        picture.savefig(path, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else None)


def _has_variants(case: Case) -> bool:
    return sum(figure.kind == "softmaxd" for figure in case.figures) > 1


def _timed(case: Case, name: str) -> Figure | None:
    figure = case.softmaxd if name == SOFTMAXD else case.by_name(name)
    return figure if figure is not None and figure.microseconds is not None else None


def _draw_shares(axes: Axes, cases: Sequence[Case], names: Sequence[str]) -> None:
    """Draw a line for each name over the powers of two, and hollow marks beside it for other numbers of columns."""
    for place, name in reversed(list(enumerate(names))):  # softmaxd on top
        colour, mark = STYLES[name]
        found = [(case.cols, figure.of_copy) for case in cases if (figure := _timed(case, name)) and figure.of_copy]
        even = [(cols, shares) for cols, shares in found if _is_power_of_two(cols)]
        odd = [(cols, shares) for cols, shares in found if not _is_power_of_two(cols)]
        columns = [cols for cols, _ in even]
        axes.fill_between(
            columns,
            [low for _, (low, _, _) in even],
            [high for _, (_, _, high) in even],
            color=colour,
            alpha=0.15,
            linewidth=0,
        )
        width = 2.2 if name == SOFTMAXD else 1.4
        axes.plot(columns, [middle for _, (_, middle, _) in even], color=colour, marker=mark, ms=5, linewidth=width)
        axes.plot(
            [cols * 2 ** (DODGE_OCTAVES * (place - (len(names) - 1) / 2)) for cols, _ in odd],
            [middle for _, (_, middle, _) in odd],
            color=colour,
            marker=mark,
            ms=6.5,
            linestyle="none",
            markerfacecolor="white",
        )
    axes.axhline(1, color=INK, linewidth=1, linestyle=(0, (4, 3)))
    axes.set_xscale("log", base=2)
    axes.set_xticks([case.cols for case in cases if _is_power_of_two(case.cols)])
    axes.tick_params(axis="x", labelsize=8)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda cols, _: _short(int(cols))))
    axes.set_ylim(0, max(1.12, 1.05 * axes.get_ylim()[1]))
    axes.grid(True)
    axes.set_xlabel("columns (bands: quartiles of the rounds)")
    sizes = [case.moved_bytes / 1e6 for case in cases]
    span = f"{max(sizes):.0f} MB" if min(sizes) > 0.9 * max(sizes) else f"{min(sizes):.0f} to {max(sizes):.0f} MB"
    hollow = "; hollow: no power of two" if not all(_is_power_of_two(case.cols) for case in cases) else ""
    axes.set_title(f"Share of a copy's speed, {span} in and out{hollow}")


def _draw_microseconds(axes: Axes, cases: Sequence[Case], names: Sequence[str]) -> None:
    """Draw a group of bars for each case, and across it the copy."""
    ticks: list[float] = []
    smallest, largest = math.inf, 0.0
    top = 0.0
    for case in cases:
        first = top
        for name in names:
            if (figure := _timed(case, name)) is None or figure.microseconds is None:
                continue
            axes.barh(top, figure.microseconds, height=0.86, color=STYLES[name][0])
            weight = "bold" if name == SOFTMAXD else "normal"
            label = f"{figure.microseconds:.{1 if figure.microseconds < 100 else 0}f}"
            axes.annotate(
                label,
                (figure.microseconds, top),
                (3, 0),
                textcoords="offset points",
                va="center",
                size=7.5,
                weight=weight,
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.4},  # over the copy's line
            )
            smallest, largest = min(smallest, figure.microseconds), max(largest, figure.microseconds)
            top += 1
        copy = case.by_name(COPY)
        if copy is not None and copy.microseconds is not None:
            smallest = min(smallest, copy.microseconds)
            axes.plot(
                [copy.microseconds] * 2, [first - 0.6, top - 0.4], color=INK, linewidth=1.6, solid_capstyle="butt"
            )
        ticks.append((first + top - 1) / 2)
        top += 1
    axes.set_xscale("log")
    axes.set_xlim(smallest / 1.6, largest * 2)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_ylim(top - 0.9, -0.9)  # the first on top
    axes.set_yticks(ticks, [f"{case.rows} x {case.cols}" for case in cases])
    axes.tick_params(axis="y", length=0)
    axes.grid(True, axis="x")
    axes.set_xlabel("microseconds, logarithmic: shorter is faster")
    axes.set_title("Few long rows, microseconds")


def _draw_frame(picture: Picture, report: Report, dtype: str, names: Sequence[str], own_label: str) -> None:
    handles: list[Line2D | Patch] = []
    for name in names:
        colour, mark = STYLES[name]
        label = own_label if name == SOFTMAXD else name
        handles.append(Line2D([], [], color=colour, marker=mark, ms=6, linewidth=2, label=label))
    handles.append(Line2D([], [], color=INK, linewidth=1.2, linestyle=(0, (3, 2)), label="copy of the same bytes"))
    picture.suptitle(f"softmax, {dtype}, {report.backend} ({report.device})", x=0.01, ha="left", size=12, weight="bold")
    picture.legend(handles=handles, loc="outside lower left", ncols=len(handles), frameon=False)
    picture.supxlabel(f"{report.setup}, {report.date}", x=0.99, ha="right", size=7.5, color=FAINT)


def _is_power_of_two(number: int) -> bool:
    return number & (number - 1) == 0


def _short(columns: int) -> str:
    return f"{columns // 1024}K" if columns >= 1024 and columns % 1024 == 0 else str(columns)
