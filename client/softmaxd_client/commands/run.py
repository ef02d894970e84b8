"""softmaxctl run."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import click
import ml_dtypes
import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from softmaxd_client.blocks import row_blocks
from softmaxd_client.commands import connection
from softmaxd_client.errors import InvalidTensorError
from softmaxd_client.tensors import layout_of


@click.command()
@click.argument("source", metavar="IN.npy", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "-o",
    "--output",
    metavar="OUT.npy",
    type=click.Path(dir_okay=False, path_type=Path),
    required=True,
    help="Where the answer goes, in C order; written when all of it is there.",
)
@click.option("--dtype", type=click.Choice(["bfloat16"]), help="What raw 2-byte values are: .npy has no name for it.")
@click.option("--zero-masked-rows", is_flag=True, help="Turn rows of -inf into zeros instead of NaN.")
@connection.options
def run(
    source: Path,
    output: Path,
    dtype: str | None,
    zero_masked_rows: bool,
    target: str | None,
    timeout: float | None,
) -> None:
    """Compute softmax over the last axis of IN.npy, a file of any size, in constant memory."""
    array = _open(source, dtype)
    layout_of(array)  # refuses the file before anything is written
    with (
        connection.connect(target) as client,
        _replacing(output) as file,
        _progress_bar() as progress,
    ):
        task = progress.add_task(source.name, total=array.nbytes)
        _write_header(file, array)
        answers = client.stream(row_blocks(array), timeout=timeout, zero_masked_rows=zero_masked_rows, writable=False)
        for answer in answers:
            file.write(answer.reshape(-1).view(np.uint8).data)
            progress.advance(task, answer.nbytes)


def _open(source: Path, dtype: str | None) -> NDArray[Any]:
    """Memory-map a .npy file."""
    try:
        array: NDArray[Any] = np.load(source, mmap_mode="r", allow_pickle=False)
    except ValueError as error:
        raise InvalidTensorError(f"{source} is no .npy file that can be memory-mapped: {error}") from error
    is_raw = array.dtype == np.dtype("V2")
    if is_raw and dtype is None:
        raise InvalidTensorError(f"{source} holds raw 2-byte values: say --dtype bfloat16 if that is what they are")
    if dtype is not None and not is_raw:
        raise InvalidTensorError(f"{source} holds {array.dtype.name}; --dtype is for raw 2-byte values")
    return array.view(ml_dtypes.bfloat16) if is_raw else array


@contextlib.contextmanager
def _replacing(path: Path) -> Iterator[BinaryIO]:
    """Open a file that takes the place of `path` once it is whole, and leaves nothing behind if it never is.

    A plain file and no memory map: a full disk is then an error and not a signal, and written pages are not ours.
    """
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    try:
        with partial.open("xb") as file:
            yield file
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def _write_header(file: BinaryIO, array: NDArray[Any]) -> None:
    header = {"descr": np.lib.format.dtype_to_descr(array.dtype), "fortran_order": False, "shape": array.shape}
    np.lib.format.write_array_header_1_0(file, header)


def _progress_bar() -> Progress:
    """Return a bar on stderr, which shows on a terminal only."""
    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
    )
