"""The options that say which server a subcommand talks to, and how long it waits."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import click

from softmaxd_client.client import SoftmaxClient
from softmaxd_client.config import DEFAULT_TARGET, DEFAULT_TIMEOUT_SECONDS

Command = TypeVar("Command", bound=Callable[..., object])

_TARGET_HELP = "The server."


def target_of_all(command: Command) -> Command:
    """Give the group the option `--target`."""
    return click.option(
        "--target",
        metavar="HOST:PORT",
        envvar="SOFTMAXD_TARGET",
        default=DEFAULT_TARGET,
        show_default=True,
        show_envvar=True,
        help=_TARGET_HELP,
    )(command)


def options(command: Command) -> Command:
    """Give a subcommand the options `--target`, which outdoes the group's, and `--timeout`."""
    command = click.option(
        "--timeout",
        type=click.FloatRange(min=0, min_open=True),
        metavar="SECONDS",
        help=f"Give up after this time.  [default: {DEFAULT_TIMEOUT_SECONDS:g}; none for run]",
    )(command)
    return click.option("--target", metavar="HOST:PORT", help=f"{_TARGET_HELP}  [default: see softmaxctl --help]")(
        command
    )


def connect(target: str | None) -> SoftmaxClient:
    """Return a client for the server that the current command line names.

    Args:
        target: The subcommand's own `--target`, if it was given.
    """
    return SoftmaxClient(target or click.get_current_context().find_root().params["target"])
