// The ways in which a GPU computes a matrix: one file each, one row of the table each.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "gpu/gpu_runtime.h"
#include "softmaxd/softmax.h"

namespace softmaxd::gpu {

// What a variant computes and with what. All pointers are the device's.
struct Job {
  const void* source;
  void* destination;  // the source itself, or no part of it
  Matrix matrix;      // rows and cols >= 1
  Options options;
  float* workspace;    // as large as the variant says
  unsigned* counters;  // kCounters of them, the stream's own, once set to 0; launches leave them as they need them
  int device;          // the calling thread's
  Stream stream;
};

inline constexpr std::size_t kCounters = 256;

struct Variant {
  std::string_view name;
  std::string_view note;
  // Whether a row is reduced by leaves: all such variants give a row the same bits.
  bool is_by_leaves;
  std::size_t max_columns;
  std::size_t max_tile_columns;  // a row is cut into tiles of so many columns; 0 takes it whole
  std::size_t (*workspace_bytes)(const Matrix& matrix);
  // Returns once the kernels are in the stream, with the first launch's error.
  Error (*run)(const Job& job);
};

enum VariantIndex : std::size_t {
  kBasic,
  kFivePass,
  kWarpRow,
  kBlockRow,
  kClusterRow,
  kPipelinedRow,
  kSplitRow,
  kRereadRow,
  kVariantCount
};

// The table. A function: hipcc would take a constant for the device's too.
const std::array<Variant, kVariantCount>& variants();

Plan plan_of(const Matrix& matrix, const Variant& variant);

// Groups of `size` that `count` things make; the last may be smaller.
__host__ __device__ constexpr std::size_t groups_of(std::size_t count, std::size_t size) {
  return (count + size - 1) / size;
}

inline constexpr std::size_t kFivePassTileColumns = 1024;
inline constexpr std::size_t kLeafColumns = 1024;  // leaf.h
inline constexpr std::size_t kAnyColumns = SIZE_MAX;

Error run_basic(const Job& job);
Error run_five_pass(const Job& job);
std::size_t five_pass_workspace_bytes(const Matrix& matrix);
Error run_warp_row(const Job& job);
Error run_block_row(const Job& job);
std::size_t block_row_max_columns();
Error run_cluster_row(const Job& job);
std::size_t cluster_row_max_columns();
Error run_pipelined_row(const Job& job);
std::size_t pipelined_row_max_columns();
std::size_t pipelined_row_tile_columns();
std::size_t pipelined_row_workspace_bytes(const Matrix& matrix);
Error run_split_row(const Job& job);
std::size_t split_row_workspace_bytes(const Matrix& matrix);
Error run_reread_row(const Job& job);
std::size_t reread_row_workspace_bytes(const Matrix& matrix);

}  // namespace softmaxd::gpu
