# Each target does all of its set-up. `make demo` and `make test` are all that a fresh machine needs.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

CXX ?= g++
SANITIZED := build/sanitized

.PHONY: help setup demo test test-gpu bench-gpu sanitize lint format bench clean

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

$(VENV)/native.stamp: $(NATIVE_SOURCES) $(VENV)/made.stamp
	$(BIN)/pip install --quiet ./native
	@touch $@

demo: setup ## Start a server, stream real tensors through the client, check and time them
	$(BIN)/python tests/e2e/demo.py

test: setup lint ## Check the style and run the tests
	$(BIN)/pytest

sanitize: setup ## Run the CPU and GPU kernels under the address, undefined-behaviour and thread sanitizers (5 minutes)
	@mkdir -p $(SANITIZED)
	set -e; for kind in address,undefined thread; do \
	  flags="-g -O1 -std=c++20 -fsanitize=$$kind -fno-sanitize-recover=all -Inative/src -Inative/include"; \
	  $(CXX) $$flags tests/native/sanitized.cpp native/src/cpu/*.cpp -lhwy -pthread -o $(SANITIZED)/cpu-$$kind; \
	  $(SANITIZED)/cpu-$$kind; \
	  $(CXX) $$flags -DSOFTMAXD_SIMT -Itests/native/simt -Itests/native/gpu -Wno-unknown-pragmas -x c++ \
	    tests/native/gpu/kernels_test.hip native/src/gpu/*.hip -o $(SANITIZED)/gpu-$$kind; \
	  SIMT_SEED=1 $(SANITIZED)/gpu-$$kind --quick; \
	done

# What the GPU targets compile with: NVCC for NVIDIA. They need no .venv, so that a machine with a device and no network
# can run what was built elsewhere.
NVCC ?= nvcc
NVCC_ARCHITECTURE ?= sm_90
GPU_BUILD := build/gpu
GPU_SOURCES := $(wildcard native/src/gpu/*.hip)
GPU_HEADERS := $(wildcard native/src/gpu/*.h tests/native/gpu/*.h)
NVCC_FLAGS := -x cu -std=c++17 -O3 -arch=$(NVCC_ARCHITECTURE) -Inative/src -Inative/include -Itests/native/gpu

test-gpu: $(GPU_BUILD)/kernels_test ## Run the GPU kernels on an NVIDIA device; fails without one
	$<
	compute-sanitizer --tool memcheck --error-exitcode 3 $< --quick
	compute-sanitizer --tool racecheck --error-exitcode 3 $< --quick

bench-gpu: $(GPU_BUILD)/kernels_bench ## Time the GPU kernels on an NVIDIA device beside a copy
	$<

$(GPU_BUILD)/kernels_test: tests/native/gpu/kernels_test.hip $(GPU_SOURCES) $(GPU_HEADERS)
	@mkdir -p $(@D)
	$(NVCC) $(NVCC_FLAGS) $(filter %.hip,$^) -o $@

$(GPU_BUILD)/kernels_bench: bench/gpu_kernels.cu $(GPU_SOURCES) $(GPU_HEADERS)
	@mkdir -p $(@D)
	$(NVCC) $(NVCC_FLAGS) $(filter %.hip %.cu,$^) -o $@

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
