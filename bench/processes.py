"""Processes that run beside a benchmark."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FOLDER = Path(__file__).parent


@contextmanager
def script_process(name: str, *arguments: str, python: str = sys.executable) -> Iterator[subprocess.Popen[str]]:
    """Run a script of this folder until the block ends, with pipes to and from it.

    Args:
        name: The script's file name.
        arguments: Its arguments.
        python: The interpreter.
    """
    command = [python, str(FOLDER / name), *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.terminate()


@contextmanager
def script(name: str, *arguments: str, python: str = sys.executable) -> Iterator[str]:
    """Run a script of this folder until the block ends; give the first line that it prints.

    Takes the same as `script_process`.

    Raises:
        RuntimeError: It ended without a line.
    """
    with script_process(name, *arguments, python=python) as process:
        yield next_line(process)


def next_line(process: subprocess.Popen[str]) -> str:
    """Return the next line that a process prints.

    Raises:
        RuntimeError: It ended without one.
    """
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(f"{process.args!r} ended with {process.wait()} in place of printing a line")
    return line.strip()
