// Small kernels, each with a fault that can be planted in it: test_faults.py proves with them that faults are found.
//
// `faults none` runs all of them without a fault, from several host threads too; `faults NAME` runs one with its own.
// Exits with kWrong and so on, which are no sanitizer's.
#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "gpu/gpu_runtime.h"

namespace {

using softmaxd::gpu::launch;

constexpr int kRight = 0;
constexpr int kWrong = 10;
constexpr int kRefused = 11;
constexpr int kUnknown = 12;

constexpr std::size_t kBlocks = 4;
constexpr unsigned kThreads = 256;

// Every kernel gets a row of kThreads numbers a block, and makes kThreads results of them.
__device__ std::size_t global_index() { return blockIdx.x * std::size_t{kThreads} + threadIdx.x; }

__global__ void read_before_written(const float* x, float* y, bool is_planted) {
  __shared__ float first;
  if (threadIdx.x == 0) first = x[global_index()];
  if (!is_planted) __syncthreads();
  y[global_index()] = first;
}

// As reduce_block in reduce.h; planted, a thread may write its next value before another has read this sum.
__device__ float sum_by_tree(float value, float* shared, bool is_planted) {
  shared[threadIdx.x] = value;
  __syncthreads();
  for (unsigned half = blockDim.x / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) shared[threadIdx.x] += shared[threadIdx.x + half];
    __syncthreads();
  }
  const float sum = shared[0];
  if (!is_planted) __syncthreads();
  return sum;
}

__global__ void written_before_read(const float* x, float* y, bool is_planted) {
  __shared__ float shared[kThreads];
  const float sum = sum_by_tree(x[global_index()], shared, is_planted);
  y[global_index()] = sum_by_tree(2 * sum, shared, is_planted) / (2 * kThreads);
}

__device__ float sum_of_wave(float value, int lanes) {
  for (int mask = lanes / 2; mask > 0; mask /= 2) value += __shfl_xor(value, mask);
  return value;
}

__device__ float sum_by_waves(float value, float* shared, int lanes, bool is_planted) {
  const float of_wave = sum_of_wave(value, lanes);
  if (threadIdx.x % lanes == 0) shared[threadIdx.x / lanes] = of_wave;
  __syncthreads();
  float sum = 0;
  for (unsigned wave = 0; wave < kThreads / lanes; ++wave) sum += shared[wave];
  if (!is_planted) __syncthreads();
  return sum;
}

// Planted, a wave that runs ahead through its shuffles overwrites what another has not read.
__global__ void written_before_read_by_waves(const float* x, float* y, bool is_planted) {
  __shared__ float shared[kThreads];
  const float sum = sum_by_waves(x[global_index()], shared, warpSize, is_planted);
  y[global_index()] = sum_by_waves(sum, shared, warpSize, is_planted) / kThreads;
}

// Within a wave, a shuffle between the write and the read: it happens to do, and a compiler may move either across.
__global__ void shuffle_for_barrier(const float* x, float* y, bool is_planted) {
  __shared__ float shared[kThreads];
  shared[threadIdx.x] = x[global_index() - threadIdx.x];
  if (is_planted) {
    __shfl_xor(0.0F, 1);
  } else {
    __syncthreads();
  }
  y[global_index()] = shared[threadIdx.x ^ 1];
}

// Planted, it takes every device's wave to have 64 lanes.
__global__ void wave_of_64(const float* x, float* y, bool is_planted) {
  __shared__ float shared[kThreads];
  y[global_index()] = sum_by_waves(x[global_index()], shared, is_planted ? 64 : warpSize, false);
}

// Planted, lanes shuffle with one that has returned.
__global__ void shuffle_with_returned(const float* x, float* y, bool is_planted) {
  y[global_index()] = x[global_index() - threadIdx.x];
  if (is_planted && threadIdx.x % 2 == 1) return;
  y[global_index()] = __shfl_xor(y[global_index()], 1);
}

__global__ void shuffle_in_branch(const float* x, float* y, bool is_planted) {
  float value = x[global_index() - threadIdx.x];
  if (!is_planted || threadIdx.x < 10) value = __shfl_xor(value, 1);
  __syncthreads();
  y[global_index()] = value;
}

__global__ void shuffles_in_branches(const float* x, float* y, bool is_planted) {
  float value = x[global_index() - threadIdx.x];
  if (!is_planted || threadIdx.x < 10) {
    value = __shfl_xor(value, 1);
  } else {
    value = __shfl_xor(value, 1);
  }
  y[global_index()] = value;
}

