// The vector code of the CPU, one table of functions an instruction set and dtype.
//
// A row is cut into leaves of kLeafColumns, counted from its first element. Every variant reduces the same leaves in
// the same order with these functions, which is why they all give the same bits.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "softmaxd/softmax.h"

namespace softmaxd::cpu {

inline constexpr std::size_t kLeafColumns = 2048;

constexpr std::size_t leaf_count(std::size_t cols) { return (cols + kLeafColumns - 1) / kLeafColumns; }

// One leaf: the maximum and the sum of the exponentials, relative to reference_of(max) (row_stats.h). A NaN or a +inf
// among the values makes `sum` NaN.
// Values of nothing but -inf give (-inf, 0).
struct LeafStats {
  float max;
  float sum;
};

// A result on its way past the caches, which keeps it from pushing its own source out. The functions below move some of
// it with each step of their arithmetic: in one go it would keep the processor waiting.
struct Outflow {
  const std::byte* from = nullptr;
  std::byte* to = nullptr;  // aligned to kLineBytes
  std::size_t bytes = 0;    // still to go
};
inline constexpr std::size_t kLineBytes = 64;

struct LeafKernels {
  std::size_t item_size;

  // (n) -> stats; n <= kLeafColumns.
  LeafStats (*measure)(const void* x, std::size_t n, Outflow& outflow);

  // (n) -> stats, and e[i] the exponential of x[i] with n <= kLeafColumns. e has room for n rounded up to 32 floats.
  LeafStats (*exponentiate)(const void* x, std::size_t n, float* e, Outflow& outflow);

  // y[i] = e[i] * factor / kFactorScale.
  void (*scale)(const float* e, std::size_t n, float factor, void* y);

  // y[i] = the exponential of x[i] in a leaf of that maximum, * factor / kFactorScale: the same bits as exponentiate
  // followed by scale. x and y may be the same.
  void (*exponentiate_scale)(const void* x, std::size_t n, float max, float factor, void* y, Outflow& outflow);

  // (rows, cols) with cols <= kLeafColumns: whole rows, one leaf each. e has room for 2 kLeafColumns floats. x and y
  // are the same, or do not overlap.
  void (*leaf_rows)(const void* x, void* y, std::size_t rows, std::size_t cols, float* e, bool zero_masked_rows,
                    Outflow& outflow);

  // Moves all that is left in whole lines. Call fence() at the end.
  void (*stream)(Outflow& outflow);
  void (*fence)();
};

// The names of the instruction sets that this build has and this machine runs, best first.
std::vector<std::string> leaf_kernel_targets();

// The functions for `target`, one of leaf_kernel_targets(). Thread-safe.
const LeafKernels& leaf_kernels(std::string_view target, DType dtype);

}  // namespace softmaxd::cpu
