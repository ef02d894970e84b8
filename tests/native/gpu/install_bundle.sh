# Source this in the tree's root, on a machine with an NVIDIA device, nvcc, CMake and ninja but no package index, after
# `make gpu-bundle` on one that has an index and copying the tree with build/gpu and proto/softmaxd_proto/v1: it builds
# the native module for CUDA and makes `make test-gpu GPU_PYTHON=python3` work, without changing the machine's Python.
set -e
bundle="$PWD/build/gpu"
packages="$bundle/packages"
python3 -m pip install --quiet --no-index --no-deps --target "$packages" "$bundle"/wheels/*.whl
export PYTHONPATH="$PWD/proto:$PWD/client:$PWD/server:$PWD/native:$packages${PYTHONPATH:+:$PYTHONPATH}"
hwy=$(dirname "$bundle"/hwy/usr/lib/*/libhwy.so)
export LD_LIBRARY_PATH="$hwy${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
export PATH="/usr/local/cuda/bin:$PATH"
cmake -S native -B "$bundle/native" -G Ninja -DSOFTMAXD_GPU=CUDA -Dhwy_DIR="$hwy/cmake/hwy" \
  -Dpybind11_DIR="$packages/pybind11/share/cmake/pybind11" \
  -DPython_EXECUTABLE="$(command -v python3)" -DPython_FIND_VIRTUALENV=FIRST > "$bundle/configure.log"
cmake --build "$bundle/native" > "$bundle/build.log"
cp "$bundle"/native/_native*.so native/softmaxd_native/
# The programs came with the tree; its copied files may look newer than them.
find "$bundle" -maxdepth 1 -type f -exec touch {} +
set +e
