// The ways in which the CPU computes a matrix: one file each, one row of the table each.
#pragma once

#include <cstddef>
#include <string_view>

#include "cpu/leaf_kernels.h"
#include "cpu/thread_pool.h"
#include "cpu/workspace_pool.h"
#include "softmaxd/softmax.h"

namespace softmaxd::cpu {

// What a variant computes and with what.
struct Job {
  const std::byte* source;
  std::byte* destination;
  Matrix matrix;
  Options options;
  const LeafKernels& kernels;
  ThreadPool& pool;
  WorkspacePool& workspaces;
  bool stream;  // write past the caches

  std::size_t row_bytes() const { return matrix.cols * kernels.item_size; }
};

// The sizes that decide which variant is best.
struct Limits {
  std::size_t threads;
  std::size_t cached_columns;  // columns whose exponentials fit into a workspace
};

struct Variant {
  std::string_view name;
  std::string_view note;
  bool (*supports)(const Matrix& matrix, const Limits& limits);
  void (*run)(const Job& job);
};

inline constexpr std::size_t kStreamBytes = std::size_t{16} << 20;
inline constexpr std::size_t kVariantCount = 3;

// Best first: the first that supports a matrix is its default.
extern const Variant kVariants[kVariantCount];

// Bounds the statistics of a cached row, which lie on the stack.
inline constexpr std::size_t kMaxCachedLeaves = 256;

// A workspace holds two leaves' worth of results on their way out, each with room for a line before it, and the
// exponentials of two cached rows.
inline constexpr std::size_t kStagingBytes = kLeafColumns * sizeof(float);
inline constexpr std::size_t kStagingsBytes = 2 * (kLineBytes + kStagingBytes);
constexpr std::size_t workspace_bytes(std::size_t cached_columns) {
  return kStagingsBytes + 2 * cached_columns * sizeof(float);
}

// Whether a result is so large that writing it past the caches is quicker; measured in bench/README.md.
constexpr bool passes_caches(const Matrix& matrix) {
  return matrix.rows * matrix.cols * item_size(matrix.dtype) >= kStreamBytes;
}

bool supports_split_row(const Matrix& matrix, const Limits& limits);
void run_split_row(const Job& job);
bool supports_cached_row(const Matrix& matrix, const Limits& limits);
void run_cached_row(const Job& job);
bool supports_reread_row(const Matrix& matrix, const Limits& limits);
void run_reread_row(const Job& job);

}  // namespace softmaxd::cpu
