// From the statistics of leaves to the factor that turns a leaf's exponentials into probabilities.
#pragma once

#include <cmath>
#include <cstddef>
#include <limits>

#include "cpu/leaf_kernels.h"

namespace softmaxd::cpu {

// What the exponentials of a leaf or a row are relative to: e^shift 2^exponent, at most e^max and more than e^max / 4.
// It depends on `max` alone. With a power of two there is no x - max to round; where max is large there is a shift, and
// x - max is exact for all x whose exponentials are not 0.
struct Reference {
  float shift;
  float exponent;  // an integer
};

inline Reference reference_of(float max) {
  constexpr float kLargeMax = 256;
  if (max == -std::numeric_limits<float>::infinity()) return {0, 0};
  if (!(std::abs(max) < kLargeMax)) return {max, -1};
  return {0, static_cast<float>(static_cast<int>(max * 0x1.715476p0f)) - 1};
}

// A row's maximum and the sum of its exponentials, relative to reference_of(max); in float64 so that 2^24 leaves' worth
// of columns add no error.
struct RowStats {
  float max = -std::numeric_limits<float>::infinity();
  double sum = 0;
};

// Returns what turns the exponentials of a leaf into its row's.
inline double leaf_weight(float leaf_max, float row_max) {
  if (leaf_max == row_max) return 1;  // -inf too
  if (leaf_max == -std::numeric_limits<float>::infinity()) return 0;
  constexpr double kLn2 = 0x1.62e42fefa39efp-1;
  const Reference leaf = reference_of(leaf_max);
  const Reference row = reference_of(row_max);
  return std::exp(static_cast<double>(leaf.shift) - row.shift + (leaf.exponent - row.exponent) * kLn2);
}

// Combines (count) leaves in the order of their index.
inline RowStats combine(const LeafStats* leaves, std::size_t count) {
  RowStats row;
  for (std::size_t i = 0; i < count; ++i) {
    if (leaves[i].max > row.max) row.max = leaves[i].max;
  }
  for (std::size_t i = 0; i < count; ++i) row.sum += leaves[i].sum * leaf_weight(leaves[i].max, row.max);
  return row;
}

// A leaf_factor() holds this on top, and the kernels take it off again: an exponential may be 4, and so a factor under
// 2^-126, which would be flushed to zero, make a result that is not.
inline constexpr float kFactorScale = 16;

// Returns the factor of a leaf's exponentials; for a row of nothing but -inf NaN, or 0 if `zero_masked_rows`.
inline float leaf_factor(float leaf_max, const RowStats& row, bool zero_masked_rows) {
  if (row.sum == 0) return zero_masked_rows ? 0.0f : std::numeric_limits<float>::quiet_NaN();
  return static_cast<float>(kFactorScale * leaf_weight(leaf_max, row.max) / row.sum);
}

}  // namespace softmaxd::cpu
