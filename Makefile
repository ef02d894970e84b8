# Each target does all of its set-up. `make demo` and `make test` are all that a fresh machine needs.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

CXX ?= g++
SANITIZED := build/sanitized
CPUS := $(shell nproc)

# The device core's sources and what they need of the host's.
GPU_KERNELS := $(wildcard native/src/gpu/*.hip) native/src/gpu/variants.cpp
GPU_CORE := $(GPU_KERNELS) $(filter-out $(GPU_KERNELS),$(wildcard native/src/gpu/*.cpp))
GPU_HEADERS := $(wildcard native/src/gpu/*.h native/include/softmaxd/*.h tests/native/gpu/*.h native/src/cpu/thread_pool.h)
HOST_SOURCES := native/src/cpu/thread_pool.cpp native/src/cpu/topology.cpp native/src/dtype.cpp

# Programs that were built for a run are kept.
.SECONDARY:

.PHONY: help setup demo test test-gpu bench-gpu gpu-bundle sanitize fuzz lint format bench clean

help: ## List the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*##/\t/' | expand -t 12

PURE_SOURCES := pyproject.toml hatch_build.py $(wildcard proto/softmaxd/v1/*.proto)
NATIVE_SOURCES := $(shell find native -type f -not -path '*/build/*' -not -path '*/__pycache__/*')

setup: $(VENV)/pure.stamp $(VENV)/native.stamp ## Make .venv with the server, the client, the native module and the tools

$(VENV)/made.stamp:
	@deploy/system-packages $(PYTHON)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	@touch $@

$(VENV)/pure.stamp: $(PURE_SOURCES) $(VENV)/made.stamp
	$(BIN)/pip install --quiet --editable '.[server,dev]'
	@touch $@

$(VENV)/native.stamp: $(NATIVE_SOURCES) $(VENV)/made.stamp $(VENV)/gpu.choice
	$(BIN)/pip install --quiet ./native
	@touch $@

# Changes with SOFTMAXD_GPU, so that the native module is built anew.
$(VENV)/gpu.choice: $(VENV)/made.stamp FORCE
	@echo "$(SOFTMAXD_GPU)" | cmp --silent - $@ || echo "$(SOFTMAXD_GPU)" > $@

FORCE:

demo: setup ## Start a server, stream real tensors through the client, check and time them
	$(BIN)/python tests/e2e/demo.py

test: setup lint ## Check the style, run the tests, run the kernels under the sanitizers
	$(BIN)/pytest
	$(MAKE) --no-print-directory --jobs=$(CPUS) --output-sync=target sanitize

# The GPU's programs run on a device that the CPU simulates: tests/native/simt. One that passed runs again when it is
# built again.
sanitize: $(foreach kind,address thread,$(foreach program,cpu kernels-32 kernels-64 context,$(SANITIZED)/passed/$(program)-$(kind))) ## Run the kernels under the address, undefined-behaviour and thread sanitizers (5 minutes)

SANITIZE_address := address,undefined
SANITIZE_thread := thread
SANITIZED_COMPILE = $(CXX) -g -O1 -std=c++20 -fsanitize=$(SANITIZE_$*) -fno-sanitize-recover=all -pthread \
  -Inative/src -Inative/include
SIMULATED_COMPILE = $(SANITIZED_COMPILE) -DSOFTMAXD_SIMT -Itests/native/simt -Itests/native/gpu -Wno-unknown-pragmas
SIMULATOR := $(wildcard tests/native/simt/*.h)

$(SANITIZED)/passed/cpu-%: $(SANITIZED)/cpu-%
	$<
	@mkdir -p $(@D) && touch $@

$(SANITIZED)/passed/%: $(SANITIZED)/%
	$< --quick
	SIMT_SEED=1 $< --quick
	@mkdir -p $(@D) && touch $@

$(SANITIZED)/cpu-%: tests/native/sanitized.cpp native/src/dtype.cpp native/src/shared_mapping.cpp \
  $(wildcard native/src/cpu/*.cpp native/src/cpu/*.h native/include/softmaxd/*.h) | $(VENV)/made.stamp
	@mkdir -p $(@D)
	$(SANITIZED_COMPILE) $(filter %.cpp,$^) -lhwy -o $@

$(SANITIZED)/kernels-32-%: tests/native/gpu/kernels_test.hip $(GPU_KERNELS) $(GPU_HEADERS) $(SIMULATOR) | $(VENV)/made.stamp
	@mkdir -p $(@D)
	$(SIMULATED_COMPILE) -DSIMT_WAVE=32 -x c++ $(filter %.hip %.cpp,$^) -o $@

$(SANITIZED)/kernels-64-%: tests/native/gpu/kernels_test.hip $(GPU_KERNELS) $(GPU_HEADERS) $(SIMULATOR) | $(VENV)/made.stamp
	@mkdir -p $(@D)
	$(SIMULATED_COMPILE) -DSIMT_WAVE=64 -x c++ $(filter %.hip %.cpp,$^) -o $@

$(SANITIZED)/context-%: tests/native/gpu/context_test.cpp $(GPU_CORE) $(HOST_SOURCES) $(GPU_HEADERS) $(SIMULATOR) | $(VENV)/made.stamp
	@mkdir -p $(@D)
	$(SIMULATED_COMPILE) -x c++ $(filter %.hip %.cpp,$^) -o $@

# What was found is kept in build/fuzz; `PYTHONPATH=tests .venv/bin/python -m fuzz FILE` checks it again.
MINUTES ?= 1
FUZZED := build/fuzz

fuzz: setup ## Fuzz the codec and the dataplane beside protobuf's own classes: make fuzz MINUTES=10
	$(BIN)/pip install --quiet --editable '.[fuzz]'
	@mkdir -p $(FUZZED)/inputs
	PYTHONPATH=tests $(BIN)/python -m fuzz $(FUZZED)/inputs -max_total_time=$$(($(MINUTES) * 60)) -max_len=1024 \
	  -timeout=10 -artifact_prefix=$(FUZZED)/ -verbosity=0 -print_final_stats=1

# What the GPU targets run with: NVCC compiles; GPU_PYTHON has the server's packages, the tests' and a softmaxd_native that
# was built with SOFTMAXD_GPU=CUDA. Set it where `make setup` cannot fetch packages.
NVCC ?= nvcc
NVCC_ARCHITECTURE ?= sm_90
GPU_PYTHON ?=
GPU_BUILD := build/gpu
NVCC_COMPILE = $(NVCC) -std=c++20 -O3 -arch=$(NVCC_ARCHITECTURE) -Inative/src -Inative/include -Itests/native/gpu -x cu
GPU_TESTS := tests/native/test_gpu_context.py tests/server/test_backends.py tests/server/test_gpu_backend.py \
  tests/server/test_batch_invariance.py tests/e2e/test_gpu_server.py

ifeq ($(GPU_PYTHON),)
test-gpu: export SOFTMAXD_GPU = CUDA
test-gpu: setup
test-gpu: GPU_PYTHON := $(BIN)/python
endif
test-gpu: $(GPU_BUILD)/kernels_test $(GPU_BUILD)/context_test ## Run kernels, device core and server on an NVIDIA device; fails without one
	$(GPU_BUILD)/kernels_test
	$(GPU_BUILD)/context_test
	compute-sanitizer --tool memcheck --error-exitcode 3 $(GPU_BUILD)/kernels_test --quick
	compute-sanitizer --tool racecheck --error-exitcode 3 $(GPU_BUILD)/kernels_test --quick
	compute-sanitizer --tool memcheck --error-exitcode 3 $(GPU_BUILD)/context_test --quick
	SOFTMAXD_TEST_GPU=cuda $(GPU_PYTHON) -m pytest $(GPU_TESTS)

bench-gpu: $(GPU_BUILD)/libgpu_kernels.so ## Time the GPU kernels on an NVIDIA device beside a copy, PyTorch and Triton
	python3 bench/kernels.py --backend cuda

# NumPy comes with the PyTorch that the benchmarks need there.
GPU_BUNDLE_PYTHON ?= 3.12
GPU_BUNDLE_PACKAGES := grpcio grpcio-health-checking grpcio-reflection 'protobuf>=6.31.1,<7' ml-dtypes click rich \
  prometheus-client pydantic-settings uvloop pytest pytest-asyncio hypothesis pybind11
HWY_LIBRARY_DIR = $(dir $(firstword $(wildcard /usr/lib/*/libhwy.so)))

