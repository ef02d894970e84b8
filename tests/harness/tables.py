"""Tuning tables as files."""

from __future__ import annotations

import json
from typing import Any

# What the default was before kernels reduced by leaves.
PLAIN = ({"max_cols": 4096, "variant": "basic"}, {"variant": "five_pass"})
# The number of rows decides, between variants that reduce by leaves.
MIXED = (
    {"max_rows": 1, "variant": "split_row"},
    {"max_rows": 3, "variant": "block_row"},
    {"max_rows": 5, "variant": "pipelined_row"},
    {"max_rows": 7, "variant": "reread_row"},
    {"max_rows": 12, "variant": "cluster_row"},
    {"max_rows": 20, "variant": "warp_row"},
    {"variant": "split_row"},
)
# The number of rows would decide between bits.
TORN = ({"max_rows": 4, "max_cols": 1024, "variant": "basic"}, {"max_cols": 1024, "variant": "warp_row"})


def text(*choices: dict[str, Any], **fields: Any) -> str:
    """Return a table's JSON; each of its fields can be given."""
    table = {
        "format": 1,
        "runtime": "simt",
        "device": "simulated device 0",
        "driver": "1",
        "date": "2026-12-01",
        "choices": list(choices),
        **fields,
    }
    return json.dumps(table)
