// Softmax on the CPU: threads, workspaces and the choice of instruction set, made once and kept.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "softmaxd/softmax.h"

namespace softmaxd {

// The instruction sets that this build has and this machine can run, best first.
std::vector<std::string> cpu_targets();

// Computes softmax on the CPU.
//
// One row's bits depend on its values, its dtype and the instruction set, and on nothing else: not on the other rows,
// the number of threads, the variant or the alignment. Results below 2^-126 are flushed to zero in float32 and
// bfloat16; float16 keeps its subnormals.
//
// Thread-safe: calls from several threads share the pool; a call whose helpers are busy computes alone.
class CpuContext {
 public:
  // threads: how many compute, the calling one included; 0 takes what the affinity mask and the cgroup's quota allow.
  // target: one of cpu_targets(), for all work; empty takes the best, and AVX2 in place of AVX-512 for small work.
  // Throws InvalidArgument for more than 1024 threads, Unsupported for a target that cannot be had.
  explicit CpuContext(std::size_t threads = 0, std::string_view target = {});
  ~CpuContext();
  CpuContext(const CpuContext&) = delete;
  CpuContext& operator=(const CpuContext&) = delete;

  // Says how softmax() will compute `matrix`.
  // variant: a name from variants(), or empty for the default. Throws InvalidArgument for another name.
  Plan plan(const Matrix& matrix, std::string_view variant = {}) const;

  // Writes softmax(source) to destination; both hold rows * cols elements at any alignment, and are the same memory or
  // do not overlap. Returns when all is written. Throws as plan() does.
  void softmax(const void* source, void* destination, const Matrix& matrix, Options options = {},
               std::string_view variant = {});

  std::size_t threads() const;
  const std::string& target() const;
  std::vector<VariantNote> variants() const;
  std::vector<PoolUse> pools() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace softmaxd
