// The GPU variants on a real device, against float64: `make test-gpu` builds and runs it.
//
// Prints the device, then one line a variant. Exits with 1 at a wrong value, and with 2 where there is no device.
#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <map>
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

// One set for all launches, as a stream has it; never cleared again.
unsigned* counters() {
  static Array memory(softmaxd::gpu::kCounters, DType::kFloat32);
  static const bool is_cleared = (memory.write(Bytes(memory.bytes(), 0)), true);
  return is_cleared ? static_cast<unsigned*>(memory.data()) : nullptr;
}

// Where a matrix lies on the device, and which of its rows are computed.
struct Placement {
  std::size_t offset;  // of its first element from a multiple of 16 bytes, in elements
  bool is_in_place;
  std::size_t first_row;
  std::size_t rows;
};

// Computes some rows of a matrix; returns the result of these.
Bytes compute(const Variant& variant, const Matrix& matrix, bool zero_masked_rows, const Bytes& values,
              const Placement& placement) {
  const std::size_t row_bytes = matrix.cols * softmaxd::item_size(matrix.dtype);
  const std::size_t lead = placement.offset * softmaxd::item_size(matrix.dtype);
  Bytes input(lead + placement.rows * row_bytes, 0xA5);
  std::copy_n(values.begin() + static_cast<std::ptrdiff_t>(placement.first_row * row_bytes), input.size() - lead,
              input.begin() + static_cast<std::ptrdiff_t>(lead));
  const std::size_t size = placement.offset + placement.rows * matrix.cols;
  Array source(size, matrix.dtype);
  Array destination(size, matrix.dtype);
  source.write(input);
  destination.poison();
  const Matrix computed{placement.rows, matrix.cols, matrix.dtype};
  Array workspace(variant.workspace_bytes(computed) / sizeof(float), DType::kFloat32);
  workspace.poison();
  Array& result = placement.is_in_place ? source : destination;
  const Job job{static_cast<unsigned char*>(source.data()) + lead,
                static_cast<unsigned char*>(result.data()) + lead,
                computed,
                {zero_masked_rows},
                static_cast<float*>(workspace.data()),
                counters(),
                0,
                nullptr};
  check(variant.run(job), variant.name.data());
  testing::synchronize();
  const Bytes all = result.read();
  if (!std::all_of(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(lead),
                   [](int byte) { return byte == 0xA5; })) {
    std::printf("WRONG %s wrote before its destination\n", variant.name.data());
    std::exit(1);
  }
  return Bytes(all.begin() + static_cast<std::ptrdiff_t>(lead), all.end());
}

// Returns how many bytes of some rows' result differ from those in `expected`, the whole matrix's result.
std::size_t differing_bytes(const Variant& variant, const Matrix& matrix, bool zero_masked_rows, const Bytes& values,
                            const Bytes& expected, const Placement& placement) {
  const Bytes got = compute(variant, matrix, zero_masked_rows, values, placement);
  const std::size_t start = placement.first_row * matrix.cols * softmaxd::item_size(matrix.dtype);
  std::size_t differing = 0;
  for (std::size_t i = 0; i < got.size(); ++i) differing += got[i] != expected[start + i];
  if (differing != 0) {
    std::printf("WRONG %s %zu x %zu of %zu bytes: %zu bytes differ, rows %zu + %zu at offset %zu\n",
                variant.name.data(), matrix.rows, matrix.cols, softmaxd::item_size(matrix.dtype), differing,
                placement.first_row, placement.rows, placement.offset);
  }
  return differing;
}

// Runs all variants on the same values; returns how many results are wrong. Those by leaves must agree bit for bit, for
// the whole matrix, at another alignment, in place, and for its last row alone.
std::size_t check_case(const testing::Type& type, const Case& shape, bool zero_masked_rows, std::mt19937& random,
                       std::map<std::string, std::size_t>& cases) {
  const Matrix matrix{shape.rows, shape.cols, type.dtype};
  const Bytes values = testing::encode(testing::inputs(shape.rows, shape.cols, random), type.dtype);
  Bytes by_leaves;
  std::size_t wrong = 0;
  for (const Variant& variant : softmaxd::gpu::variants()) {
    if (shape.cols > variant.max_columns) continue;
    ++cases[std::string(variant.name)];
    const Bytes got = compute(variant, matrix, zero_masked_rows, values, {0, zero_masked_rows, 0, shape.rows});
    if (!variant.is_by_leaves) {
      wrong += testing::wrong_results(variant.name.data(), type, matrix, zero_masked_rows, values, got);
      continue;
    }
    if (by_leaves.empty()) {
      by_leaves = got;
      wrong += testing::wrong_results(variant.name.data(), type, matrix, zero_masked_rows, values, got);
    }
    for (const Placement& placement : {Placement{0, true, 0, shape.rows}, Placement{1, false, 0, shape.rows},
                                       Placement{0, false, shape.rows - 1, 1}, Placement{3, true, shape.rows - 1, 1}}) {
      wrong += differing_bytes(variant, matrix, zero_masked_rows, values, by_leaves, placement);
    }
    wrong += got != by_leaves;
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
  std::map<std::string, std::size_t> cases;
  for (const testing::Type& type : testing::kTypes) {
    for (const Case& shape : kCases) {
      if (is_quick && shape.rows * shape.cols > 200'000) continue;
      for (const bool zero_masked_rows : {false, true})
        wrong += check_case(type, shape, zero_masked_rows, random, cases);
    }
  }
  for (const auto& [name, number] : cases) std::printf("%s: %zu cases\n", name.c_str(), number);
  std::printf("%zu results are wrong\n", wrong);
  return wrong == 0 ? 0 : 1;
}