gpu-bundle: setup $(GPU_BUILD)/kernels_test $(GPU_BUILD)/context_test $(GPU_BUILD)/libgpu_kernels.so ## Collect in build/gpu what a GPU machine without a package index needs: tests/native/gpu/install_bundle.sh
	rm -rf $(GPU_BUILD)/wheels $(GPU_BUILD)/hwy
	$(BIN)/pip download --quiet --only-binary=:all: --python-version $(GPU_BUNDLE_PYTHON) --dest $(GPU_BUILD)/wheels $(GPU_BUNDLE_PACKAGES)
	rm -f $(GPU_BUILD)/wheels/numpy-*.whl
	mkdir -p $(GPU_BUILD)/hwy/usr/include $(GPU_BUILD)/hwy$(HWY_LIBRARY_DIR)cmake
	cp -r /usr/include/hwy $(GPU_BUILD)/hwy/usr/include
	cp -r $(HWY_LIBRARY_DIR)cmake/hwy $(GPU_BUILD)/hwy$(HWY_LIBRARY_DIR)cmake
	cp -L $(HWY_LIBRARY_DIR)libhwy*.so* $(GPU_BUILD)/hwy$(HWY_LIBRARY_DIR)

$(GPU_BUILD)/kernels_test: tests/native/gpu/kernels_test.hip $(GPU_KERNELS) $(GPU_HEADERS)
	@mkdir -p $(@D)
	$(NVCC_COMPILE) $(filter %.hip %.cpp,$^) -o $@

