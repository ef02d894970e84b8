"""softmaxctl ping."""

from __future__ import annotations

import json

import click

from softmaxd_client.commands import connection


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@connection.options
def ping(target: str | None, timeout: float | None, as_json: bool) -> None:
    """Print the time that a round trip to the server takes."""
    with connection.connect(target) as client:
        client.ping(timeout=timeout)  # connects
        seconds = client.ping(timeout=timeout)
    click.echo(json.dumps({"seconds": seconds}) if as_json else f"{seconds * 1e3:.3f} ms")
