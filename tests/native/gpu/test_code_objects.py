"""The GPU kernels compiled by hipcc for gfx906, and what the code objects say of themselves. Nothing runs here."""

from __future__ import annotations

import math
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

NATIVE = Path(__file__).parents[3] / "native"
NO_KERNELS = "softmax_cluster_row.hip"  # AMD's devices have no clusters
SOURCES = sorted(path for path in (NATIVE / "src" / "gpu").glob("*.hip") if path.name != NO_KERNELS)
PACKAGES = "apt-get install --no-install-recommends hipcc libamdhip64-dev rocm-device-libs"
HIPCC = shutil.which("hipcc")
READELF = shutil.which("llvm-readelf-15") or shutil.which("llvm-readelf")
MAX_LDS_BYTES = 64 * 1024
SIMD_VGPRS = 256  # of a lane of gfx906, for all waves of a SIMD; a multiprocessor has four of these

needs_hipcc = pytest.mark.skipif(not (HIPCC and READELF), reason=f"hipcc or llvm-readelf is not installed: {PACKAGES}")


def kernels_of(source: Path, to: Path) -> list[dict[str, str]]:
    """Compile one source; return the metadata of each kernel in it, by the names of the AMDGPU ABI."""
    assert HIPCC
    assert READELF
    flags = ["-std=c++17", "-O3", "-Wall", "-Werror", f"-I{NATIVE / 'src'}", f"-I{NATIVE / 'include'}"]
    offload = ["--offload-arch=gfx906", "--offload-device-only", "--no-gpu-bundle-output"]
    # Without it hipcc takes nvcc where one is on PATH.
    environment = {**os.environ, "HIP_PLATFORM": "amd"}
    command = [HIPCC, *flags, *offload, "-c", str(source), "-o", str(to)]
    compiled = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert compiled.returncode == 0, compiled.stderr
    notes = subprocess.run([READELF, "--notes", str(to)], capture_output=True, text=True, check=True).stdout
    assert re.search(r"amdhsa\.target:\s+'?amdgcn-amd-amdhsa--gfx906", notes)
    [kernels, _] = re.split(r"^amdhsa\.target:", notes.split("amdhsa.kernels:")[1], maxsplit=1, flags=re.MULTILINE)
    return [dict(re.findall(r"\.(\w+):[ \t]+(\S+)", kernel)) for kernel in re.split(r"^  - ", kernels, flags=re.M)[1:]]


def test_there_are_sources() -> None:
    assert len(SOURCES) >= 2


@needs_hipcc
@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_code_object_spills_nothing_and_fits(source: Path, tmp_path: Path) -> None:
    kernels = kernels_of(source, tmp_path / "kernels.hsaco")
    assert len(kernels) >= 3, "one for each element type"
    for kernel in kernels:
        name = kernel["name"]
        assert kernel["wavefront_size"] == "64", name
        assert int(kernel["vgpr_spill_count"]) == int(kernel["sgpr_spill_count"]) == 0, name
        assert kernel["private_segment_fixed_size"] == "0", f"{name} has scratch memory"
        assert int(kernel["group_segment_fixed_size"]) <= MAX_LDS_BYTES, name
        threads = int(kernel["max_flat_workgroup_size"])
        assert threads <= 512, f"{name} has no launch bounds"
        simd_waves = math.ceil(threads / 64 / 4)
        assert int(kernel["vgpr_count"]) * simd_waves <= SIMD_VGPRS, (
            f"a multiprocessor has no room for a block of {name}"
        )
