"""GpuContext as Python has it: registered memory and other processes' memory, on a device that the CPU simulates.

With SOFTMAXD_TEST_GPU, as `make test-gpu` sets it, on that device instead; the memory is then a real process's.
"""

from __future__ import annotations

import json
import mmap
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pytest
import softmaxd_native
from harness import simulated_gpu
from harness.reference import DTYPES, Array, assert_close
from softmaxd_native import GpuContext, SharedMapping, Unsupported, gpu_devices, gpu_runtime

TESTED_GPU = os.environ.get("SOFTMAXD_TEST_GPU")
EXPORTER = Path(__file__).parent / "gpu" / "ipc_exporter.py"
SHAPES = [(1, 1), (7, 33), (300, 100), (5, 3000), (2, 40_000)]

# Runtime -> what its driver makes, and what its runtime library says where there is none.
DRIVERS = {
    "hip": (Path("/dev/kfd"), "no HIP device (hipErrorNoDevice)"),
    "cuda": (Path("/dev/nvidiactl"), "no CUDA device (cudaErrorInsufficientDriver)"),
}


def test_build_without_gpu_says_how_to_get_one() -> None:
    if gpu_runtime is not None:
        pytest.skip(f"softmaxd_native was built for {gpu_runtime}")
    with pytest.raises(Unsupported, match="without GPU support: build it with SOFTMAXD_GPU=HIP or CUDA"):
        gpu_devices()


def test_gpu_build_without_a_device_loads_and_gives_the_reason() -> None:
    if gpu_runtime is None:
        pytest.skip("softmaxd_native was built for the CPU alone")
    driver, reason = DRIVERS[gpu_runtime]
    if driver.exists():
        pytest.skip(f"there is {driver}")
    for ask in (gpu_devices, lambda: GpuContext(devices=[])):
        with pytest.raises(Unsupported) as caught:
            ask()
        assert str(caught.value) == reason


class Exported(Protocol):
    """Memory on a device that another process has allocated."""

    ipc_handle: bytes
    pci_bus_id: str

    def read(self) -> bytes:
        """Return what that process finds in it."""
        ...


class SimulatedExport:
    """Simulated memory, of this process."""

    def __init__(self, data: bytes, _: Path) -> None:
        self._memory = simulated_gpu.load().DeviceAllocation(len(data))
        memoryview(self._memory)[:] = data
        self.ipc_handle: bytes = self._memory.ipc_handle
        self.pci_bus_id: str = self._memory.pci_bus_id

    def read(self) -> bytes:
        return bytes(self._memory)

    def free(self) -> None:
        del self._memory


