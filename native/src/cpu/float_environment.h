// Subnormal numbers are flushed to zero while a kernel runs: GPUs do so too, and on a CPU each costs over a hundred
// cycles, which would let one client's data slow another's down.
#pragma once

#include <cstdint>

#if defined(__x86_64__) || defined(_M_X64)
#include <immintrin.h>
#endif

namespace softmaxd::cpu {

class FlushToZero {
 public:
#if defined(__x86_64__) || defined(_M_X64)
  FlushToZero() : saved_(_mm_getcsr()) { _mm_setcsr(saved_ | kFlushResults | kFlushOperands); }
  ~FlushToZero() { _mm_setcsr(saved_); }

 private:
  static constexpr unsigned kFlushResults = 0x8000;
  static constexpr unsigned kFlushOperands = 0x0040;
  const unsigned saved_;
#elif defined(__aarch64__)
  FlushToZero() {
    asm volatile("mrs %0, fpcr" : "=r"(saved_));
    asm volatile("msr fpcr, %0" : : "r"(saved_ | kFlush));
  }
  ~FlushToZero() { asm volatile("msr fpcr, %0" : : "r"(saved_)); }

 private:
  static constexpr std::uint64_t kFlush = 1u << 24;
  std::uint64_t saved_;
#else
#error "softmaxd has no flush-to-zero for this processor yet: add it here"
#endif

 public:
  FlushToZero(const FlushToZero&) = delete;
  FlushToZero& operator=(const FlushToZero&) = delete;
};

}  // namespace softmaxd::cpu