// Planted, a part of one wave does not come.
__global__ void barrier_in_branch(const float* x, float* y, bool is_planted) {
  if (!is_planted || threadIdx.x < 100) __syncthreads();
  y[global_index()] = x[global_index() - threadIdx.x];
}

// Planted, whole waves do not come.
__global__ void barrier_of_some_waves(const float* x, float* y, bool is_planted) {
  if (!is_planted || threadIdx.x < 128) __syncthreads();
  y[global_index()] = x[global_index() - threadIdx.x];
}

// Not inlined, or the undefined-behaviour sanitizer, which then knows the array, would be before the other.
__attribute__((noinline)) __device__ void store(float* shared, unsigned index, float value) { shared[index] = value; }

__global__ void shared_past_end(const float* x, float* y, bool is_planted) {
  __shared__ float shared[kThreads];
  store(shared, threadIdx.x + is_planted, x[global_index() - threadIdx.x]);
  __syncthreads();
  y[global_index()] = shared[threadIdx.x];
}

__global__ void global_past_end(const float* x, float* y, bool is_planted) {
  y[global_index() + is_planted] = x[global_index() - threadIdx.x];
}

__global__ void misaligned_vector(const float* x, float* y, bool is_planted) {
  struct alignas(16) Vector {
    float items[4];
  };
  const float* const row = x + (global_index() - threadIdx.x);
  y[global_index()] = reinterpret_cast<const Vector*>(row + is_planted)->items[0];
}

__global__ void too_many_threads(const float* x, float* y, bool) {
  y[global_index()] = x[global_index() - threadIdx.x];
}

float first_of(const float* row) { return row[0]; }

float sum_of(const float* row) {
  float sum = 0;
  for (unsigned i = 0; i < kThreads; ++i) sum += row[i];
  return sum;
}

struct Fault {
  std::string name;
  void (*kernel)(const float* x, float* y, bool is_planted);
  float (*result)(const float* row);  // the same in all threads of the block
  unsigned threads_if_planted = kThreads;
};

const Fault kFaults[] = {
    {"read_before_written", read_before_written, first_of},
    {"written_before_read", written_before_read, sum_of},
    {"written_before_read_by_waves", written_before_read_by_waves, sum_of},
    {"shuffle_for_barrier", shuffle_for_barrier, first_of},
    {"wave_of_64", wave_of_64, sum_of},
    {"shuffle_with_returned", shuffle_with_returned, first_of},
    {"shuffle_in_branch", shuffle_in_branch, first_of},
    {"shuffles_in_branches", shuffles_in_branches, first_of},
    {"barrier_in_branch", barrier_in_branch, first_of},
    {"barrier_of_some_waves", barrier_of_some_waves, first_of},
    {"shared_past_end", shared_past_end, first_of},
    {"global_past_end", global_past_end, first_of},
    {"misaligned_vector", misaligned_vector, first_of},
    {"too_many_threads", too_many_threads, first_of, 1025},
};

// Runs one kernel; returns what main is to return.
int run(const Fault& fault, bool is_planted) {
  std::vector<float> x(kBlocks * kThreads);
  std::vector<float> y(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(1 + i * 7 % 61);  // sums of it are exact
  const auto error = launch(fault.kernel, kBlocks, is_planted ? fault.threads_if_planted : kThreads, nullptr,
                            static_cast<const float*>(x.data()), y.data(), is_planted);
  if (error != softmaxd::gpu::kSuccess) {
    std::fprintf(stderr, "%s: launch refused\n", fault.name.c_str());
    return kRefused;
  }
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < x.size(); ++i) wrong += y[i] != fault.result(x.data() + i / kThreads * kThreads);
  if (wrong != 0) std::fprintf(stderr, "%s: %zu wrong results\n", fault.name.c_str(), wrong);
  return wrong == 0 ? kRight : kWrong;
}

int run_all() {
  int worst = kRight;
  for (const Fault& fault : kFaults) worst = std::max(worst, run(fault, false));
  return worst;
}

// From the main thread, then from three at once.
int run_controls() {
  int worst = run_all();
  int of_threads[3];
  std::vector<std::thread> threads;
  for (int& of_thread : of_threads) threads.emplace_back([&of_thread] { of_thread = run_all(); });
  for (std::thread& thread : threads) thread.join();
  for (const int of_thread : of_threads) worst = std::max(worst, of_thread);
  return worst;
}

}  // namespace

int main(int count, char** arguments) {
  const std::string planted = count == 2 ? arguments[1] : "";
  if (planted == "none") return run_controls();
  for (const Fault& fault : kFaults) {
    if (fault.name == planted) return run(fault, true);
  }
  std::fprintf(stderr, "no such fault: '%s'\n", planted.c_str());
  return kUnknown;
}
