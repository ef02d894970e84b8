"""softmaxctl tune."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import click

# Run, and not imported: the device is opened by the server's package, of which the client knows nothing else.
_MODULE = "softmaxd_server.tune"


@click.command()
@click.option("--backend", type=click.Choice(["hip", "cuda"]), required=True, help="The device's runtime.")
@click.option("--device", type=click.IntRange(min=0), default=0, show_default=True, help="The device's index.")
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    required=True,
    help="The file of the table, for softmaxd --tuning; written when all is measured.",
)
def tune(backend: str, device: int, output: Path) -> None:
    """Measure a device of this machine, and write a table of which variant computes what the fastest.

    It takes minutes, asks no server, and is right only while nothing else uses the device. It needs the server's
    packages and softmaxd-native on this machine.
    """
    if importlib.util.find_spec(_MODULE.partition(".")[0]) is None:
        raise click.ClickException("tuning needs the server here: pip install 'softmaxd[server]' and softmaxd-native")
    options = {"--backend": backend, "--device": str(device), "--output": str(output)}
    flags = [word for option in options.items() for word in option]
    sys.exit(subprocess.run([sys.executable, "-m", _MODULE, *flags], check=False).returncode)
