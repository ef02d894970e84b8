// Small kernels, each with a fault that can be planted in it: test_faults.py proves with them that faults are found.
//
// `faults none` runs all of them without a fault, from several host threads too; `faults NAME` runs one with its own.
// Exits with kWrong and so on, which are no sanitizer's.
#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <functional>
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

// Of a launch. The shared memory is for kernels whose blocks run together.
struct Shape {
  std::size_t blocks = kBlocks;
  unsigned threads = kThreads;
  std::size_t shared_bytes = kThreads * sizeof(float);
};

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

// The kernels from here on are run with all blocks together. What these have in global memory:
struct Exchange {
  float* of_blocks;
  unsigned* arrivals;
};

__device__ float* block_memory() { return reinterpret_cast<float*>(simt::dynamic_shared()); }

// Returns when `arrivals` blocks have come, of every meeting so far.
template <int kArrive = __ATOMIC_RELEASE, int kLook = __ATOMIC_ACQUIRE>
__device__ void meet_blocks(const Exchange& exchange, std::size_t arrivals) {
  __syncthreads();
  if (threadIdx.x == 0) {
    __atomic_fetch_add(exchange.arrivals, 1, kArrive);
    while (__atomic_load_n(exchange.arrivals, kLook) < arrivals) simt::pause();
  }
  __syncthreads();
}

__device__ void give(const Exchange& exchange, float of_block) {
  if (threadIdx.x == 0) exchange.of_blocks[blockIdx.x] = of_block;
}

__device__ float sum_of_given(const Exchange& exchange) {
  float sum = 0;
  for (std::size_t block = 0; block < kBlocks; ++block) sum += exchange.of_blocks[block];
  return sum;
}

__global__ void blocks_not_waited_for(const float* x, float* y, const Exchange& exchange, bool is_planted) {
  give(exchange, sum_by_tree(x[global_index()], block_memory(), false));
  meet_blocks(exchange, is_planted ? 0 : kBlocks);
  y[global_index()] = sum_of_given(exchange);
}

// Planted, a block that runs ahead overwrites what another has not read.
__global__ void written_before_read_by_blocks(const float* x, float* y, const Exchange& exchange, bool is_planted) {
  give(exchange, sum_by_tree(x[global_index()], block_memory(), false));
  meet_blocks(exchange, kBlocks);
  const float sum = sum_of_given(exchange);
  meet_blocks(exchange, is_planted ? kBlocks : 2 * kBlocks);
  give(exchange, 2 * sum);
  meet_blocks(exchange, 3 * kBlocks);
  y[global_index()] = sum_of_given(exchange) / (2 * kBlocks);
}

__global__ void blocks_wait_for_one_more(const float* x, float* y, const Exchange& exchange, bool is_planted) {
  give(exchange, sum_by_tree(x[global_index()], block_memory(), false));
  meet_blocks(exchange, kBlocks + is_planted);
  y[global_index()] = sum_of_given(exchange);
}

__global__ void block_does_not_come(const float* x, float* y, const Exchange& exchange, bool is_planted) {
  give(exchange, sum_by_tree(x[global_index()], block_memory(), false));
  if (is_planted && blockIdx.x == 1) return;
  meet_blocks(exchange, kBlocks);
  y[global_index()] = sum_of_given(exchange);
}

__global__ void relaxed_for_release(const float* x, float* y, const Exchange& exchange, bool is_planted) {
  give(exchange, sum_by_tree(x[global_index()], block_memory(), false));
  if (is_planted) {
    meet_blocks<__ATOMIC_RELAXED>(exchange, kBlocks);
  } else {
    meet_blocks<__ATOMIC_ACQ_REL>(exchange, kBlocks);
  }
  y[global_index()] = sum_of_given(exchange);
}

__global__ void relaxed_for_acquire(const float* x, float* y, const Exchange& exchange, bool is_planted) {
  give(exchange, sum_by_tree(x[global_index()], block_memory(), false));
  if (is_planted) {
    meet_blocks<__ATOMIC_RELEASE, __ATOMIC_RELAXED>(exchange, kBlocks);
  } else {
    meet_blocks(exchange, kBlocks);
  }
  y[global_index()] = sum_of_given(exchange);
}

__global__ void dynamic_shared_past_end(const float* x, float* y, const Exchange& exchange, bool is_planted) {
  store(block_memory(), threadIdx.x + is_planted, x[global_index() - threadIdx.x]);
  meet_blocks(exchange, kBlocks);
  y[global_index()] = block_memory()[threadIdx.x];
}

__global__ void dynamic_shared_not_written(const float* x, float* y, const Exchange& exchange, bool is_planted) {
  if (!is_planted) block_memory()[threadIdx.x] = x[global_index() - threadIdx.x];
  meet_blocks(exchange, kBlocks);
  y[global_index()] = block_memory()[threadIdx.x];
}

// Planted, the blocks take what is one and the same in all of them for their own.
__global__ void static_shared_together(const float* x, float* y, const Exchange& exchange, bool is_planted) {
  __shared__ float of_all_blocks[1];
  float* const first = is_planted ? of_all_blocks : block_memory();
  if (threadIdx.x == 0) first[0] = x[global_index()];
  meet_blocks(exchange, kBlocks);
  y[global_index()] = first[0];
}

