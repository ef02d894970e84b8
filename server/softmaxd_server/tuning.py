"""Tuning tables: which variant computes what on a device, as it was measured there, in a JSON file.

A table is made by `softmaxctl tune`. The server takes the one that `--tuning` names, else the one that is shipped in
`tunings/` for its device.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from softmaxd_server.errors import TuningError

_log = logging.getLogger(__name__)
_SHIPPED = Path(__file__).parent / "tunings"
_ADVICE = "make a table with softmaxctl tune"

DTypeName = Literal["float32", "float16", "bfloat16"]
Count = Annotated[int, Field(ge=1, le=2**63 - 1)]


class _Entry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Choice(_Entry):
    """A rule: what it fits is computed by its variant, unless a rule before it fits too.

    Attributes:
        dtype: The element type that it fits; None fits each.
        max_rows: The most rows of one launch that it fits; None fits any number.
        max_cols: The most columns that it fits; None fits any number.
        variant: A name out of `Backend.variants`.
    """

    dtype: DTypeName | None = None
    max_cols: Count | None = None
    max_rows: Count | None = None
    variant: str


class Measurement(_Entry):
    """The times of one launch on a matrix `(rows, cols)`.

    Attributes:
        dtype: The element type.
        rows: >= 1.
        cols: >= 1.
        microseconds: By the variants' names.
    """

    dtype: DTypeName
    rows: Count
    cols: Count
    microseconds: Mapping[str, float]


class TuningTable(_Entry):
    """What is in the file.

    Attributes:
        format: Of the file; this is 1.
        runtime: cuda or hip.
        device: The product's name, as the runtime says it.
        driver: The driver's version, as the runtime counts it.
        date: Of the measurement, `YYYY-MM-DD`.
        choices: The first that fits decides; what none fits is computed by reread_row.
        measured: Why.
    """

    format: Literal[1] = 1
    runtime: str
    device: str
    driver: str
    date: str
    choices: tuple[Choice, ...] = Field(min_length=1)
    measured: tuple[Measurement, ...] = ()


class Found(NamedTuple):
    """A table and where it comes from, for a person."""

    table: TuningTable
    origin: str


def load(path: Path) -> TuningTable:
    """Read a table.

    Raises:
        TuningError: The file cannot be read, is not JSON, or has fields or values that are not allowed.
    """
    try:
        return TuningTable.model_validate_json(path.read_bytes())
    except OSError as error:
        raise TuningError(f"cannot read the tuning table {path}: {error.strerror}: {_ADVICE}") from error
    except ValidationError as error:
        problems = "; ".join(_explain(problem) for problem in error.errors())
        raise TuningError(f"the tuning table {path} cannot be used: {problems}: {_ADVICE}") from error


def save(table: TuningTable, path: Path) -> None:
    """Write a table; it takes the place of what is there once it is whole.

    Raises:
        TuningError: The file cannot be written.
    """
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    try:
        partial.write_text(render(table), encoding="utf-8")
        os.replace(partial, path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise TuningError(f"cannot write the tuning table {path}: {error.strerror}: choose another place") from error


def render(table: TuningTable) -> str:
    """Return a table as JSON, with a line for each choice and each measurement."""
    return (
        "{\n"
        + ",\n".join(f"  {json.dumps(name)}: {_value(value)}" for name, value in table.model_dump().items())
        + "\n}\n"
    )


def find(runtime: str, devices: Sequence[str], path: Path | None) -> Found | None:
    """Return the table by which devices are to be used: the given one, else the shipped one, else None.

    Args:
        runtime: cuda or hip.
        devices: The products' names.
        path: The file of the one that was asked for. That it was made for another device is logged as a warning.

    Raises:
        TuningError: A table cannot be read.
    """
    if path is not None:
        table = load(path)
        others = sorted({name for name in devices if (runtime, name) != (table.runtime, table.device)})
        if others:
            _log.warning(
                "the tuning table %s was made for %s (%s), and is used for %s (%s): %s for them",
                *(path, table.device, table.runtime, ", ".join(others), runtime, _ADVICE),
            )
        return Found(table, path.name)
    matching = (found for found in shipped() if [found.table.device] == sorted(set(devices)))
    return next((found for found in matching if found.table.runtime == runtime), None)


def shipped() -> Iterator[Found]:
    """Yield the tables that came with the package."""
    for path in sorted(_SHIPPED.glob("*.json")):
        yield Found(load(path), f"shipped {path.name}")


def _explain(problem: Mapping[str, object]) -> str:
    """Say where in the file what was got, and what is allowed."""
    message = str(problem["msg"])
    message = message[0].lower() + message[1:]
    location = problem["loc"]
    if not isinstance(location, tuple) or not location:
        return message
    place = ".".join(map(str, location))
    return f"{place}: {message}" if problem["type"] == "missing" else f"{place}: got {problem['input']!r}: {message}"


def _value(value: object) -> str:
    if not isinstance(value, tuple):
        return json.dumps(value)
    return "[\n" + ",\n".join(f"    {json.dumps(entry)}" for entry in value) + "\n  ]" if value else "[]"
