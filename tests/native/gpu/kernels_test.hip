// The GPU variants on a real device, against float64: `make test-gpu` builds and runs it.
//
// Prints the device, then one line a variant. Exits with 1 at a wrong value, and with 2 where there is no device.
#include <cstdio>
#include <random>
#include <string>

#include "cases.h"
#include "device.h"
#include "gpu/variants.h"

using softmaxd::DType;
using softmaxd::Matrix;
using softmaxd::gpu::Job;
using softmaxd::gpu::Variant;
using testing::Array;
using testing::Bytes;
using testing::check;

namespace {

struct Case {
  std::size_t rows;
  std::size_t cols;
};

// Around the sizes at which a kernel takes another way, more rows than 65,535, and one row of millions.
constexpr Case kCases[] = {{1, 1},       {3, 2},      {5, 31},        {4, 255},      {4, 256},
                           {7, 257},     {3, 1023},   {3, 1024},      {3, 1025},     {70'001, 3},
                           {65'537, 32}, {17, 4096},  {5, 4097},      {9, 10'007},   {70'000, 17},
                           {4, 32'768},  {2, 65'537}, {1, 1'048'576}, {1, 5'000'003}};

// Returns how many results are wrong.
std::size_t check_case(const Variant& variant, const testing::Type& type, const Case& shape, bool zero_masked_rows,
                       bool in_place, std::mt19937& random) {
  const Matrix matrix{shape.rows, shape.cols, type.dtype};
  const std::size_t size = shape.rows * shape.cols;
  const Bytes values = testing::encode(testing::inputs(shape.rows, shape.cols, random), type.dtype);
  Array source(size, type.dtype);
  Array destination(size, type.dtype);
  source.write(values);
  destination.poison();
  Array workspace(variant.workspace_bytes(matrix) / sizeof(float), DType::kFloat32);
  workspace.poison();
  Array& result = in_place ? source : destination;
  check(variant.run(
            {source.data(), result.data(), matrix, {zero_masked_rows}, static_cast<float*>(workspace.data()), nullptr}),
        variant.name.data());
  testing::synchronize();
  return testing::wrong_results(variant.name.data(), type, matrix, zero_masked_rows, values, result.read());
}

}  // namespace

int main(int count, char** arguments) {
  // For the sanitizers, under which millions of elements take minutes.
  const bool is_quick = count == 2 && std::string(arguments[1]) == "--quick";
  std::printf("device: %s\n", testing::device_name().c_str());
  std::mt19937 random(7);
  std::size_t wrong = 0;
  for (const Variant& variant : softmaxd::gpu::variants()) {
    std::size_t cases = 0;
    for (const testing::Type& type : testing::kTypes) {
      for (const Case& shape : kCases) {
        if (is_quick && shape.rows * shape.cols > 200'000) continue;
        for (const bool zero_masked_rows : {false, true}) {
          wrong += check_case(variant, type, shape, zero_masked_rows, zero_masked_rows, random);
          ++cases;
        }
      }
    }
    std::printf("%s: %zu cases\n", variant.name.data(), cases);
  }
  std::printf("%zu results are wrong\n", wrong);
  return wrong == 0 ? 0 : 1;
}