__global__ void barrier_in_branch_together(const float* x, float* y, const Exchange& exchange, bool is_planted) {
  meet_blocks(exchange, kBlocks);
  if (!is_planted || threadIdx.x < 100) __syncthreads();
  y[global_index()] = x[global_index() - threadIdx.x];
}

__global__ void too_many_blocks(const float* x, float* y, const Exchange&, bool) {
  y[global_index()] = x[global_index() - threadIdx.x];
}

__global__ void too_many_threads_together(const float* x, float* y, const Exchange&, bool) {
  y[global_index()] = x[global_index() - threadIdx.x];
}

__global__ void too_much_shared(const float* x, float* y, const Exchange&, bool) {
  y[global_index()] = x[global_index() - threadIdx.x];
}

using Start = std::function<softmaxd::gpu::Error(const Shape& shape, const float* x, float* y, bool is_planted)>;

Start one_by_one(void (*kernel)(const float* x, float* y, bool is_planted)) {
  return [=](const Shape& shape, const float* x, float* y, bool is_planted) {
    return launch(kernel, shape.blocks, shape.threads, nullptr, x, y, is_planted);
  };
}

Start together(void (*kernel)(const float* x, float* y, const Exchange& exchange, bool is_planted)) {
  return [=](const Shape& shape, const float* x, float* y, bool is_planted) {
    std::vector<float> of_blocks(kBlocks);
    unsigned arrivals = 0;
    const Exchange exchange{of_blocks.data(), &arrivals};
    return simtLaunchTogether(nullptr, shape.blocks, shape.threads, shape.shared_bytes,
                              [&] { kernel(x, y, exchange, is_planted); });
  };
}

float first_of(const float* x, std::size_t block) { return x[block * kThreads]; }

float sum_of(const float* x, std::size_t block) {
  float sum = 0;
  for (unsigned i = 0; i < kThreads; ++i) sum += x[block * kThreads + i];
  return sum;
}

float sum_of_all(const float* x, std::size_t) {
  float sum = 0;
  for (std::size_t block = 0; block < kBlocks; ++block) sum += sum_of(x, block);
  return sum;
}

struct Fault {
  std::string name;
  Start start;
  float (*result)(const float* x, std::size_t block);  // the same in all threads of the block
  Shape shape_if_planted = {};
};

const Fault kFaults[] = {
    {"read_before_written", one_by_one(read_before_written), first_of},
    {"written_before_read", one_by_one(written_before_read), sum_of},
    {"written_before_read_by_waves", one_by_one(written_before_read_by_waves), sum_of},
    {"shuffle_for_barrier", one_by_one(shuffle_for_barrier), first_of},
    {"wave_of_64", one_by_one(wave_of_64), sum_of},
    {"shuffle_with_returned", one_by_one(shuffle_with_returned), first_of},
    {"shuffle_in_branch", one_by_one(shuffle_in_branch), first_of},
    {"shuffles_in_branches", one_by_one(shuffles_in_branches), first_of},
    {"barrier_in_branch", one_by_one(barrier_in_branch), first_of},
    {"barrier_of_some_waves", one_by_one(barrier_of_some_waves), first_of},
    {"shared_past_end", one_by_one(shared_past_end), first_of},
    {"global_past_end", one_by_one(global_past_end), first_of},
    {"misaligned_vector", one_by_one(misaligned_vector), first_of},
    {"too_many_threads", one_by_one(too_many_threads), first_of, {.threads = 1025}},
    {"blocks_not_waited_for", together(blocks_not_waited_for), sum_of_all},
    {"written_before_read_by_blocks", together(written_before_read_by_blocks), sum_of_all},
    {"blocks_wait_for_one_more", together(blocks_wait_for_one_more), sum_of_all},
    {"block_does_not_come", together(block_does_not_come), sum_of_all},
    {"relaxed_for_release", together(relaxed_for_release), sum_of_all},
    {"relaxed_for_acquire", together(relaxed_for_acquire), sum_of_all},
    {"dynamic_shared_past_end", together(dynamic_shared_past_end), first_of},
    {"dynamic_shared_not_written", together(dynamic_shared_not_written), first_of},
    {"static_shared_together", together(static_shared_together), first_of},
    {"barrier_in_branch_together", together(barrier_in_branch_together), first_of},
    {"too_many_blocks", together(too_many_blocks), first_of, {.blocks = simt::kMaxBlocksTogether + 1, .threads = 1}},
    {"too_many_threads_together", together(too_many_threads_together), first_of, {.blocks = 5, .threads = 1024}},
    {"too_much_shared", together(too_much_shared), first_of, {.shared_bytes = simt::kMaxSharedBytes + 1}},
};

// Runs one kernel; returns what main is to return.
int run(const Fault& fault, bool is_planted) {
  std::vector<float> x(kBlocks * kThreads);
  std::vector<float> y(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(1 + i * 7 % 61);  // sums of it are exact
  const auto error = fault.start(is_planted ? fault.shape_if_planted : Shape{}, x.data(), y.data(), is_planted);
  if (error != softmaxd::gpu::kSuccess) {
    std::fprintf(stderr, "%s: launch refused\n", fault.name.c_str());
    return kRefused;
  }
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < x.size(); ++i) wrong += y[i] != fault.result(x.data(), i / kThreads);
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