$(GPU_BUILD)/context_test: tests/native/gpu/context_test.cpp $(GPU_CORE) $(HOST_SOURCES) $(GPU_HEADERS)
	@mkdir -p $(@D)
	$(NVCC_COMPILE) $(filter %.hip %.cpp,$^) -o $@

$(GPU_BUILD)/libgpu_kernels.so: bench/gpu_kernels.cpp $(GPU_KERNELS) $(GPU_HEADERS)
	@mkdir -p $(@D)
	$(NVCC_COMPILE) -shared -Xcompiler -fPIC $(filter %.hip %.cpp,$^) -o $@

# The GPU part of the native module on a device that the CPU simulates; the tests build it when they need it.
SIMT_MODULE := build/simt/softmaxd_simt$(shell $(PYTHON) -c 'import sysconfig; print(sysconfig.get_config_var("EXT_SUFFIX"))')
SIMT_SOURCES := tests/native/simt/module.cpp native/bindings/gpu_binding.cpp $(HOST_SOURCES) $(GPU_CORE)

$(SIMT_MODULE): $(SIMT_SOURCES) $(GPU_HEADERS) $(SIMULATOR) $(wildcard native/bindings/*.h)
	@mkdir -p $(@D)
	$(CXX) -std=c++20 -O2 -fPIC -shared -fvisibility=hidden -pthread -DSOFTMAXD_SIMT -Wno-unknown-pragmas \
	  $$($(BIN)/python -m pybind11 --includes) -Itests/native/simt -Inative/src -Inative/include -Inative/bindings \
	  -x c++ $(SIMT_SOURCES) -o $@

lint: setup
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/buf lint proto
	git ls-files '*.h' '*.cpp' '*.hip' '*.cu' | xargs $(BIN)/clang-format --dry-run --Werror

format: setup ## Format the sources
	$(BIN)/ruff check --fix
	$(BIN)/ruff format
	git ls-files '*.h' '*.cpp' '*.hip' '*.cu' | xargs $(BIN)/clang-format -i

bench: setup ## Measure kernels and serving beside their peers (minutes; see bench/README.md)
	$(BIN)/pip install --quiet '.[bench]'
	$(BIN)/python bench/kernels.py --backend cpu
	$(BIN)/python bench/serving.py

clean: ## Remove everything that the other targets made
	rm -rf $(VENV) build native/build proto/softmaxd_proto/v1 .mypy_cache .pytest_cache .ruff_cache .hypothesis
