// Where results go: to their place, or past the caches, if the job wants that.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "cpu/variants.h"

namespace softmaxd::cpu {

// One thread's. Of two stagings one is filled while the other flows out. Only whole cache lines flow: what is left of
// one goes on with the result behind it, as a line that is written in part is read first (4096 x 4096: 4.0 ms at
// addresses that are no multiples of 64, where each leaf began and ended with such a line, and 3.4 at those that are).
class Outlet {
 public:
  // stagings: kStagingsBytes.
  Outlet(const Job& job, std::byte* stagings) : job_(job), stagings_(stagings) {}

  ~Outlet() {
    if (!job_.stream) return;
    flush();
    job_.kernels.fence();
  }

  Outlet(const Outlet&) = delete;
  Outlet& operator=(const Outlet&) = delete;

  // For LeafKernels to move on.
  Outflow& outflow() { return outflow_; }

  // Lets `produce` write `bytes`, at most kStagingBytes, that belong to `out`.
  template <class Produce>
  void write(std::byte* out, std::size_t bytes, Produce produce) {
    if (!job_.stream) return produce(out);
    // A staging that still flows is left alone; else the same again, as two do not stay in the first-level cache.
    if (outflow_.bytes >= kLineBytes) is_second_ = !is_second_;
    std::byte* const staging = stagings_ + (is_second_ ? kStagingBytes + kLineBytes : 0) + kLineBytes;
    if (outflow_.bytes < kLineBytes) keep_before(staging);
    produce(staging);
    job_.kernels.stream(outflow_);
    const std::size_t before_line = (0 - reinterpret_cast<std::uintptr_t>(out)) % kLineBytes;
    if (outflow_.to + outflow_.bytes == out && (outflow_.bytes + before_line) % kLineBytes == 0) {
      keep_before(staging);
      outflow_.bytes += bytes;
    } else {
      flush();
      const std::size_t head = std::min(bytes, before_line);
      std::memcpy(out, staging, head);
      outflow_ = {staging + head, out + head, bytes - head};
    }
  }

 private:
  // Moves what is left of a line to where `staging` continues it.
  void keep_before(std::byte* staging) {
    if (outflow_.bytes > 0) std::memmove(staging - outflow_.bytes, outflow_.from, outflow_.bytes);
    outflow_.from = staging - outflow_.bytes;
  }

  void flush() {
    job_.kernels.stream(outflow_);
    if (outflow_.bytes > 0) std::memcpy(outflow_.to, outflow_.from, outflow_.bytes);
  }

  const Job& job_;
  std::byte* const stagings_;
  bool is_second_ = false;
  Outflow outflow_;
};

}  // namespace softmaxd::cpu
