"""softmaxctl info."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from softmaxd_client.commands import connection
from softmaxd_client.info import ServerInfo


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@connection.options
def info(target: str | None, timeout: float | None, as_json: bool) -> None:
    """Print what the server says of itself."""
    with connection.connect(target) as client:
        server = client.info(timeout=timeout)
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(server)))
    else:
        Console(highlight=False).print(_table(server))


def _table(server: ServerInfo) -> Table:
    table = Table.grid(padding=(0, 2))
    for label, text in _lines(server):
        table.add_row(Text(label), Text(text))  # not str, in which rich reads square brackets as markup
    return table


def _lines(server: ServerInfo) -> Iterator[tuple[str, str]]:
    yield "version", server.version
    yield "backend", server.backend
    for device in server.devices:
        yield "device", f"{device.name} x {device.parallelism}"
    yield "data types", ", ".join(server.data_types)
    yield "largest message", f"{server.max_message_bytes} bytes"
    for variant in server.variants:
        yield "variant", f"{variant.name}: {variant.note}"
    if server.tuning:
        yield "tuning", server.tuning
    for pool in server.pools:
        yield (
            "pool",
            f"{pool.name}: {pool.used_bytes} of {pool.reserved_bytes} bytes in use, {pool.allocations} allocations",
        )
