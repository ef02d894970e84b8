"""The backends over `softmaxd_native`, the compiled module."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from softmaxd_server import tuning
from softmaxd_server.backends.arrays import check_variant, operands
from softmaxd_server.backends.base import Device, ExportedMemory, Plan, PoolUse, Variant, Work, warm_up_every_type
from softmaxd_server.config import Config, device_indices
from softmaxd_server.errors import BackendUnavailableError, TuningError

if TYPE_CHECKING:
    import softmaxd_native

    _Choice = tuple[str | None, int | None, int | None, str]  # dtype, max_rows, max_cols, variant
    _Context = softmaxd_native.CpuContext | softmaxd_native.GpuContext

_INSTALL = "pip install ./native from a checkout of softmaxd (it needs a C++20 compiler and Google Highway)"


class _NativeBackend:
    """What the backends over `softmaxd_native` share: all but how the context is made and what a call returns."""

    def __init__(self, context: _Context) -> None:
        self._context = context
        self.variants: Sequence[Variant] = tuple(Variant(name, note) for name, note in context.variants)

    def pools(self) -> Sequence[PoolUse]:
        """See `Backend.pools`."""
        return [PoolUse(*pool) for pool in self._context.pools]

    def close(self) -> None:
        """Let go of the context; its threads, memory and streams end with it. A second call does nothing."""
        self.__dict__.pop("_context", None)

    def plan(self, work: Work) -> Plan:
        """See `Backend.plan`."""
        return Plan(*self._context.plan(work.rows, work.cols, work.element.name))

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


class CpuBackend(_NativeBackend):
    """A `Backend` that computes on the CPU with the widest instruction set there is.

    Args:
        config: `threads` is used.

    Raises:
        BackendUnavailableError: `softmaxd_native` is not installed or does not load.
    """

    name = "cpu"
    tuning = ""
    # 64 KiB in wide rows take 8-38 us on a Xeon with AVX-512, 256 KiB 57-84 us.
    inline_bytes = 128 * 1024
    _context: softmaxd_native.CpuContext

    def __init__(self, config: Config) -> None:
        context = load().CpuContext(config.threads)
        super().__init__(context)
        self.devices: Sequence[Device] = (Device(context.target, context.threads, "threads"),)

    def warm_up(self) -> None:
        """See `Backend.warm_up`."""
        warm_up_every_type(self)

    def answer(self, prefix: bytes, source: memoryview, work: Work) -> tuple[bytes, Mapping[str, float]]:
        """See `Backend.answer`; no payload is copied."""
        rows, cols, element, zero_masked_rows = work
        answer, seconds = self._context.softmax_message(
            prefix, source, rows, cols, element.name, zero_masked_rows=zero_masked_rows
        )
        return answer, {"kernel": seconds}

    def compute(self, source: memoryview, destination: memoryview, work: Work) -> Mapping[str, float]:
        """See `Backend.compute`; nothing is copied."""
        rows, cols, element, zero_masked_rows = work
        seconds = self._context.softmax(
            source, destination, rows, cols, element.name, zero_masked_rows=zero_masked_rows
        )
        return {"kernel": seconds}

    def register_memory(self, memory: memoryview) -> None:
        """Do nothing: a CPU reaches all memory."""

    def unregister_memory(self, memory: memoryview) -> None:
        """Do nothing."""


class GpuBackend(_NativeBackend):
    """A `Backend` that computes on GPUs; a request goes to the device with the least work under way.

    Args:
        name: The runtime that `softmaxd_native` must be built for, hip or cuda.
        config: `device`, `threads`, `tuning` and `device_pool_bytes` are used.

    Raises:
        BackendUnavailableError: There is no such build, no device, or not the one that was asked for.
        TuningError: The tuning table cannot be read, or its rules cannot be used.
    """

    # A request waits while others keep the device busy: never on the event loop.
    inline_bytes = 0
    _context: softmaxd_native.GpuContext

    def __init__(self, name: str, config: Config) -> None:
        self.name = name
        module = load()
        if module.gpu_runtime != name:
            built = f"for {module.gpu_runtime}" if module.gpu_runtime else "without GPU support"
            raise BackendUnavailableError(
                f"backend {name}: softmaxd_native was built {built}: build it with SOFTMAXD_GPU={name.upper()} "
                "make setup, or use --backend cpu"
            )
        indices = device_indices(config.device)
        try:
            names = [product for index, product, _ in module.gpu_devices() if not indices or index in indices]
            choices, self.tuning = _choices_for(module, names, config.tuning)
            context = module.GpuContext(
                devices=indices,
                choices=choices,
                threads=config.threads,
                device_pool_bytes=config.device_pool_bytes,
            )
        except (module.Unsupported, module.DeviceError, module.InvalidArgument, MemoryError) as error:
            raise BackendUnavailableError(
                f"backend {name}: {error}: check the driver, --device and {name.upper()}_VISIBLE_DEVICES, "
                "or use --backend cpu"
            ) from error
        super().__init__(context)
        self.driver = str(module.gpu_driver_version())
        """The driver's version, as the runtime counts it."""
        self.devices: Sequence[Device] = tuple(
            Device(product, multiprocessors, "multiprocessors") for _, product, multiprocessors in context.devices
        )

    def warm_up(self) -> None:
        """See `Backend.warm_up`; every variant computes each type on each device."""
        self._context.warm_up()

    def answer(self, prefix: bytes, source: memoryview, work: Work) -> tuple[bytes, Mapping[str, float]]:
        """See `Backend.answer`; the payload is copied to and from pinned memory alone."""
        rows, cols, element, zero_masked_rows = work
        answer, (upload, kernel, download) = self._context.softmax_message(
            prefix, source, rows, cols, element.name, zero_masked_rows=zero_masked_rows
        )
        return answer, {"upload": upload, "kernel": kernel, "download": download}

    def compute(self, source: memoryview, destination: memoryview, work: Work) -> Mapping[str, float]:
        """See `Backend.compute`; registered memory is not copied on the host."""
        rows, cols, element, zero_masked_rows = work
        upload, kernel, download = self._context.softmax(
            source, destination, rows, cols, element.name, zero_masked_rows=zero_masked_rows
        )
        return {"upload": upload, "kernel": kernel, "download": download}

    def register_memory(self, memory: memoryview) -> None:
        """See `Backend.register_memory`; its pages are pinned."""
        self._context.register_memory(memory)

    def unregister_memory(self, memory: memoryview) -> None:
        """See `Backend.unregister_memory`."""
        self._context.unregister_memory(memory)

    def open_device_memory(self, ipc_handle: bytes, pci_bus_id: str, byte_size: int) -> softmaxd_native.DeviceMemory:
        """See `DeviceBackend.open_device_memory`."""
        return self._context.open_device_memory(ipc_handle, pci_bus_id, byte_size)

    def compute_on_device(
        self,
        source: ExportedMemory,
        source_offset: int,
        destination: ExportedMemory,
        destination_offset: int,
        work: Work,
    ) -> Mapping[str, float]:
        """See `DeviceBackend.compute_on_device`."""
        rows, cols, element, zero_masked_rows = work
        _, kernel, _ = self._context.softmax_on_device(
            cast("softmaxd_native.DeviceMemory", source),
            source_offset,
            cast("softmaxd_native.DeviceMemory", destination),
            destination_offset,
            rows,
            cols,
            element.name,
            zero_masked_rows=zero_masked_rows,
        )
        return {"kernel": kernel}

    def candidates(self, cols: int) -> Sequence[str]:
        """Return the variants that a tuning may choose between for rows of `cols` columns: they give the same bits."""
        return self._context.candidates(cols)

    def time_variant(self, variant: str, rows: int, cols: int, dtype: str) -> float:
        """Return the seconds of one launch on the first device, from its memory to its memory.

        Raises:
            ValueError: There is no such variant, or it does not take such rows.
            MemoryError: The matrix and its result do not fit.
        """
        return self._context.time_variant(variant, rows, cols, dtype)


def _choices_for(module: ModuleType, devices: Sequence[str], path: Path | None) -> tuple[list[_Choice], str]:
    """Return the rules that choose variants, none for the built-in ones, and what they are for a person.

    Raises:
        TuningError: The table cannot be read, or its rules cannot be used.
    """
    found = tuning.find(module.gpu_runtime, devices, path)
    if found is None:
        return [], "built-in"
    choices: list[_Choice] = [
        (choice.dtype, choice.max_rows, choice.max_cols, choice.variant) for choice in found.table.choices
    ]
    try:
        module.check_choices(choices)
    except module.InvalidArgument as error:
        raise TuningError(f"{found.origin}: {error}; or make another table with softmaxctl tune") from error
    return choices, f"{found.origin} ({found.table.device}, {found.table.date})"


def load() -> ModuleType:
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
