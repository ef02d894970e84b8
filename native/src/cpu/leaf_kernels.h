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

// One leaf, or one row: the maximum m and the sum of exp(x - m). A NaN or a +inf among the values makes `sum` NaN.
// Values of nothing but -inf give (-inf, 0).
struct LeafStats {
  float max;
  float sum;
};

struct LeafKernels {
  std::size_t item_size;

  // (n) -> stats; n <= kLeafColumns.
  LeafStats (*measure)(const void* x, std::size_t n);

  // (n) -> stats, and e[i] = exp(x[i] - max) with n <= kLeafColumns. e has room for n rounded up to 32 floats.
  LeafStats (*exponentiate)(const void* x, std::size_t n, float* e);

  // y[i] = e[i] * factor.
  void (*scale)(const float* e, std::size_t n, float factor, void* y);

  // y[i] = exp(x[i] - max) * factor: the same bits as exponentiate followed by scale. x and y may be the same.
  void (*exponentiate_scale)(const void* x, std::size_t n, float max, float factor, void* y);

  // (rows, cols) with cols <= kLeafColumns: whole rows, one leaf each. e has room for kLeafColumns floats. x and y are
  // the same, or do not overlap.
  void (*leaf_rows)(const void* x, void* y, std::size_t rows, std::size_t cols, float* e, bool zero_masked_rows);

  // Copies past the caches, which keeps a large result from pushing its own source out. Call fence() at the end.
  void (*stream)(void* destination, const void* source, std::size_t bytes);
  void (*fence)();
};

// The names of the instruction sets that this build has and this machine runs, best first.
std::vector<std::string> leaf_kernel_targets();

// The functions for `target`, one of leaf_kernel_targets(). Thread-safe.
const LeafKernels& leaf_kernels(std::string_view target, DType dtype);

}  // namespace softmaxd::cpu
