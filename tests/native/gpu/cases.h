// What the GPU tests compute, and how they judge it: inputs, a float64 reference, tolerances.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <limits>
#include <random>
#include <vector>

#include "gpu/gpu_runtime.h"  // for __half
#include "softmaxd/softmax.h"

namespace testing {

using softmaxd::DType;
using softmaxd::Matrix;
using Bytes = std::vector<unsigned char>;

struct Type {
  const char* name;
  DType dtype;
  double relative;  // half a unit in the last place, and the arithmetic's own error
  double smallest;  // below it results may be flushed or lose bits
};

inline constexpr Type kTypes[] = {
    {"float32", DType::kFloat32, 1e-6, 0x1p-126},
    {"float16", DType::kFloat16, 0x1p-11 + 1e-6, 0x1p-14},
    {"bfloat16", DType::kBFloat16, 0x1p-8 + 1e-6, 0x1p-126},
};

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Softmax of one row in float64; a masked row as `zero_masked_rows` says.
inline void reference(const double* x, std::size_t cols, bool zero_masked_rows, double* p) {
  const double max = *std::max_element(x, x + cols);
  double sum = 0;
  for (std::size_t i = 0; i < cols; ++i) sum += p[i] = std::exp(x[i] - (max == -kInfinity ? 0 : max));
  for (std::size_t i = 0; i < cols; ++i) p[i] = sum == 0 ? (zero_masked_rows ? 0 : NAN) : p[i] / sum;
}

inline bool is_right(double got, double want, const Type& type) {
  if (std::isnan(want)) return std::isnan(got);
  if (want < type.smallest) return got >= 0 && got <= want + type.smallest * 1e-3 + 0x1p-25;
  return std::abs(got - want) <= want * type.relative;
}

// Rounds values to a type.
inline Bytes encode(const std::vector<double>& values, DType dtype) {
  Bytes encoded(values.size() * softmaxd::item_size(dtype));
  for (std::size_t i = 0; i < values.size(); ++i) {
    const float value = static_cast<float>(values[i]);
    if (dtype == DType::kFloat32) {
      std::memcpy(encoded.data() + 4 * i, &value, 4);
    } else if (dtype == DType::kFloat16) {
      const __half half = __float2half(value);
      std::memcpy(encoded.data() + 2 * i, &half, 2);
    } else {
      std::memcpy(encoded.data() + 2 * i, reinterpret_cast<const unsigned char*>(&value) + 2, 2);  // truncated
      if (value != value) std::memcpy(encoded.data() + 2 * i, "\xC0\x7F", 2);
    }
  }
  return encoded;
}

inline double decode(const Bytes& encoded, DType dtype, std::size_t i) {
  float value = 0;
  if (dtype == DType::kFloat32) {
    std::memcpy(&value, encoded.data() + 4 * i, 4);
  } else if (dtype == DType::kFloat16) {
    __half half;
    std::memcpy(&half, encoded.data() + 2 * i, 2);
    value = __half2float(half);
  } else {
    std::memcpy(reinterpret_cast<unsigned char*>(&value) + 2, encoded.data() + 2 * i, 2);
  }
  return value;
}

// Normal scores, near and far from 0, close together and far apart; some masked by -inf, some by the lowest number;
// whole rows of -inf, of NaN and +inf among others.
inline std::vector<double> inputs(std::size_t rows, std::size_t cols, std::mt19937& random) {
  constexpr double kOffsets[] = {0, -207, 207, 209, -209, 300, -5000, 6e4, -6e4};
  constexpr double kScales[] = {1, 0.01, 12};
  std::normal_distribution<double> normal(0, 3);
  std::vector<double> x(rows * cols);
  for (double& value : x) value = random() % 11 == 0 ? -kInfinity : normal(random);
  for (std::size_t row = 0; row < rows; ++row) {
    double* const first = x.data() + row * cols;
    const double offset = kOffsets[random() % std::size(kOffsets)];
    const double scale = kScales[random() % std::size(kScales)];
    for (std::size_t i = 0; i < cols; ++i) {
      first[i] = first[i] * scale + offset;
      if (random() % 23 == 0) first[i] = -65504;  // the lowest number of float16
    }
    switch (row % 7) {
      case 1:
        std::fill(first, first + cols, -kInfinity);
        break;
      case 3:
        first[random() % cols] = NAN;
        break;
      case 4:
        first[random() % cols] = kInfinity;
        break;
      case 5:  // the NaN stands among nothing but -inf
        std::fill(first, first + cols, -kInfinity);
        first[random() % cols] = NAN;
        break;
      default:
        break;
    }
  }
  return x;
}

// Returns how many results are wrong, and prints the first of them.
// name: of what computed `got` from `source`.
inline std::size_t wrong_results(const char* name, const Type& type, const Matrix& matrix, bool zero_masked_rows,
                                 const Bytes& source, const Bytes& got) {
  std::vector<double> x(matrix.cols);
  std::vector<double> want(matrix.cols);
  std::size_t wrong = 0;
  for (std::size_t row = 0; row < matrix.rows; ++row) {
    const std::size_t first = row * matrix.cols;
    for (std::size_t i = 0; i < matrix.cols; ++i) x[i] = decode(source, matrix.dtype, first + i);
    reference(x.data(), matrix.cols, zero_masked_rows, want.data());
    if (std::any_of(x.begin(), x.end(), [](double value) { return std::isnan(value); })) {
      std::fill(want.begin(), want.end(), NAN);  // max_element does not see them
    }
    for (std::size_t i = 0; i < matrix.cols; ++i) {
      const double result = decode(got, matrix.dtype, first + i);
      if (is_right(result, want[i], type)) continue;
      if (++wrong <= 3) {
        std::printf("WRONG %s %s %zu x %zu row %zu col %zu: got %g, want %g\n", name, type.name, matrix.rows,
                    matrix.cols, row, i, result, want[i]);
      }
    }
  }
  return wrong;
}

}  // namespace testing
