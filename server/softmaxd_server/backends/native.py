"""The backends over `softmaxd_native`, the compiled module."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from softmaxd_server.backends.arrays import check_variant, operands
from softmaxd_server.backends.base import Device, Plan, PoolUse, Variant, Work, warm_up_every_type
from softmaxd_server.errors import BackendUnavailableError

if TYPE_CHECKING:
    import softmaxd_native

_INSTALL = "pip install ./native from a checkout of softmaxd (it needs a C++20 compiler and Google Highway)"


class CpuBackend:
    """A `Backend` that computes on the CPU with the widest instruction set there is.

    Args:
        threads: Threads for large work; 0 takes what CPU affinity and cgroup quota leave.

    Raises:
        BackendUnavailableError: `softmaxd_native` is not installed or does not load.
    """

    name = "cpu"
    # 64 KiB in wide rows take 8-38 us on a Xeon with AVX-512, 256 KiB 57-84 us.
    inline_bytes = 128 * 1024

    def __init__(self, threads: int = 0) -> None:
        self._context: softmaxd_native.CpuContext = _load().CpuContext(threads)
        self.devices: Sequence[Device] = (Device(self._context.target, self._context.threads),)
        self.variants: Sequence[Variant] = tuple(Variant(name, note) for name, note in self._context.variants)

    def pools(self) -> Sequence[PoolUse]:
        """See `Backend.pools`."""
        return [PoolUse(*pool) for pool in self._context.pools]

    def warm_up(self) -> None:
        """See `Backend.warm_up`."""
        warm_up_every_type(self)

    def close(self) -> None:
        """Let go of the context; its threads end with it."""
        del self._context

    def plan(self, work: Work) -> Plan:
        """See `Backend.plan`."""
        return Plan(*self._context.plan(work.rows, work.cols, work.element.name))

    def answer(self, prefix: bytes, source: memoryview, work: Work) -> tuple[bytes, Mapping[str, float]]:
        """See `Backend.answer`; no payload is copied."""
        rows, cols, element, zero_masked_rows = work
        answer, seconds = self._context.softmax_message(
            prefix, source, rows, cols, element.name, zero_masked_rows=zero_masked_rows
        )
        return answer, {"kernel": seconds}

    def softmax(
        self,
        x: NDArray[Any],
        *,
        out: NDArray[Any] | None = None,
        variant: str | None = None,
        zero_masked_rows: bool = False,
    ) -> NDArray[Any]:
        """See `Backend.softmax`."""
        check_variant(variant, self.variants)
        source, result, work = operands(x, out, zero_masked_rows)
        if work is not None:
            # As bytes: bfloat16 is no type of the buffer protocol.
            self._context.softmax(
                source.reshape(-1).view(np.uint8).data,
                result.reshape(-1).view(np.uint8).data,
                work.rows,
                work.cols,
                work.element.name,
                zero_masked_rows=zero_masked_rows,
                variant=variant or "",
            )
        return result


def open_gpu(name: str) -> CpuBackend:
    """Open the backend on GPUs whose runtime is `name`, hip or cuda.

    Raises:
        BackendUnavailableError: Always in this version: `softmaxd_native` has no device core yet.
    """
    runtime = _load().gpu_runtime
    if runtime is None:
        reason = "softmaxd_native was built without GPU support"
    else:
        reason = f"softmaxd_native was built for {runtime}, and this version of the server cannot use it"
    raise BackendUnavailableError(f"backend {name}: {reason}: use --backend cpu")


def _load() -> ModuleType:
    """Import the compiled module, which is an optional distribution.

    Raises:
        BackendUnavailableError: It is not installed or does not load.
    """
    try:
        module = importlib.import_module("softmaxd_native")
        module.CpuContext  # noqa: B018 # a source tree on the path imports as an empty package
    except (ImportError, AttributeError) as error:
        raise BackendUnavailableError(
            f"softmaxd_native is not installed or does not load ({error}): {_INSTALL}"
        ) from error
    return module
