"""The device core of softmaxd: contexts that compute softmax into buffers, with the GIL released."""

from softmaxd_native._native import (
    CpuContext,
    DeviceError,
    DeviceMemory,
    GpuContext,
    InvalidArgument,
    SharedMapping,
    Unsupported,
    check_choices,
    gpu_devices,
    gpu_driver_version,
    gpu_runtime,
    targets,
)

__all__ = [
    "CpuContext",
    "DeviceError",
    "DeviceMemory",
    "GpuContext",
    "InvalidArgument",
    "SharedMapping",
    "Unsupported",
    "check_choices",
    "gpu_devices",
    "gpu_driver_version",
    "gpu_runtime",
    "targets",
]
