// A thread a row. Pass one finds the statistics of each leaf, pass two reads the row again and writes the result.
#include <vector>

#include "cpu/row_blocks.h"
#include "cpu/row_leaves.h"

namespace softmaxd::cpu {
namespace {

void compute_row(const RowLeaves& row, Outlet& outlet, std::vector<LeafStats>& stats) {
  for (std::size_t leaf = 0; leaf < row.count(); ++leaf) stats[leaf] = row.measure(leaf, outlet);
  const RowStats row_stats = combine(stats.data(), row.count());
  for (std::size_t leaf = 0; leaf < row.count(); ++leaf) row.write_reread(leaf, stats[leaf], row_stats, outlet);
}

}  // namespace

bool supports_reread_row(const Matrix&, const Limits&) { return true; }

void run_reread_row(const Job& job) {
  RowBlocks(job, [&job](std::size_t first, std::size_t count, float*, Outlet& outlet) {
    std::vector<LeafStats> stats(leaf_count(job.matrix.cols));
    for (std::size_t row = first; row < first + count; ++row) compute_row(RowLeaves(job, row), outlet, stats);
  }).run();
}

}  // namespace softmaxd::cpu
