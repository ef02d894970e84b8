// What one GPU thread is and does: runs the kernel, waits at barriers, shuffles, pauses. block.h says whose turn it is.
#pragma once

#include <functional>

#include "fibre.h"

#if !defined(SIMT_WAVE)
#define SIMT_WAVE 64
#endif

struct dim3 {
  unsigned x;
};

namespace simt {

inline constexpr unsigned kMaxThreads = 1024;
// Of blocks that run together. The thread sanitizer ends a program with more than 8128 fibres, and takes 0.8 MB and 1
// ms for each (GCC 12, Xeon).
inline constexpr unsigned kMaxThreadsTogether = 2048;
inline constexpr unsigned kWaveLanes = SIMT_WAVE;
static_assert(kWaveLanes == 32 || kWaveLanes == 64, "SIMT_WAVE is 32 or 64");

// Where a thread is when others run.
struct Place {
  enum Kind : unsigned char { kNowhere, kBarrier, kShuffle, kPause, kReturned } kind = kNowhere;
  const char* file = "";
  unsigned line = 0;

  // Two calls of a function that waits are one place to it. Files are not compared: a name may be at two addresses.
  SIMT_UNWATCHED bool operator==(const Place& other) const { return kind == other.kind && line == other.line; }
};

struct Thread {
  Fibre fibre;
  unsigned index = 0;  // in its block
  Place place;
  unsigned barriers = 0;       // met so far
  unsigned cluster_round = 0;  // the cluster's barrier that it arrived at
  unsigned partner = 0;        // of its shuffle: a lane of the wave
  float given = 0.0F;
  float taken = 0.0F;
};

// What the threads of a block share.
struct Block {
  unsigned index = 0;
  unsigned char* shared = nullptr;
  // What the thread sanitizer is told of a barrier: who goes on from it comes after all that came to it. By turns there
  // are two of them, since who goes on may be at the next barrier before another one has gone on from this. Each block
  // has its own: a barrier of one orders nothing in another.
  char meetings[2] = {};
};

// Global, as __shared__ is: one launch at a time.
inline const std::function<void()>* kernel = nullptr;
inline Thread threads[kMaxThreadsTogether];
inline Block* block = nullptr;
inline Thread* current = nullptr;
inline dim3 thread_index;
inline dim3 block_index;
inline dim3 block_size;

SIMT_UNWATCHED inline void come(unsigned meeting) {
#if defined(__SANITIZE_THREAD__)
  __tsan_release(&block->meetings[meeting % 2]);
#else
  static_cast<void>(meeting);
#endif
}

SIMT_UNWATCHED inline void go(unsigned meeting) {
#if defined(__SANITIZE_THREAD__)
  __tsan_acquire(&block->meetings[meeting % 2]);
#else
  static_cast<void>(meeting);
#endif
}

SIMT_UNWATCHED inline void wait_at(const Place& place) {
  current->place = place;
  Fibre::leave();
}

SIMT_UNWATCHED inline void synchronize_threads(const char* file = __builtin_FILE(), unsigned line = __builtin_LINE()) {
  const unsigned meeting = ++current->barriers;
  come(meeting);
  wait_at({Place::kBarrier, file, line});
  go(meeting);
}

// The thread sanitizer is told nothing: a shuffle gives a lane a register of another one and orders no memory, not even
// within the wave (CUDA C++ Programming Guide, warp shuffle functions: "do not imply a memory barrier").
SIMT_UNWATCHED inline float exchange_with(unsigned partner, float value, const char* file, unsigned line) {
  Thread& self = *current;
  self.given = value;
  self.partner = partner;
  wait_at({Place::kShuffle, file, line});
  return self.taken;
}

SIMT_UNWATCHED inline float shuffle_xor(float value, int mask, const char* file = __builtin_FILE(),
                                        unsigned line = __builtin_LINE()) {
  return exchange_with(thread_index.x % kWaveLanes ^ static_cast<unsigned>(mask), value, file, line);
}

// From a lane of the `width` that this one is among.
SIMT_UNWATCHED inline float shuffle(float value, int lane, int width, const char* file = __builtin_FILE(),
                                    unsigned line = __builtin_LINE()) {
  const unsigned own = thread_index.x % kWaveLanes;
  return exchange_with(own - own % static_cast<unsigned>(width) + static_cast<unsigned>(lane), value, file, line);
}

// Orders memory among the lanes of the wave, as the thread sanitizer is told by an address that they share: their first
// lane's.
SIMT_UNWATCHED inline void synchronize_lanes(const char* file = __builtin_FILE(), unsigned line = __builtin_LINE()) {
#if defined(__SANITIZE_THREAD__)
  Thread* const first = current - thread_index.x % kWaveLanes;
  __tsan_release(first);
#endif
  exchange_with(thread_index.x % kWaveLanes, 0.0F, file, line);
#if defined(__SANITIZE_THREAD__)
  __tsan_acquire(first);
#endif
}

// Lets others run and goes on. For a lane that waits for what another one is to write; the rest of its wave may be at a
// barrier meanwhile. Orders no memory.
SIMT_UNWATCHED inline void pause(const char* file = __builtin_FILE(), unsigned line = __builtin_LINE()) {
  wait_at({Place::kPause, file, line});
}

// The barrier of a cluster: arrivals of all threads of all its blocks, counted over the launch.
inline unsigned cluster_threads = 0;
inline unsigned cluster_arrivals = 0;

inline void arrive_at_cluster() {
  current->cluster_round = __atomic_fetch_add(&cluster_arrivals, 1, __ATOMIC_ACQ_REL) / cluster_threads;
}

inline void wait_for_cluster() {
  while (__atomic_load_n(&cluster_arrivals, __ATOMIC_ACQUIRE) / cluster_threads == current->cluster_round) pause();
}

// The block's own memory, of as many bytes as run_together was told; aligned to 16 bytes, each byte 0xff at first.
SIMT_UNWATCHED inline unsigned char* dynamic_shared() { return block->shared; }

SIMT_UNWATCHED inline void run_thread() {
  go(0);
  (*kernel)();
  come(current->barriers + 1);
  current->place = {Place::kReturned, "", 0};
}

}  // namespace simt
