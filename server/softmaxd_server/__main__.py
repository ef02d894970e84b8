"""The `softmaxd` command."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import Coroutine

try:
    from softmaxd_server import config as configuration
    from softmaxd_server.app import Server
    from softmaxd_server.errors import ConfigError, StartError
    from softmaxd_server.malloc import keep_memory
except ModuleNotFoundError as error:  # the client alone was installed
    sys.exit(f"softmaxd: {error.name} is not installed; the server needs: pip install 'softmaxd[server]'")

_log = logging.getLogger("softmaxd_server")


def main() -> None:
    """Serve until SIGTERM or SIGINT. Exits with 0, with 1 if it cannot start, with 2 for a wrong flag."""
    try:
        config, print_config = configuration.parse(sys.argv[1:])
    except ConfigError as error:
        _fail(error, 2)
        return
    if print_config:
        sys.stdout.write(configuration.render(config))
        return
    logging.basicConfig(
        level=config.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr
    )
    try:
        _run(_serve(config))
    except StartError as error:
        _fail(error, 1)


async def _serve(config: configuration.Config) -> None:
    server = Server(config)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, server.request_stop)
    await server.start()
    sys.stderr.write(server.describe() + "\n")
    sys.stderr.flush()
    if config.keep_memory_bytes and keep_memory(config.keep_memory_bytes):
        _log.info("the C library keeps up to %d bytes that are free (--keep-memory-bytes)", config.keep_memory_bytes)
    await server.serve()


def _run(serving: Coroutine[None, None, None]) -> None:
    try:
        import uvloop
    except ImportError:
        _log.info("uvloop is not installed: using asyncio, which serves small tensors at about 0.8 times the rate")
        asyncio.run(serving)
    else:
        uvloop.run(serving)


def _fail(error: StartError, status: int) -> None:
    sys.stderr.write(f"softmaxd: {error}\n")
    sys.exit(status)


if __name__ == "__main__":
    main()
