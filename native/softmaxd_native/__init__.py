"""The device core of softmaxd: contexts that compute softmax into buffers, with the GIL released."""

from softmaxd_native._native import CpuContext, InvalidArgument, Unsupported, targets

__all__ = ["CpuContext", "InvalidArgument", "Unsupported", "gpu_runtime", "targets"]

gpu_runtime: str | None = None
"""The GPU runtime that this build was made for, "hip" or "cuda"; None where it was built for the CPU alone."""
