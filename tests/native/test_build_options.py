"""The CMake option SOFTMAXD_GPU: what a configure run chooses and says. Nothing of the module is built here."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pybind11 = pytest.importorskip("pybind11", reason="pybind11 is not installed: pip install '.[dev]'")

NATIVE = Path(__file__).parents[2] / "native"
CMAKE = shutil.which("cmake", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
# What else than the options and the PATH has a say in which compilers are found.
NOT_INHERITED = {"CUDAARCHS", "CUDACXX", "CUDA_HOME", "CUDA_PATH", "DTKROOT", "ROCM_PATH", "SOFTMAXD_GPU"}
BROKEN = "#!/bin/sh\necho 'error: this compiler is broken' >&2\nexit 1\n"
# Compiles nothing, successfully, and leaves its arguments in a file beside it.
RECORDING = '#!/bin/sh\necho "$@" > "$0.arguments"\nwhile [ "$1" != -o ]; do shift; done\n: > "$2"\n'

pytestmark = pytest.mark.skipif(not CMAKE, reason="cmake is not installed: pip install '.[dev]'")
needs_hipcc = pytest.mark.skipif(
    not shutil.which("hipcc"),
    reason="hipcc is not installed: apt-get install --no-install-recommends hipcc libamdhip64-dev rocm-device-libs",
)
needs_nvcc = pytest.mark.skipif(
    not shutil.which("nvcc"), reason="nvcc is not installed: https://developer.nvidia.com/cuda-downloads"
)


def configure(build: Path, environment: dict[str, str] | None = None, **options: str | Path) -> tuple[int, str]:
    """Run a configure; return its exit status and what it said, in one line because CMake wraps its errors."""
    command = [str(CMAKE), "-G", "Unix Makefiles", "-S", str(NATIVE), "-B", str(build)]
    command += [f"-Dpybind11_DIR={pybind11.get_cmake_dir()}", f"-DPython_EXECUTABLE={sys.executable}"]
    command += [f"-D{name}={value}" for name, value in options.items()]
    inherited = {name: value for name, value in os.environ.items() if name not in NOT_INHERITED}
    done = subprocess.run(
        command, env=inherited | (environment or {}), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    return done.returncode, " ".join(done.stdout.split())


def executable(path: Path, script: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(script)
    path.chmod(0o755)
    return path


def linked(build: Path) -> str:
    """Return the command that links the module."""
    return (build / "CMakeFiles" / "_native.dir" / "link.txt").read_text()


def test_gpu_none_asked_for_is_taken_and_said(tmp_path: Path) -> None:
    status, said = configure(tmp_path, SOFTMAXD_GPU="NONE")
    assert status == 0, said
    assert "no_gpu/gpu_context.cpp.o" in linked(tmp_path)
    assert "softmaxd: GPU support: NONE (asked for); set -DSOFTMAXD_GPU=HIP|CUDA for another" in said


def test_gpu_from_the_environment_is_taken(tmp_path: Path) -> None:
    status, said = configure(tmp_path, {"SOFTMAXD_GPU": "NONE"})
    assert status == 0, said
    assert "softmaxd: GPU support: NONE (asked for)" in said


def test_gpu_option_beside_the_environment_wins(tmp_path: Path) -> None:
    status, said = configure(tmp_path, {"SOFTMAXD_GPU": "unknown"}, SOFTMAXD_GPU="NONE")
    assert status == 0, said
    assert "softmaxd: GPU support: NONE (asked for)" in said


def test_gpu_unknown_value_is_an_error_that_names_the_allowed(tmp_path: Path) -> None:
    status, said = configure(tmp_path, SOFTMAXD_GPU="ROCM")
    assert status != 0
    assert 'SOFTMAXD_GPU is "ROCM"; allowed are AUTO, NONE, HIP and CUDA' in said


@pytest.mark.parametrize(
    ("runtime", "compiler", "architectures", "library"),
    [
        pytest.param("HIP", "hipcc", "gfx906", "amdhip64", marks=needs_hipcc),
        pytest.param("CUDA", "nvcc", "75-virtual;90", "cudart_static", marks=needs_nvcc),
    ],
)
def test_gpu_by_name_is_taken(runtime: str, compiler: str, architectures: str, library: str, tmp_path: Path) -> None:
    status, said = configure(tmp_path, SOFTMAXD_GPU=runtime)
    assert status == 0, said
    assert f"softmaxd: GPU support: {runtime} ({compiler} {shutil.which(compiler)}, {architectures})" in said
    assert "softmax_basic.hip.o" in linked(tmp_path)
    assert library in linked(tmp_path)


@needs_hipcc
def test_gpu_hip_for_an_architecture_that_hipcc_lacks_is_an_error_with_its_words(tmp_path: Path) -> None:
    status, said = configure(tmp_path, SOFTMAXD_GPU="HIP", CMAKE_HIP_ARCHITECTURES="gfx906;gfx0")
    assert status != 0
    assert "cannot compile a kernel for gfx906;gfx0: " in said
    assert "invalid target ID 'gfx0'" in said


@pytest.mark.parametrize(
    ("runtime", "compiler", "advice"),
    [
        ("HIP", "SOFTMAXD_HIPCC", "apt-get install --no-install-recommends hipcc libamdhip64-dev rocm-device-libs"),
        ("CUDA", "CMAKE_CUDA_COMPILER", "Install NVIDIA's CUDA Toolkit 12 or newer"),
    ],
)
def test_gpu_by_name_without_its_compiler_is_an_error_that_says_what_to_install(
    runtime: str, compiler: str, advice: str, tmp_path: Path
) -> None:
    missing = tmp_path / "missing"
    status, said = configure(tmp_path / "build", **{"SOFTMAXD_GPU": runtime, compiler: missing})
    assert status != 0
    assert f"SOFTMAXD_GPU={runtime} cannot be built here: no" in said
    assert f"found at {missing}" in said
    assert advice in said
    assert "Without a GPU: SOFTMAXD_GPU=NONE" in said


def test_gpu_auto_without_compilers_is_none(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    status, said = configure(tmp_path / "build", SOFTMAXD_HIPCC=missing, CMAKE_CUDA_COMPILER=missing)
    assert status == 0, said
    assert "softmaxd: GPU support: NONE (no" in said
    assert f"no hipcc found at {missing}" in said
    assert f"no nvcc found at {missing}" in said
    assert "passed over" not in said


def test_gpu_auto_with_broken_compilers_passes_them_over_and_says_why(tmp_path: Path) -> None:
    hipcc = executable(tmp_path / "bin/hipcc", BROKEN)
    nvcc = executable(tmp_path / "bin/nvcc", BROKEN)
    status, said = configure(tmp_path / "build", {"PATH": f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"})
    assert status == 0, said
    why = "error: this compiler is broken"
    assert f"softmaxd: HIP passed over: {hipcc} cannot compile a kernel for gfx906: {why}" in said
    assert f"softmaxd: CUDA passed over: {nvcc} cannot compile a kernel for 75-virtual;90: {why}" in said
    assert "softmaxd: GPU support: NONE (" in said


@needs_nvcc
def test_gpu_auto_with_broken_hipcc_and_nvcc_is_cuda(tmp_path: Path) -> None:
    hipcc = executable(tmp_path / "bin/hipcc", "#!/bin/sh\nexit 1\n")
    status, said = configure(tmp_path / "build", SOFTMAXD_GPU="AUTO", SOFTMAXD_HIPCC=hipcc)
    assert status == 0, said
    if not Path("/dev/nvidiactl").exists():  # or CUDA is first, and hipcc is not asked
        assert f"{hipcc} cannot compile a kernel for gfx906: it said nothing and ended with 1" in said
    assert "softmaxd: GPU support: CUDA (" in said


def test_gpu_hip_of_another_vendor_gets_its_architectures_and_its_own_library(tmp_path: Path) -> None:
    hipcc = executable(tmp_path / "dtk/bin/hipcc", RECORDING)
    library = tmp_path / "dtk/hip/lib/libgalaxyhip.so"
    library.parent.mkdir(parents=True)
    library.touch()
    architectures = "gfx926;gfx928:sramecc+:xnack-;gfx936"
    build = tmp_path / "build"
    status, said = configure(
        build, SOFTMAXD_GPU="HIP", SOFTMAXD_HIPCC=hipcc, CMAKE_HIP_ARCHITECTURES=architectures, CMAKE_HIP_FLAGS="-DA=1"
    )
    assert status == 0, said
    arguments = hipcc.with_name("hipcc.arguments").read_text().split()
    offloaded = [argument for argument in arguments if argument.startswith("--offload-arch=")]
    assert offloaded == [f"--offload-arch={architecture}" for architecture in architectures.split(";")]
    assert "-DA=1" in arguments
    link = (build / "CMakeFiles/_native.dir/link.txt").read_text()
    assert "galaxyhip" in link
    assert str(library.parent) in link
    assert "amdhip64" not in link
