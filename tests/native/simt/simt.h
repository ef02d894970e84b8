// Runs GPU kernels on the CPU, for the sanitizers: a fibre for each thread of a block, block after block.
//
// Stands for the vendor's headers where SOFTMAXD_SIMT is defined. It has what our kernels use, no more. A fibre runs
// until it meets a barrier; when all of the block have met it, they go on. SIMT_SEED=n runs them in a random order, so
// that a result which depends on the order shows; the thread sanitizer sees a missing barrier in any order. What it
// cannot show: the rounding of a device's expf, and what a device does between barriers at the same time.
#pragma once

#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

#define __global__
#define __device__
#define __host__
#define __launch_bounds__(threads)
// Not thread_local: the address sanitizer puts no red zones there. Blocks run one after the other.
#define __shared__ static

struct dim3 {
  unsigned x;
};

// The thread sanitizer is to watch the kernels, not the fibres' own book-keeping.
#define SIMT_UNWATCHED __attribute__((no_sanitize("thread")))

namespace simt {

inline constexpr std::size_t kStackBytes = 256 * 1024;  // a sanitizer's frames are large
inline constexpr unsigned kMaxThreads = 1024;

struct Fibre {
  std::unique_ptr<char[]> stack{new char[kStackBytes]};
  ucontext_t context;
  bool is_done = false;
  unsigned barriers = 0;  // met so far
  void* address_state = nullptr;
  void* thread_state = nullptr;
};

inline dim3 thread_index;
inline dim3 block_index;
inline dim3 block_size;
inline std::vector<std::unique_ptr<Fibre>> fibres;
inline Fibre* current = nullptr;
inline ucontext_t scheduler;
inline const std::function<void()>* kernel = nullptr;
// What the thread sanitizer is told that all meet at: by turns one of two, since a fibre that goes on may meet the next
// barrier before another one has gone on from this.
inline char meetings[2];
inline const void* scheduler_stack = nullptr;
inline std::size_t scheduler_stack_bytes = 0;
inline void* scheduler_state = nullptr;
inline void* scheduler_thread = nullptr;

inline void come(unsigned meeting) {
#if defined(__SANITIZE_THREAD__)
  __tsan_release(&meetings[meeting % 2]);
#else
  static_cast<void>(meeting);
#endif
}

inline void go(unsigned meeting) {
#if defined(__SANITIZE_THREAD__)
  __tsan_acquire(&meetings[meeting % 2]);
#else
  static_cast<void>(meeting);
#endif
}

// From a fibre to the scheduler; returns when the fibre is to go on.
SIMT_UNWATCHED inline void leave() {
  Fibre& self = *current;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(self.is_done ? nullptr : &self.address_state, scheduler_stack, scheduler_stack_bytes);
#endif
#if defined(__SANITIZE_THREAD__)
  __tsan_switch_to_fiber(scheduler_thread, __tsan_switch_to_fiber_no_sync);
#endif
  swapcontext(&self.context, &scheduler);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(self.address_state, nullptr, nullptr);
#endif
}

// From the scheduler to a fibre; returns when it has met a barrier or is done.
SIMT_UNWATCHED inline void enter(unsigned thread) {
  current = fibres[thread].get();
  thread_index.x = thread;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&scheduler_state, current->stack.get(), kStackBytes);
#endif
#if defined(__SANITIZE_THREAD__)
  __tsan_switch_to_fiber(current->thread_state, __tsan_switch_to_fiber_no_sync);
#endif
  swapcontext(&scheduler, &current->context);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(scheduler_state, nullptr, nullptr);
#endif
}

SIMT_UNWATCHED inline void start_of_fibre() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, &scheduler_stack, &scheduler_stack_bytes);
#endif
  go(0);
  (*kernel)();
  come(current->barriers + 1);
  current->is_done = true;
  leave();
}

SIMT_UNWATCHED inline void synchronize_threads() {
  const unsigned meeting = ++current->barriers;
  come(meeting);
  leave();
  go(meeting);
}

SIMT_UNWATCHED inline void prepare(Fibre& fibre) {
  fibre.is_done = false;
  fibre.barriers = 0;
  fibre.address_state = nullptr;
  getcontext(&fibre.context);
  fibre.context.uc_stack.ss_sp = fibre.stack.get();
  fibre.context.uc_stack.ss_size = kStackBytes;
  fibre.context.uc_link = nullptr;
  makecontext(&fibre.context, start_of_fibre, 0);
#if defined(__SANITIZE_THREAD__)
  if (fibre.thread_state == nullptr) fibre.thread_state = __tsan_create_fiber(0);
#endif
}

SIMT_UNWATCHED inline void run_block(std::vector<unsigned>& order, std::mt19937* random) {
  for (const unsigned thread : order) prepare(*fibres[thread]);
#if defined(__SANITIZE_THREAD__)
  scheduler_thread = __tsan_get_current_fiber();
#endif
  come(0);
  std::size_t running = order.size();
  while (running > 0) {
    if (random != nullptr) std::shuffle(order.begin(), order.end(), *random);
    for (const unsigned thread : order) {
      enter(thread);
      running -= fibres[thread]->is_done ? 1 : 0;
    }
    if (running != 0 && running != order.size()) {
      std::fprintf(stderr, "simt: block %u: %zu of %zu threads wait at a barrier that the others do not meet\n",
                   block_index.x, running, order.size());
      std::abort();
    }
  }
  go(0);
  go(1);
}

// Runs every block of a launch; 0, or 1 for a launch that no device takes.
inline int run(std::size_t blocks, unsigned threads, const std::function<void()>& body) {
  if (blocks == 0 || threads == 0 || threads > kMaxThreads) return 1;
  while (fibres.size() < threads) fibres.push_back(std::make_unique<Fibre>());
  const char* const seed = std::getenv("SIMT_SEED");
  std::mt19937 random(seed == nullptr ? 0 : static_cast<unsigned>(std::atoi(seed)));
  std::vector<unsigned> order(threads);
  std::iota(order.begin(), order.end(), 0U);
  kernel = &body;
  block_size.x = threads;
  for (block_index.x = 0; block_index.x < blocks; ++block_index.x)
    run_block(order, seed == nullptr ? nullptr : &random);
  return 0;
}

}  // namespace simt

#define threadIdx simt::thread_index
#define blockIdx simt::block_index
#define blockDim simt::block_size
#define __syncthreads simt::synchronize_threads

using __half = _Float16;
inline float __half2float(__half x) { return static_cast<float>(x); }
inline __half __float2half(float x) { return static_cast<__half>(x); }

inline float __uint_as_float(std::uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

inline std::uint32_t __float_as_uint(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}
