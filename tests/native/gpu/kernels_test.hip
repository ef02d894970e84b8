// The GPU variants on a real device, against float64: `make test-gpu` builds and runs it.
//
// Prints the device, then one line a variant. Exits with 1 at a wrong value, and with 2 where there is no device.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "device.h"
#include "gpu/variants.h"

using softmaxd::DType;
using softmaxd::Matrix;
using softmaxd::gpu::Error;
using softmaxd::gpu::Job;
using testing::Array;
using testing::check;

namespace {

struct Variant {
  const char* name;
  Error (*run)(const Job&);
  std::size_t (*workspace_bytes)(const Matrix&);
};

constexpr Variant kVariants[] = {
    {"basic", softmaxd::gpu::run_basic, [](const Matrix&) { return std::size_t{0}; }},
    {"five_pass", softmaxd::gpu::run_five_pass, softmaxd::gpu::five_pass_workspace_bytes},
};

struct Type {
  const char* name;
  DType dtype;
  double relative;  // half a unit in the last place, and the arithmetic's own error
  double smallest;  // below it results may be flushed or lose bits
};

constexpr Type kTypes[] = {
    {"float32", DType::kFloat32, 1e-5, 0x1p-126},
    {"float16", DType::kFloat16, 0x1p-11 + 1e-5, 0x1p-14},
    {"bfloat16", DType::kBFloat16, 0x1p-8 + 1e-5, 0x1p-126},
};

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Softmax of one row in float64; a masked row as `zero_masked_rows` says.
void reference(const double* x, std::size_t cols, bool zero_masked_rows, double* p) {
  const double max = *std::max_element(x, x + cols);
  double sum = 0;
  for (std::size_t i = 0; i < cols; ++i) sum += p[i] = std::exp(x[i] - (max == -kInfinity ? 0 : max));
  for (std::size_t i = 0; i < cols; ++i) p[i] = sum == 0 ? (zero_masked_rows ? 0 : NAN) : p[i] / sum;
}

bool is_right(double got, double want, const Type& type) {
  if (std::isnan(want)) return std::isnan(got);
  if (want < type.smallest) return got >= 0 && got <= want + type.smallest * 1e-3 + 0x1p-25;
  return std::abs(got - want) <= want * type.relative;
}

struct Case {
  std::size_t rows;
  std::size_t cols;
};

// Around the sizes at which a kernel takes another way, more rows than 65,535, and one row of millions.
constexpr Case kCases[] = {{1, 1},       {3, 2},      {5, 31},        {4, 255},      {4, 256},
                           {7, 257},     {3, 1023},   {3, 1024},      {3, 1025},     {70'001, 3},
                           {65'537, 32}, {17, 4096},  {5, 4097},      {9, 10'007},   {70'000, 17},
                           {4, 32'768},  {2, 65'537}, {1, 1'048'576}, {1, 5'000'003}};

// Normal scores; some masked by -inf, some by the lowest number; whole rows of -inf, of NaN and +inf among others.
std::vector<double> inputs(const Case& shape, std::mt19937& random) {
  std::normal_distribution<double> normal(0, 3);
  std::vector<double> x(shape.rows * shape.cols);
  for (double& value : x) value = random() % 11 == 0 ? -kInfinity : normal(random);
  for (std::size_t row = 0; row < shape.rows; ++row) {
    double* const first = x.data() + row * shape.cols;
    switch (row % 7) {
      case 1:
        std::fill(first, first + shape.cols, -kInfinity);
        break;
      case 3:
        first[random() % shape.cols] = NAN;
        break;
      case 4:
        first[random() % shape.cols] = kInfinity;
        break;
      case 5:  // the NaN stands among nothing but -inf
        std::fill(first, first + shape.cols, -kInfinity);
        first[random() % shape.cols] = NAN;
        break;
      default:
        break;
    }
  }
  return x;
}

// Returns how many results are wrong.
std::size_t wrong_results(const Variant& variant, const Type& type, const Case& shape, bool zero_masked_rows,
                          bool in_place, std::mt19937& random) {
  const Matrix matrix{shape.rows, shape.cols, type.dtype};
  const std::size_t size = shape.rows * shape.cols;
  Array source(size, type.dtype);
  Array destination(size, type.dtype);
  source.write(inputs(shape, random));
  destination.poison();
  const std::vector<double> x = source.read();  // as the type rounded them
  Array workspace(variant.workspace_bytes(matrix) / sizeof(float), DType::kFloat32);
  workspace.poison();
  Array& result = in_place ? source : destination;
  const Job job{source.data(), result.data(), matrix, {zero_masked_rows}, static_cast<float*>(workspace.data()),
                nullptr};
  check(variant.run(job), variant.name);
  testing::synchronize();

  const std::vector<double> got = result.read();
  std::vector<double> want(shape.cols);
  std::size_t wrong = 0;
  for (std::size_t row = 0; row < shape.rows; ++row) {
    const std::size_t first = row * shape.cols;
    reference(x.data() + first, shape.cols, zero_masked_rows, want.data());
    if (std::any_of(x.begin() + first, x.begin() + first + shape.cols, [](double v) { return std::isnan(v); })) {
      std::fill(want.begin(), want.end(), NAN);  // max_element does not see them
    }
    for (std::size_t i = 0; i < shape.cols; ++i) {
      if (is_right(got[first + i], want[i], type)) continue;
      if (++wrong <= 3) {
        std::printf("WRONG %s %s %zu x %zu row %zu col %zu: got %g, want %g\n", variant.name, type.name, shape.rows,
                    shape.cols, row, i, got[first + i], want[i]);
      }
    }
  }
  return wrong;
}

}  // namespace

int main(int count, char** arguments) {
  // For the sanitizers, under which millions of elements take minutes.
  const bool is_quick = count == 2 && std::string(arguments[1]) == "--quick";
  std::printf("device: %s\n", testing::device_name().c_str());
  std::mt19937 random(7);
  std::size_t wrong = 0;
  for (const Variant& variant : kVariants) {
    std::size_t cases = 0;
    for (const Type& type : kTypes) {
      for (const Case& shape : kCases) {
        if (is_quick && shape.rows * shape.cols > 200'000) continue;
        for (const bool zero_masked_rows : {false, true}) {
          wrong += wrong_results(variant, type, shape, zero_masked_rows, zero_masked_rows, random);
          ++cases;
        }
      }
    }
    std::printf("%s: %zu cases\n", variant.name, cases);
  }
  std::printf("%zu results are wrong\n", wrong);
  return wrong == 0 ? 0 : 1;
}
