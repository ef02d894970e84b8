// Rows shared out to threads in blocks, for the variants that give a row to one thread.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>

#include "cpu/float_environment.h"
#include "cpu/outlet.h"
#include "cpu/variants.h"

namespace softmaxd::cpu {

// Calls compute(first_row, count, exponentials, outlet), exponentials with room for those of two cached rows, on each
// thread for block after block.
template <class Compute>
class RowBlocks final : public SharedWork {
 public:
  RowBlocks(const Job& job, Compute compute) : job_(job), compute_(compute), block_(block_rows(job)) {}

  void run() {
    const std::size_t blocks = (job_.matrix.rows + block_ - 1) / block_;
    job_.pool.run(*this, blocks - 1);
  }

  void participate() override {
    const FlushToZero flush;
    const WorkspacePool::Loan workspace = job_.workspaces.borrow();
    auto* exponentials = reinterpret_cast<float*>(workspace.data() + kStagingsBytes);
    Outlet outlet(job_, workspace.data());
    while (true) {
      const std::size_t first = next_.fetch_add(block_, std::memory_order_relaxed);
      if (first >= job_.matrix.rows) break;
      compute_(first, std::min(block_, job_.matrix.rows - first), exponentials, outlet);
    }
  }

 private:
  // Several blocks a thread, so that the last is not waited for long; but no smaller than what waking a thread (about
  // 50 us on a virtual machine) is worth, and no larger than what keeps the pipeline inside a block full.
  static std::size_t block_rows(const Job& job) {
    constexpr std::size_t kBlocksPerThread = 4;
    constexpr std::size_t kMinBytes = 256 * 1024;
    constexpr std::size_t kMaxBytes = 512 * 1024;
    const std::size_t share = job.matrix.rows * job.row_bytes() / (kBlocksPerThread * (job.pool.helpers() + 1));
    return std::clamp<std::size_t>(std::clamp(share, kMinBytes, kMaxBytes) / job.row_bytes(), 1, job.matrix.rows);
  }

  const Job& job_;
  Compute compute_;
  const std::size_t block_;
  std::atomic<std::size_t> next_{0};
};

}  // namespace softmaxd::cpu
