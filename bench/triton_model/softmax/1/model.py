"""Softmax by numpy for Triton's python backend."""

from __future__ import annotations

from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """What the backend looks for."""

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answer each request: x of shape (rows, cols) float32, y its softmax over the last axis."""
        return [self._answer(pb_utils.get_input_tensor_by_name(request, "x").as_numpy()) for request in requests]

    def _answer(self, x: Any) -> Any:
        y = x - x.max(-1, keepdims=True)
        np.exp(y, out=y)
        y /= y.sum(-1, keepdims=True)
        return pb_utils.InferenceResponse([pb_utils.Tensor("y", y)])
