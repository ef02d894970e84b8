// A thread a row. The source is read once: the exponentials of each leaf wait in a workspace, in cache, until the row's
// sum is known.
#include <algorithm>

#include "cpu/row_blocks.h"
#include "cpu/row_leaves.h"

namespace softmaxd::cpu {
namespace {

// (count, cols) with cols <= kLeafColumns. Results that are to pass the caches are collected in `staging` first, so
// that they leave in whole cache lines whatever the rows' length and the destination's alignment.
void compute_leaf_rows(const Job& job, std::size_t first, std::size_t count, std::byte* staging, float* exponentials) {
  const std::size_t row_bytes = job.row_bytes();
  const std::size_t group = job.stream ? std::max<std::size_t>(1, kStagingBytes / row_bytes) : count;
  for (std::size_t row = first; row < first + count; row += group) {
    const std::size_t rows = std::min(group, first + count - row);
    std::byte* out = job.destination + row * row_bytes;
    job.kernels.leaf_rows(job.source + row * row_bytes, job.stream ? staging : out, rows, job.matrix.cols, exponentials,
                          job.options.zero_masked_rows);
    if (job.stream) job.kernels.stream(out, staging, rows * row_bytes);
  }
}

void compute_row(const RowLeaves& row, std::byte* staging, float* exponentials) {
  LeafStats stats[kMaxCachedLeaves];
  for (std::size_t leaf = 0; leaf < row.count(); ++leaf) stats[leaf] = row.exponentiate(leaf, exponentials);
  const RowStats row_stats = combine(stats, row.count());
  for (std::size_t leaf = 0; leaf < row.count(); ++leaf) {
    row.write_scaled(leaf, exponentials, stats[leaf], row_stats, staging);
  }
}

}  // namespace

bool supports_cached_row(const Matrix& matrix, const Limits& limits) { return matrix.cols <= limits.cached_columns; }

void run_cached_row(const Job& job) {
  RowBlocks(job, [&job](std::size_t first, std::size_t count, std::byte* workspace) {
    auto* exponentials = reinterpret_cast<float*>(workspace + kStagingBytes);
    if (job.matrix.cols <= kLeafColumns) {
      compute_leaf_rows(job, first, count, workspace, exponentials);
    } else {
      for (std::size_t row = first; row < first + count; ++row) {
        compute_row(RowLeaves(job, row), workspace, exponentials);
      }
    }
  }).run();
}

}  // namespace softmaxd::cpu
