// What a softmax is asked for and what is said of how it ran: the vocabulary that all devices share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace softmaxd {

enum class DType : std::uint8_t { kFloat32 = 0, kFloat16 = 1, kBFloat16 = 2 };
inline constexpr std::size_t kDTypeCount = 3;

constexpr std::size_t item_size(DType dtype) { return dtype == DType::kFloat32 ? 4 : 2; }

// Returns the dtype called `name` ("float32", "float16", "bfloat16").
// Throws InvalidArgument for any other name.
DType dtype_from_name(std::string_view name);
std::string_view name_of(DType dtype);

// A tensor seen as rows x cols, row-major and contiguous; softmax runs over each row.
struct Matrix {
  std::size_t rows;
  std::size_t cols;
  DType dtype;
};

struct Options {
  // A row of nothing but -inf gives zeros instead of NaN.
  bool zero_masked_rows = false;
};

// How a matrix will be computed. It depends on cols, dtype and the device, and on rows only where that cannot change a
// bit of the result.
struct Plan {
  const char* variant;
  std::size_t tile_columns;  // columns reduced at once
  std::size_t tile_count;    // tiles in one row
};

// A way of computing: its name, and in one sentence what it does and when it is chosen.
struct VariantNote {
  std::string name;
  std::string note;
};

// The use of one pool of memory.
struct PoolUse {
  std::string name;
  std::size_t used_bytes;      // on loan now
  std::size_t reserved_bytes;  // kept, on loan or not
  std::size_t allocations;     // since the start: constant in a steady state
};

}  // namespace softmaxd
