"""The GPU part of the native module as it was built and installed here: what it says where there is no device."""

from __future__ import annotations

from pathlib import Path

import pytest
from softmaxd_native import GpuContext, Unsupported, gpu_devices, gpu_runtime

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
