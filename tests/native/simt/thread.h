// What one GPU thread is and does: runs the kernel, waits at barriers, shuffles. block.h says whose turn it is.
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
inline constexpr unsigned kWaveLanes = SIMT_WAVE;
static_assert(kWaveLanes == 32 || kWaveLanes == 64, "SIMT_WAVE is 32 or 64");

// Where a thread is when others run.
struct Place {
  enum Kind : unsigned char { kNowhere, kBarrier, kShuffle, kReturned } kind = kNowhere;
  const char* file = "";
  unsigned line = 0;

  // Two calls of a function that waits are one place to it. Files are not compared: a name may be at two addresses.
  SIMT_UNWATCHED bool operator==(const Place& other) const { return kind == other.kind && line == other.line; }
};

struct Thread {
  Fibre fibre;
  Place place;
  unsigned barriers = 0;  // met so far
  unsigned partner = 0;   // of its shuffle: a lane of the wave
  float given = 0.0F;
  float taken = 0.0F;
};

// Global, as __shared__ is: one launch at a time.
inline const std::function<void()>* kernel = nullptr;
inline Thread threads[kMaxThreads];
inline Thread* current = nullptr;
inline dim3 thread_index;
inline dim3 block_index;
inline dim3 block_size;

// What the thread sanitizer is told of a barrier: who goes on from it comes after all that came to it. By turns there
// are two of them, since who goes on may be at the next barrier before another one has gone on from this.
inline char meetings[2];

SIMT_UNWATCHED inline void come(unsigned meeting) {
#if defined(__SANITIZE_THREAD__)
  __tsan_release(&meetings[meeting % 2]);
#else
  static_cast<void>(meeting);
#endif
}

SIMT_UNWATCHED inline void go(unsigned meeting) {
#if defined(__SANITIZE_THREAD__)
  __tsan_acquire(&meetings[meeting % 2]);
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
SIMT_UNWATCHED inline float shuffle_xor(float value, int mask, const char* file = __builtin_FILE(),
                                        unsigned line = __builtin_LINE()) {
  Thread& self = *current;
  self.given = value;
  self.partner = thread_index.x % kWaveLanes ^ static_cast<unsigned>(mask);
  wait_at({Place::kShuffle, file, line});
  return self.taken;
}

SIMT_UNWATCHED inline void run_thread() {
  go(0);
  (*kernel)();
  come(current->barriers + 1);
  current->place = {Place::kReturned, "", 0};
}

}  // namespace simt
