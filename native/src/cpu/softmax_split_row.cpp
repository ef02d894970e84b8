// The threads share each row. They meet once: between the statistics of the leaves and the results.
#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include "cpu/float_environment.h"
#include "cpu/row_leaves.h"

namespace softmaxd::cpu {
namespace {

class SplitRow final : public SharedWork {
 public:
  SplitRow(const Job& job, std::size_t row)
      : job_(job),
        row_(job, row),
        stats_(row_.count()),
        chunk_(std::clamp<std::size_t>(row_.count() / (kChunksPerThread * threads()), 1, kMaxChunk)),
        chunks_((row_.count() + chunk_ - 1) / chunk_) {}

  void run() { job_.pool.run(*this, std::min(chunks_, threads()) - 1); }

  void participate() override {
    const FlushToZero flush;
    const WorkspacePool::Loan workspace = job_.workspaces.borrow();
    for_each_chunk(next_to_measure_, [&](std::size_t first, std::size_t last) {
      for (std::size_t leaf = first; leaf < last; ++leaf) stats_[leaf] = row_.measure(leaf);
      if (measured_.fetch_add(1, std::memory_order_acq_rel) + 1 < chunks_) return;
      row_stats_ = combine(stats_.data(), stats_.size());
      combined_.store(true, std::memory_order_release);
    });
    // Somebody holds the last chunk and computes: no longer than a chunk takes.
    while (!combined_.load(std::memory_order_acquire)) std::this_thread::yield();
    for_each_chunk(next_to_write_, [&](std::size_t first, std::size_t last) {
      for (std::size_t leaf = first; leaf < last; ++leaf) {
        row_.write_reread(leaf, stats_[leaf], row_stats_, workspace.data());
      }
    });
    if (job_.stream) job_.kernels.fence();
  }

 private:
  static constexpr std::size_t kChunksPerThread = 4;
  static constexpr std::size_t kMaxChunk = 64;

  std::size_t threads() const { return job_.pool.helpers() + 1; }

  template <class Do>
  void for_each_chunk(std::atomic<std::size_t>& next, Do act) {
    while (true) {
      const std::size_t first = next.fetch_add(1, std::memory_order_relaxed) * chunk_;
      if (first >= stats_.size()) return;
      act(first, std::min(first + chunk_, stats_.size()));
    }
  }

  const Job& job_;
  const RowLeaves row_;
  std::vector<LeafStats> stats_;
  const std::size_t chunk_;  // leaves
  const std::size_t chunks_;
  RowStats row_stats_;
  std::atomic<std::size_t> next_to_measure_{0};
  std::atomic<std::size_t> measured_{0};
  std::atomic<bool> combined_{false};
  std::atomic<std::size_t> next_to_write_{0};
};

}  // namespace

bool supports_split_row(const Matrix& matrix, const Limits& limits) {
  // Waking a helper costs about as much as computing 16 K columns; with several rows a thread, rows share out well.
  constexpr std::size_t kMinColumns = 32 * 1024;
  return limits.threads > 1 && matrix.cols >= kMinColumns && matrix.rows < 2 * limits.threads;
}

void run_split_row(const Job& job) {
  for (std::size_t row = 0; row < job.matrix.rows; ++row) SplitRow(job, row).run();
}

}  // namespace softmaxd::cpu
