"""`python -m softmaxd_server.tune`, which `softmaxctl tune` runs: measures a device and writes a tuning table."""

from __future__ import annotations

import argparse
import datetime
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

try:
    from rich.console import Console
    from rich.text import Text

    from softmaxd_server import measuring, tuning
    from softmaxd_server.backends.native import GpuBackend
    from softmaxd_server.config import Config
    from softmaxd_server.errors import StartError, TuningError
except ModuleNotFoundError as error:  # the client alone was installed
    sys.exit(f"softmaxctl tune: {error.name} is not installed; tuning needs: pip install 'softmaxd[server]'")

_WIDTH = 14


def main(arguments: Sequence[str] | None = None) -> None:
    """Tune as the command line says. Exits with 0, with 1 if it cannot, with 2 for a wrong flag."""
    asked = _parser().parse_args(arguments)
    try:
        _check_place(asked.output)
        backend = GpuBackend(asked.backend, Config.model_construct(device=str(asked.device)))
        try:
            tune(backend, asked.output, measuring.grid())
        finally:
            backend.close()
    except StartError as error:
        sys.exit(f"softmaxctl tune: {error}")
    except KeyboardInterrupt:
        sys.exit(130)  # 128 + SIGINT, as a shell says it


def tune(backend: GpuBackend, output: Path, shapes: Iterable[measuring.Shape]) -> None:
    """Measure the backend's device, print the times as they come, and write the table.

    Raises:
        TuningError: Nothing could be measured, or the file cannot be written.
    """
    console = Console(highlight=False, soft_wrap=True)
    device = backend.devices[0].name
    variants = [variant.name for variant in backend.variants]
    shown = [name for name in variants if name in backend.candidates(1)]
    console.print(Text(f"{device}, {backend.name}, driver {backend.driver}; microseconds of a launch"))
    console.print(Text("".join(f"{name:>{_WIDTH}}" for name in ("dtype", "rows", "cols", *shown)), "bold"))
    measured = measuring.measure(backend, shapes, lambda each: console.print(_line(each, shown)))
    if not measured:
        raise TuningError(f"nothing fits on {device}: free some of its memory")
    table = tuning.TuningTable(
        runtime=backend.name,
        device=device,
        driver=backend.driver,
        date=datetime.date.today().isoformat(),
        choices=measuring.choices_from(measured),
        measured=tuple(measured),
    )
    tuning.save(table, output)
    console.print(Text(f"{len(table.choices)} rules in {output}: softmaxd --tuning {output}"))


def _line(measurement: tuning.Measurement, shown: Sequence[str]) -> Text:
    text = Text("".join(f"{value:>{_WIDTH}}" for value in (measurement.dtype, measurement.rows, measurement.cols)))
    fastest = measuring.fastest(measurement.microseconds)
    for name in shown:
        taken = measurement.microseconds.get(name)
        text.append(f"{'' if taken is None else f'{taken:.2f}':>{_WIDTH}}", "bold green" if name == fastest else "")
    return text


def _check_place(output: Path) -> None:
    """Measuring takes minutes: a place that is wrong is better known before."""
    if output.is_dir() or not output.absolute().parent.is_dir():
        raise TuningError(f"cannot write the tuning table {output}: it must be a file in a folder that is there")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="softmaxctl tune", allow_abbrev=False)
    parser.add_argument("--backend", choices=("hip", "cuda"), required=True)
    parser.add_argument("--device", type=int, default=0)
    parser.add_argument("--output", type=Path, required=True)
    return parser


if __name__ == "__main__":
    main()
