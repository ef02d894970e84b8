"""The GPU backend on a device that the CPU simulates: what a machine without a GPU can run of it.

The device core and the kernels are the real sources, compiled against tests/native/simt in place of a vendor's runtime.
"""

from __future__ import annotations

import functools
import importlib.util
import subprocess
import sysconfig
from pathlib import Path
from types import ModuleType
from unittest import mock

from softmaxd_server.backends import native
from softmaxd_server.config import Config

NAME = "simt"
ROOT = Path(__file__).parents[2]
_MODULE = ROOT / "build" / "simt" / f"softmaxd_simt{sysconfig.get_config_var('EXT_SUFFIX')}"


@functools.cache
def _build() -> subprocess.CompletedProcess[str]:
    command = ["make", "--silent", str(_MODULE.relative_to(ROOT))]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@functools.cache
def load() -> ModuleType:
    """Build the module where its sources have changed, and import it; it stands for `softmaxd_native`."""
    built = _build()
    assert built.returncode == 0, built.stderr
    spec = importlib.util.spec_from_file_location("softmaxd_simt", _MODULE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def open_backend(config: Config) -> native.GpuBackend:
    """Open the backend on the simulated devices; tests/native/simt/simt_runtime.h says what the environment sets."""
    with mock.patch.object(native, "load", load):
        return native.GpuBackend(NAME, config)
