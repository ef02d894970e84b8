"""softmaxctl selftest."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray
from softmaxd_proto import dtypes

from softmaxd_client import reference
from softmaxd_client.commands import connection

_SHOWN_OUTPUTS = 8


@click.command()
@click.option("--rows", type=click.IntRange(min=1), default=1024, show_default=True)
@click.option("--cols", type=click.IntRange(min=1), default=1024, show_default=True)
@click.option("--dtype", type=click.Choice(list(dtypes.BY_NAME)), default="float32", show_default=True)
@click.option(
    "--tolerance",
    type=click.FloatRange(min=0),
    help="The largest absolute error that passes.  "
    f"[default: {', '.join(f'{bound:g} for {name}' for name, bound in reference.TOLERANCES.items())}]",
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of the random input.")
@connection.options
def selftest(
    rows: int, cols: int, dtype: str, tolerance: float | None, seed: int, target: str | None, timeout: float | None
) -> None:
    """Compute random rows on the server, and hold the answer against float64 computed here."""
    array = np.random.default_rng(seed).standard_normal((rows, cols)).astype(dtypes.BY_NAME[dtype].numpy)
    with connection.connect(target) as client:
        backend = client.info(timeout=timeout).backend
        answer, execution = client.softmax_with_execution(array, timeout=timeout)
    error, sum_error = _errors(answer, array)
    for label, value in {
        "rows": rows,
        "cols": cols,
        "dtype": dtype,
        "backend": backend,
        "variant": execution.variant,
        "tile": execution.tile_columns,
        "tile count": execution.tile_count,
        "max error": f"{error:.3e}",
        "max row-sum error": f"{sum_error:.3e}",
        "first outputs": " ".join(_first_outputs(answer)),
    }.items():
        click.echo(f"{label}: {value}")
    bound = reference.TOLERANCES[dtype] if tolerance is None else tolerance
    if error <= bound and sum_error <= bound:  # false for NaN
        click.echo("Result check passed.")
    else:
        click.echo("Result check failed.")
        sys.exit(1)


def _errors(answer: NDArray[Any], array: NDArray[Any]) -> tuple[float, float]:
    """Return the largest absolute error of an element, and that of a row's sum."""
    wide = answer.astype(np.float64)
    return float(np.abs(wide - reference.softmax(array)).max()), float(np.abs(wide.sum(axis=-1) - 1).max())


def _first_outputs(answer: NDArray[Any]) -> Iterator[str]:
    return (f"{float(value):.6g}" for value in answer.reshape(-1)[:_SHOWN_OUTPUTS])