class CudaExport:
    """Memory of a process that runs ipc_exporter.py."""

    def __init__(self, data: bytes, directory: Path) -> None:
        source = directory / "source"
        self._result = directory / "result"
        source.write_bytes(data)
        self._process = subprocess.Popen(
            [sys.executable, str(EXPORTER), str(source), str(self._result)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        said = json.loads(self._answer())
        self.ipc_handle = bytes.fromhex(said["ipc_handle"])
        self.pci_bus_id: str = said["pci_bus_id"]

    def _answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def read(self) -> bytes:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        assert self._answer() == "copied\n"
        return self._result.read_bytes()

    def free(self) -> None:
        self._process.communicate()
        assert self._process.returncode == 0


# Runtime -> who exports memory there.
EXPORTERS: dict[str, Callable[[bytes, Path], SimulatedExport | CudaExport]] = {
    "simt": SimulatedExport,
    "cuda": CudaExport,
}


@pytest.fixture(scope="module")
def module() -> Any:
    """softmaxd_native where this run is about a real GPU, else what stands for it on a simulated one."""
    if not TESTED_GPU:
        return simulated_gpu.load()
    assert gpu_runtime == TESTED_GPU
    return softmaxd_native


@pytest.fixture(scope="module")
def context(module: Any) -> Any:
    return module.GpuContext(devices=[0], threads=3)


@pytest.fixture
def export(tmp_path: Path, module: Any) -> Iterator[Callable[[bytes], Exported]]:
    """Export memory that holds these bytes."""
    if module.gpu_runtime not in EXPORTERS:
        pytest.skip(f"there is no program that exports memory of {module.gpu_runtime}")
    made: list[SimulatedExport | CudaExport] = []

    def make(data: bytes) -> Exported:
        directory = tmp_path / str(len(made))
        directory.mkdir()
        made.append(EXPORTERS[module.gpu_runtime](data, directory))
        return made[-1]

    yield make
    for exported in made:
        exported.free()


def scores(shape: tuple[int, int], dtype: str = "float32") -> Array:
    return (np.random.default_rng(shape).standard_normal(shape) * 4).astype(DTYPES[dtype])


def shared_file(byte_size: int) -> int:
    fd = os.memfd_create("softmaxd-test")
    os.ftruncate(fd, byte_size)
    return fd


def inline_result(context: Any, x: Array) -> Array:
    """Return what the context makes of memory that is not registered."""
    out = np.empty_like(x)
    context.softmax(x.view(np.uint8), out.view(np.uint8), *x.shape, x.dtype.name)
    return out


@pytest.mark.parametrize("dtype", sorted(DTYPES))
@pytest.mark.parametrize("shape", [*SHAPES, (3, 600_000)])
def test_softmax_of_a_registered_mapping_equals_float64_and_has_the_bits_of_other_memory(
    shape: tuple[int, int], dtype: str, module: Any, context: Any
) -> None:
    x = scores(shape, dtype)
    offset = mmap.PAGESIZE
    fd = shared_file(offset + 2 * x.nbytes)
    mapping = SharedMapping(fd, offset + 2 * x.nbytes)
    context.register_memory(mapping)
    with memoryview(mapping) as view:
        source, destination = view[offset : offset + x.nbytes], view[offset + x.nbytes :]
        source[:] = x.tobytes()
        moved = 0 if TESTED_GPU else module.bytes_moved_directly()
        seconds = context.softmax(source, destination, *shape, dtype)
        assert TESTED_GPU or module.bytes_moved_directly() - moved == 2 * x.nbytes
        result = np.frombuffer(bytes(destination), x.dtype).reshape(shape)
        source.release()
        destination.release()
    assert all(phase >= 0 for phase in seconds)
    assert_close(result, x)
    assert os.pread(fd, x.nbytes, offset + x.nbytes) == inline_result(context, x).tobytes()
    assert os.pread(fd, x.nbytes, offset) == x.tobytes()
    context.unregister_memory(mapping)
    mapping.close()
    os.close(fd)


def test_softmax_message_of_a_registered_source_equals_float64(context: Any) -> None:
    x = scores((300, 1000))
    mapping = SharedMapping(shared_file(x.nbytes), x.nbytes)
    context.register_memory(mapping)
    with memoryview(mapping) as view:
        view[:] = x.tobytes()
        message, _ = context.softmax_message(b"prefix", view, *x.shape, "float32")
    context.unregister_memory(mapping)
    assert message == b"prefix" + inline_result(context, x).tobytes()


def test_registered_mapping_of_a_truncated_file_ends_nothing(context: Any) -> None:
    x = scores((40, mmap.PAGESIZE))
    fd = shared_file(x.nbytes)
    mapping = SharedMapping(fd, x.nbytes)
    context.register_memory(mapping)
    os.ftruncate(fd, 0)
    context.softmax(mapping, mapping, *x.shape, "float32")
    context.unregister_memory(mapping)
    mapping.close()
    assert_close(inline_result(context, x), x)


def test_memory_registered_twice_or_not_at_all_is_refused(module: Any, context: Any) -> None:
    memory = mmap.mmap(-1, 4 * mmap.PAGESIZE)
    context.register_memory(memory)
    with pytest.raises(module.InvalidArgument, match="overlaps with memory that is registered already"):
        context.register_memory(memoryview(memory)[100:])
    with pytest.raises(module.InvalidArgument, match="is not registered, or with another size"):
        context.unregister_memory(memoryview(memory)[:100])
    context.unregister_memory(memory)
    with pytest.raises(module.InvalidArgument, match="is not registered"):
        context.unregister_memory(memory)
    with pytest.raises(module.InvalidArgument, match="it has 0 bytes"):
        context.register_memory(bytearray())
    with pytest.raises(BufferError):
        context.register_memory(b"read-only")


@pytest.mark.parametrize("dtype", sorted(DTYPES))
@pytest.mark.parametrize("shape", SHAPES)
def test_softmax_on_device_equals_float64_and_has_the_bits_of_the_hosts_memory(
    shape: tuple[int, int], dtype: str, context: Any, export: Callable[[bytes], Exported]
) -> None:
    x = scores(shape, dtype)
    before, between = b"b" * 20, b"c" * 4
    exported = export(before + x.tobytes() + between + b"d" * x.nbytes)
    memory = context.open_device_memory(
        exported.ipc_handle, exported.pci_bus_id, len(before) + len(between) + 2 * x.nbytes
    )
    destination = len(before) + x.nbytes + len(between)
    seconds = context.softmax_on_device(memory, len(before), memory, destination, *shape, dtype)
    held = exported.read()
    memory.close()
    assert (seconds[0], seconds[2]) == (0, 0)
    assert seconds[1] > 0
    assert held[:destination] == before + x.tobytes() + between
    assert_close(np.frombuffer(held[destination:], x.dtype).reshape(shape), x)
    assert held[destination:] == inline_result(context, x).tobytes()


def test_softmax_on_device_from_one_allocation_to_another_and_in_place(
    context: Any, export: Callable[[bytes], Exported]
) -> None:
    x = scores((64, 500))
    masked = np.concatenate([x, np.full((1, 500), -np.inf, np.float32)])
    source, destination = export(masked.tobytes()), export(bytes(masked.nbytes))
    opened = [
        context.open_device_memory(each.ipc_handle, each.pci_bus_id, masked.nbytes) for each in (source, destination)
    ]
    context.softmax_on_device(opened[0], 0, opened[1], 0, *masked.shape, "float32", zero_masked_rows=True)
    expected = inline_result(context, x).tobytes() + bytes(2000)
    assert destination.read() == expected
    assert source.read() == masked.tobytes()
    context.softmax_on_device(
        opened[0], 0, opened[0], 0, *masked.shape, "float32", zero_masked_rows=True, variant="reread_row"
    )
    assert source.read() == expected
    for memory in opened:
        memory.close()


def test_device_memory_out_of_bounds_is_refused(module: Any, context: Any, export: Callable[[bytes], Exported]) -> None:
    exported = export(bytes(4096))
    memory = context.open_device_memory(exported.ipc_handle, exported.pci_bus_id, 1000)
    assert memory.byte_size == 1000

    def compute(source: int, destination: int, rows: int = 1, cols: int = 10, dtype: str = "float32") -> None:
        context.softmax_on_device(memory, source, memory, destination, rows, cols, dtype)

    for arguments, said in [
        ((964, 0), "the source, 1 x 10 float32 from byte 964, does not lie within the memory of 1000 bytes"),
        ((0, 964), "the destination, 1 x 10 float32 from byte 964, does not lie"),
        ((2**64 - 4, 0), "the source, 1 x 10 float32 from byte 18446744073709551612"),
        ((0, 500, 2**61, 1), "2305843009213693952 x 1 elements are more than memory can hold"),
        ((0, 500, 2**60, 1), "the source, 1152921504606846976 x 1 float32 from byte 0, does not lie"),
        ((2, 500), "the source starts at byte 2; it must be a multiple of 4"),
        ((0, 501, 1, 10, "float16"), "the destination starts at byte 501; it must be a multiple of 2"),
        ((0, 36), "overlap"),
        ((0, 500, 1, 10, "float64"), "'float64'; allowed are float32"),
    ]:
        with pytest.raises(module.InvalidArgument, match=said):
            compute(*arguments)
    with pytest.raises(TypeError):
        compute(-4, 0)
    assert exported.read() == bytes(4096)
    compute(960, 0)
    compute(40, 0)
    compute(1000, 1000, 0)
    memory.close()


def test_device_memory_that_cannot_be_opened_is_refused(
    module: Any, context: Any, export: Callable[[bytes], Exported]
) -> None:
    exported = export(bytes(4096))
    handle, bus_id = exported.ipc_handle, exported.pci_bus_id
    with pytest.raises(module.InvalidArgument, match=r"the IPC handle has 3 bytes; it must have 64"):
        context.open_device_memory(b"abc", bus_id, 1)
    with pytest.raises(module.InvalidArgument, match=r"the IPC handle cannot be opened: \w+; it must be"):
        context.open_device_memory(b"\x5a" * 64, bus_id, 1)
    with pytest.raises(module.InvalidArgument, match=r"no device with the PCI bus id '0000:ff:1f.7'; there are 0000:"):
        context.open_device_memory(handle, "0000:FF:1f.7", 1)
    with pytest.raises(module.InvalidArgument, match=r"the allocation has \d+ bytes, fewer than the 1099511627776"):
        context.open_device_memory(handle, bus_id, 1 << 40)
    context.open_device_memory(handle, bus_id.upper(), 4096).close()
    context.open_device_memory(handle, bus_id.lower(), 4096).close()


def test_device_memory_opened_twice_is_open_until_both_are_closed(
    module: Any, context: Any, export: Callable[[bytes], Exported]
) -> None:
    x = scores((4, 100))
    exported = export(x.tobytes() + bytes(x.nbytes))
    arguments = (exported.ipc_handle, exported.pci_bus_id, 2 * x.nbytes)
    first, second = context.open_device_memory(*arguments), context.open_device_memory(*arguments)
    first.close()
    first.close()
    with pytest.raises(module.InvalidArgument, match="the device memory is closed"):
        context.softmax_on_device(first, 0, second, x.nbytes, *x.shape, "float32")
    context.softmax_on_device(second, 0, second, x.nbytes, *x.shape, "float32")
    assert exported.read() == x.tobytes() + inline_result(context, x).tobytes()
    second.close()
    third = context.open_device_memory(*arguments)
    context.softmax_on_device(third, x.nbytes, third, 0, *x.shape, "float32")
    assert exported.read()[: x.nbytes] == inline_result(context, inline_result(context, x)).tobytes()
    del third
    assert TESTED_GPU or module.opened_count() == 0
