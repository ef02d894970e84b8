// From the statistics of leaves to the factor that turns a leaf's exponentials into probabilities.
#pragma once

#include <cmath>
#include <cstddef>
#include <limits>

#include "cpu/leaf_kernels.h"

namespace softmaxd::cpu {

// A row's maximum and its sum of exp(x - max), in float64 so that 2^24 leaves' worth of columns add no error.
struct RowStats {
  float max = -std::numeric_limits<float>::infinity();
  double sum = 0;
};

// Combines (count) leaves in the order of their index.
inline RowStats combine(const LeafStats* leaves, std::size_t count) {
  RowStats row;
  for (std::size_t i = 0; i < count; ++i) {
    if (leaves[i].max > row.max) row.max = leaves[i].max;
  }
  for (std::size_t i = 0; i < count; ++i) {
    const double sum = leaves[i].sum;
    // exp(-inf - -inf) would make a masked leaf of a masked row NaN; its sum is 0, or NaN if it holds a NaN.
    row.sum += leaves[i].max == row.max ? sum : sum * std::exp(static_cast<double>(leaves[i].max) - row.max);
  }
  return row;
}

// Returns exp(leaf_max - row.max) / row.sum; for a row of nothing but -inf NaN, or 0 if `zero_masked_rows`.
inline float leaf_factor(float leaf_max, const RowStats& row, bool zero_masked_rows) {
  if (row.sum == 0) return zero_masked_rows ? 0.0f : std::numeric_limits<float>::quiet_NaN();
  const double scale = leaf_max == row.max ? 1.0 : std::exp(static_cast<double>(leaf_max) - row.max);
  return static_cast<float>(scale / row.sum);
}

}  // namespace softmaxd::cpu
