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

// A row whose exponentials wait for their factors.
struct PendingRow {
  float* exponentials;
  LeafStats leaves[kMaxCachedLeaves];
  RowStats stats;
};

// (count, cols) with cols > kLeafColumns. While one row's leaves are computed the one before is written, leaf by leaf,
// so that the memory reads and writes during the arithmetic.
void compute_long_rows(const Job& job, std::size_t first, std::size_t count, std::byte* staging, float* exponentials) {
  PendingRow pending[2];
  pending[0].exponentials = exponentials;
  pending[1].exponentials = exponentials + leaf_count(job.matrix.cols) * kLeafColumns;
  for (std::size_t i = 0; i <= count; ++i) {
    PendingRow& current = pending[i % 2];
    const PendingRow& before = pending[(i + 1) % 2];
    for (std::size_t leaf = 0; leaf < leaf_count(job.matrix.cols); ++leaf) {
      if (i < count) current.leaves[leaf] = RowLeaves(job, first + i).exponentiate(leaf, current.exponentials);
      if (i > 0) {
        RowLeaves(job, first + i - 1)
            .write_scaled(leaf, before.exponentials, before.leaves[leaf], before.stats, staging);
      }
    }
    if (i < count) current.stats = combine(current.leaves, leaf_count(job.matrix.cols));
  }
}

}  // namespace

bool supports_cached_row(const Matrix& matrix, const Limits& limits) { return matrix.cols <= limits.cached_columns; }

void run_cached_row(const Job& job) {
  RowBlocks(job, [&job](std::size_t first, std::size_t count, std::byte* workspace) {
    auto* exponentials = reinterpret_cast<float*>(workspace + kStagingBytes);
    const auto compute = job.matrix.cols <= kLeafColumns ? compute_leaf_rows : compute_long_rows;
    compute(job, first, count, workspace, exponentials);
  }).run();
}

}  // namespace softmaxd::cpu
