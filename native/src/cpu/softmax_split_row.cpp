// The threads share each row. They meet once: between the statistics of the leaves and the results. Where a result has
// room for them the exponentials wait there, which is quicker than computing them again (bench/README.md).
#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include "cpu/float_environment.h"
#include "cpu/outlet.h"
#include "cpu/row_leaves.h"

namespace softmaxd::cpu {
namespace {

class SplitRow final : public SharedWork {
 public:
  SplitRow(const Job& job, std::size_t row)
      : job_(job),
        row_(job, row),
        stats_(row_.count()),
        chunk_leaves_(std::clamp<std::size_t>(row_.count() / (kChunksPerThread * threads()), 1, kMaxChunkLeaves)),
        chunks_((row_.count() + chunk_leaves_ - 1) / chunk_leaves_) {}

  void run() { job_.pool.run(*this, std::min(chunks_.size(), threads()) - 1); }

  void participate() override {
    const FlushToZero flush;
    const WorkspacePool::Loan workspace = job_.workspaces.borrow();
    Outlet outlet(job_, workspace.data());
    const std::size_t self = participants_.fetch_add(1, std::memory_order_relaxed);
    measure_chunks(self, outlet);
    // Somebody holds the last chunk and computes: no longer than a chunk takes.
    while (!combined_.load(std::memory_order_acquire)) std::this_thread::yield();
    // First what this thread has measured, the newest first: it is still in this core's cache.
    for (std::size_t chunk = chunks_.size(); chunk-- > 0;) {
      if (chunks_[chunk].measured_by == self) write_unless_taken(chunk, outlet);
    }
    for (std::size_t chunk = 0; chunk < chunks_.size(); ++chunk) write_unless_taken(chunk, outlet);
  }

 private:
  static constexpr std::size_t kChunksPerThread = 4;
  static constexpr std::size_t kMaxChunkLeaves = 32;  // at each meeting a thread waits for half a chunk: 10 us

  struct Chunk {
    std::size_t measured_by = 0;
    std::atomic<bool> is_taken{false};  // for being written
  };

  std::size_t threads() const { return job_.pool.helpers() + 1; }

  void measure_chunks(std::size_t self, Outlet& outlet) {
    while (true) {
      const std::size_t chunk = next_to_measure_.fetch_add(1, std::memory_order_relaxed);
      if (chunk >= chunks_.size()) return;
      chunks_[chunk].measured_by = self;
      for_each_leaf(chunk, [&](std::size_t leaf) {
        stats_[leaf] = row_.has_room(leaf) ? row_.exponentiate_into_result(leaf, outlet) : row_.measure(leaf, outlet);
      });
      if (measured_.fetch_add(1, std::memory_order_acq_rel) + 1 < chunks_.size()) continue;
      row_stats_ = combine(stats_.data(), stats_.size());
      combined_.store(true, std::memory_order_release);
    }
  }

  void write_unless_taken(std::size_t chunk, Outlet& outlet) {
    if (chunks_[chunk].is_taken.exchange(true, std::memory_order_relaxed)) return;
    for_each_leaf(chunk, [&](std::size_t leaf) {
      if (row_.has_room(leaf)) {
        row_.scale_result(leaf, stats_[leaf], row_stats_);
      } else {
        row_.write_reread(leaf, stats_[leaf], row_stats_, outlet);
      }
    });
  }

  template <class Do>
  void for_each_leaf(std::size_t chunk, Do act) {
    const std::size_t first = chunk * chunk_leaves_;
    const std::size_t last = std::min(first + chunk_leaves_, stats_.size());
    for (std::size_t leaf = first; leaf < last; ++leaf) act(leaf);
  }

  const Job& job_;
  const RowLeaves row_;
  std::vector<LeafStats> stats_;
  const std::size_t chunk_leaves_;
  std::vector<Chunk> chunks_;
  RowStats row_stats_;
  std::atomic<std::size_t> participants_{0};
  std::atomic<std::size_t> next_to_measure_{0};
  std::atomic<std::size_t> measured_{0};
  std::atomic<bool> combined_{false};
};

}  // namespace

bool supports_split_row(const Matrix& matrix, const Limits& limits) {
  // Shorter rows are done before a helper is awake; with several rows a thread, rows share out well.
  constexpr std::size_t kMinColumns = 256 * 1024;
  return limits.threads > 1 && matrix.cols >= kMinColumns && matrix.rows < 2 * limits.threads;
}

void run_split_row(const Job& job) {
  for (std::size_t row = 0; row < job.matrix.rows; ++row) SplitRow(job, row).run();
}

}  // namespace softmaxd::cpu
