"""Measure the real server beside raw echoes, in the same minutes: a table of transports, and 4 KB requests under load.

    python bench/serving.py [--only transports|load] [--peer]

transports: all ways to the server, by tensors of 4 KB to 64 MB, one at a time, as one call and as a stream of messages
of the client's size, from this process and from a C++ client. Every contestant is checked, then they take turns, round
by round, in a random order. --peer adds NVIDIA Triton Inference Server: triton_peer.py says how to install it.

load: how much more than an echo a 4 KB request costs under h2load (Debian: nghttp2-client), and whether 200 idle
streams slow it down.
"""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path

import click
import contest
import cpp_contestants
import echo_contestants
import load
import transport_table
import transports
import triton_contestants
from rich.console import Console
from rich.progress import track

TRITON_PYTHON = Path(__file__).parents[1] / "build" / "triton" / "bin" / "python"


def parse_sizes(context: click.Context, option: click.Parameter, text: str) -> list[str]:
    """Read a list of sizes, in the order of the table."""
    asked = text.split(",")
    if unknown := set(asked) - set(contest.ROWS):
        raise click.BadParameter(f"got {', '.join(sorted(unknown))}; allowed: {', '.join(contest.ROWS)}")
    return [size for size in contest.ROWS if size in asked]


def measure_transports(
    backend: str, rounds: int, sizes: list[str], triton_python: Path | None, console: Console
) -> None:
    """Print the table, and why something is not in it.

    Two processes of one program differ by up to 20 % for as long as they live, so each round has new servers.

    Args:
        backend: The server's.
        rounds: How many.
        sizes: Names in contest.ROWS.
        triton_python: The interpreter that has Triton; None for no peer.
        console: Where the table goes.
    """
    reasons = {transport.who: transports.missing(transport, backend) for transport in transports.TRANSPORTS}
    reasons |= {cpp_contestants.WHO: cpp_contestants.missing()}
    if triton_python is not None:
        reasons |= {"Triton": triton_contestants.missing(triton_python)}
    there = [transport for transport in transports.TRANSPORTS if not reasons[transport.who]]
    if not reasons[cpp_contestants.WHO]:
        cpp_contestants.build()
    jobs = contest.make_jobs(backend, sizes)
    outcomes: contest.Outcomes = {}
    for _ in track(range(rounds), console=Console(stderr=True), transient=True, description="transports"):
        with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
            contestants = list(echo_contestants.enter(stack, jobs, Path(folder)))
            target, ours = transports.enter(stack, backend, jobs, Path(folder), there)
            contestants += ours
            if not reasons[cpp_contestants.WHO]:
                contestants += cpp_contestants.enter(target, jobs)
            if triton_python is not None and not reasons["Triton"]:
                contestants += triton_contestants.enter(stack, triton_python, jobs)
            contest.play_round(contestants, outcomes)
    transport_table.print_outcomes(console, outcomes, backend, rounds)
    transport_table.print_key_figures(console, outcomes, sizes)
    for who, reason in reasons.items():
        if reason:
            console.print(f"not available: {who}: {reason}")


@click.command(help=__doc__)
@click.option("--only", type=click.Choice(["transports", "load"]), help="One of the two; both by default.")
@click.option("--backend", default="cpu", show_default=True)
@click.option("--rounds", default=9, show_default=True, type=click.IntRange(min=2))
@click.option("--sizes", default=",".join(contest.ROWS), show_default=True, callback=parse_sizes)
@click.option("--requests", default=4000, show_default=True, help="Requests of each load.")
@click.option(
    "--peer",
    is_flag=False,
    flag_value=str(TRITON_PYTHON),
    type=click.Path(path_type=Path),
    metavar="[PYTHON]",
    help="Add Triton, from this interpreter.  [default: build/triton/bin/python]",
)
def main(only: str | None, backend: str, rounds: int, sizes: list[str], requests: int, peer: Path | None) -> None:
    """Print the tables."""
    console = Console(width=max(130, Console().width))
    if only != "load":
        measure_transports(backend, rounds, sizes, peer, console)
    if only != "transports":
        load.measure(backend, rounds, requests, console)


if __name__ == "__main__":
    main()
