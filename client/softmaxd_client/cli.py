"""softmaxctl, the command line of the client."""

from __future__ import annotations

import sys
from typing import Any

import click
from softmaxd_proto import __version__

from softmaxd_client.commands import connection
from softmaxd_client.commands.info import info
from softmaxd_client.commands.ping import ping
from softmaxd_client.commands.run import run
from softmaxd_client.commands.selftest import selftest
from softmaxd_client.commands.tune import tune
from softmaxd_client.errors import SoftmaxdError

_EXIT_FAILURE = 1
_EXIT_INTERRUPTED = 130  # 128 + SIGINT, as a shell says it


class OneLineErrors(click.Group):
    """A group whose expected failures are one line on stderr each, never a traceback."""

    def main(self, *args: Any, **options: Any) -> Any:
        """Run the command line, then exit: 0 done, 1 failed, 2 wrong usage."""
        try:
            status = super().main(*args, **{**options, "standalone_mode": False})
        except click.Abort:
            _fail("interrupted", _EXIT_INTERRUPTED)
        except click.UsageError as error:
            hint = f" Try {error.ctx.command_path} --help" if error.ctx else ""
            _fail(error.format_message() + hint, error.exit_code)
        except click.ClickException as error:
            _fail(error.format_message(), error.exit_code)
        except (SoftmaxdError, OSError) as error:
            _fail(str(error), _EXIT_FAILURE)
        sys.exit(status if isinstance(status, int) else 0)


def _fail(message: str, status: int) -> None:
    click.echo(f"softmaxctl: {' '.join(message.split())}", err=True)
    sys.exit(status)


@click.group(
    name="softmaxctl",
    cls=OneLineErrors,
    no_args_is_help=False,  # an error of many lines, in newer versions of click
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, prog_name="softmaxctl")
@connection.target_of_all
def main(target: str) -> None:
    """Ask a softmaxd server."""


for _command in (run, info, ping, selftest, tune):
    main.add_command(_command)
