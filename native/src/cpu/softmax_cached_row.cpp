// A thread a row. The source is read once: the exponentials of each leaf wait in a workspace, in cache, until the row's
// sum is known.
#include <algorithm>

#include "cpu/row_blocks.h"
#include "cpu/row_leaves.h"

namespace softmaxd::cpu {
namespace {

// (count, cols) with cols <= kLeafColumns. Results that are to pass the caches leave in groups, so that they do so in
// whole cache lines whatever the rows' length.
void compute_leaf_rows(const Job& job, std::size_t first, std::size_t count, float* exponentials, Outlet& outlet) {
  const std::size_t row_bytes = job.row_bytes();
  const std::size_t group = job.stream ? std::max<std::size_t>(1, kStagingBytes / row_bytes) : count;
  for (std::size_t row = first; row < first + count; row += group) {
    const std::size_t rows = std::min(group, first + count - row);
    outlet.write(job.destination + row * row_bytes, rows * row_bytes, [&](std::byte* out) {
      job.kernels.leaf_rows(job.source + row * row_bytes, out, rows, job.matrix.cols, exponentials,
                            job.options.zero_masked_rows, outlet.outflow());
    });
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
void compute_long_rows(const Job& job, std::size_t first, std::size_t count, float* exponentials, Outlet& outlet) {
  PendingRow pending[2];
  pending[0].exponentials = exponentials;
  pending[1].exponentials = exponentials + leaf_count(job.matrix.cols) * kLeafColumns;
  for (std::size_t i = 0; i <= count; ++i) {
    PendingRow& current = pending[i % 2];
    const PendingRow& before = pending[(i + 1) % 2];
    for (std::size_t leaf = 0; leaf < leaf_count(job.matrix.cols); ++leaf) {
      if (i < count) current.leaves[leaf] = RowLeaves(job, first + i).exponentiate(leaf, current.exponentials, outlet);
      if (i > 0) {
        RowLeaves(job, first + i - 1)
            .write_scaled(leaf, before.exponentials, before.leaves[leaf], before.stats, outlet);
      }
    }
    if (i < count) current.stats = combine(current.leaves, leaf_count(job.matrix.cols));
  }
}

// Whether a thread's share of source and result stays in its second-level cache.
bool stays_near(const Job& job) {
  constexpr std::size_t kMaxShareBytes = 1 << 20;
  return job.matrix.rows * job.row_bytes() <= kMaxShareBytes * (job.pool.helpers() + 1);
}

// (count, cols) with cols > kLeafColumns, for results that stay near: the exponentials wait in the result where it has
// room for them (4 x 32768: 22 us against 32; of 4 MiB by two threads 280 against 228).
void compute_rows_in_result(const Job& job, std::size_t first, std::size_t count, float* exponentials, Outlet& outlet) {
  LeafStats leaves[kMaxCachedLeaves];
  for (std::size_t i = first; i < first + count; ++i) {
    const RowLeaves row(job, i);
    for (std::size_t leaf = 0; leaf < row.count(); ++leaf) {
      leaves[leaf] = row.has_room(leaf) ? row.exponentiate_into_result(leaf, outlet)
                                        : row.exponentiate(leaf, exponentials, outlet);
    }
    const RowStats stats = combine(leaves, row.count());
    for (std::size_t leaf = 0; leaf < row.count(); ++leaf) {
      if (row.has_room(leaf)) {
        row.scale_result(leaf, leaves[leaf], stats);
      } else {
        row.write_scaled(leaf, exponentials, leaves[leaf], stats, outlet);
      }
    }
  }
}

}  // namespace

bool supports_cached_row(const Matrix& matrix, const Limits& limits) { return matrix.cols <= limits.cached_columns; }

void run_cached_row(const Job& job) {
  RowBlocks(job, [&job](std::size_t first, std::size_t count, float* exponentials, Outlet& outlet) {
    const auto compute_long = stays_near(job) ? compute_rows_in_result : compute_long_rows;
    const auto compute = job.matrix.cols <= kLeafColumns ? compute_leaf_rows : compute_long;
    compute(job, first, count, exponentials, outlet);
  }).run();
}

}  // namespace softmaxd::cpu
