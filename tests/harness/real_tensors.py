"""The real softmax inputs of tests/data, and what was computed of them elsewhere in float64."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from harness.reference import RELATIVE_TOLERANCE, Array

DATA = Path(__file__).parents[1] / "data"
_SUMMARY = json.loads((DATA / "expected_summary.json").read_text())["arrays"]


@dataclass(frozen=True)
class RealTensor:
    """One input.

    Attributes:
        name: Its file's name, without the ending.
        array: Softmax runs over its last axis.
        expected: Sums of the float64 softmax, from expected_summary.json.
    """

    name: str
    array: Array
    expected: dict[str, Any]

    def check(self, p: Array) -> None:
        """Assert that `p` is this tensor's softmax, by the sums that were stored with the data.

        Raises:
            AssertionError: It is not; the message says which sum is off.
        """
        assert p.shape == self.array.shape, f"{self.name}: shape {p.shape} instead of {self.array.shape}"
        assert p.dtype == self.array.dtype, f"{self.name}: dtype {p.dtype} instead of {self.array.dtype}"
        wide = p.astype(np.float64)
        cols = wide.shape[-1]
        weights = np.arange(1, cols + 1) / cols
        positive = wide[wide > 0]
        sums = {
            "sum_p": wide.sum(),
            "sum_p2": (wide**2).sum(),
            "sum_pw": (wide * weights).sum(),
            "max_p": wide.max(),
            "mean_entropy": -(positive * np.log(positive)).sum() / (wide.size / cols),
        }
        for name, got in sums.items():
            want = self.expected[name]
            assert abs(got - want) <= abs(want) * RELATIVE_TOLERANCE[p.dtype.name], (
                f"{self.name}: {name} {got} != {want}"
            )
        if "attn" in self.name:  # each masked score gives an exact zero
            masked = self.array <= np.finfo(self.array.dtype).min * 0.99
            assert masked.sum() == self.expected["n_p_exact_zero"]
            assert (p[masked] == 0).all(), f"{self.name}: a masked score has a probability"


def load() -> list[RealTensor]:
    """Return all inputs of tests/data."""
    return [
        RealTensor(name, np.load(DATA / f"{name}.npy"), expected)
        for name, expected in sorted(_SUMMARY.items())
        if "softmax" not in name
    ]
