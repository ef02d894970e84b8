// Many blocks a row, 32 lanes a leaf, in one launch: each block keeps its leaves in registers, publishes their stats,
// waits once until all blocks of the row have, and writes. One read and one write, for few rows.
#include <algorithm>

#include "gpu/element.h"
#include "gpu/leaf.h"
#include "gpu/variants.h"

namespace softmaxd::gpu {
namespace {

// What one launch adds to a counter, however many blocks it has: so no launch has to find it at 0.
constexpr unsigned kRound = 1U << 16;

// What blocks share of a row: the stats of its leaves, or, where a block has a whole group of them, of its groups.
constexpr std::size_t kMaxParts = kGroupSize * kGroupSize;

struct SharedStats {
  Stats of_leaves[kGroupSize];
  Stats of_groups[kGroupSize];
};

// Waits until `blocks` blocks have come here. What they wrote before is seen after.
__device__ void meet(unsigned* counter, unsigned blocks, bool is_first) {
  __syncthreads();
  if (threadIdx.x == 0) {
    const unsigned before = add_to_counter(counter, is_first ? kRound - (blocks - 1) : 1);
    const unsigned round = before / kRound;
    while (load_counter(counter) / kRound == round) pause();
  }
  __syncthreads();
}

// Joins a row's parts; every thread gets the result. parts: (count), written by other blocks.
__device__ Stats join_parts(const Stats* parts, unsigned count, SharedStats& shared) {
  const unsigned lane = threadIdx.x % kLeafLanes;
  if (count <= kGroupSize) return join_lanes(lane < count ? parts[lane] : no_stats());
  const auto groups = static_cast<unsigned>(groups_of(count, kGroupSize));
  // All lanes come to every round: 32 of them may be half a wave.
  for (unsigned first = 0; first < groups; first += blockDim.x / kLeafLanes) {
    const unsigned group = first + threadIdx.x / kLeafLanes;
    const unsigned part = group * static_cast<unsigned>(kGroupSize) + lane;
    const Stats stats = join_lanes(part < count ? parts[part] : no_stats());
    if (lane == 0 && group < groups) shared.of_groups[group] = stats;
  }
  __syncthreads();
  return join_lanes(lane < groups ? shared.of_groups[lane] : no_stats());
}

// parts: (rows of this launch, row_parts). row_blocks: blocks of one row.
template <class Element, bool kAligned>
__global__ void __launch_bounds__(kMaxBlockThreads)
    softmax_split_row(const typename Element::Item* source, typename Element::Item* destination, std::size_t cols,
                      unsigned row_blocks, unsigned row_parts, Stats* parts, unsigned* counters,
                      bool zero_masked_rows) {
  auto& shared = *reinterpret_cast<SharedStats*>(dynamic_shared());
  const unsigned row = blockIdx.x / row_blocks;
  const unsigned block = blockIdx.x % row_blocks;
  const unsigned block_leaves = blockDim.x / kLeafLanes;
  const unsigned own_leaf = threadIdx.x / kLeafLanes;
  const unsigned lane = threadIdx.x % kLeafLanes;
  const std::size_t leaf = std::size_t{block} * block_leaves + own_leaf;
  const std::size_t column = leaf * kLeafColumns;
  const std::size_t left = column < cols ? cols - column : 0;
  const auto leaf_cols = static_cast<unsigned>(left < kLeafColumns ? left : kLeafColumns);
  const std::size_t start = row * cols + (leaf_cols == 0 ? 0 : column);
  Stats* const row_stats = parts + std::size_t{row} * row_parts;

  WholeLeaf<Element> part;
  part.template read<kAligned>(source + start, lane, leaf_cols);
  const Stats stats = part.exponentiate();
  if (block_leaves == kGroupSize) {
    if (lane == 0) shared.of_leaves[own_leaf] = stats;
    __syncthreads();
    const Stats group = join_lanes(shared.of_leaves[lane]);
    if (threadIdx.x == 0) row_stats[block] = group;
  } else if (lane == 0 && leaf < row_parts) {
    row_stats[leaf] = stats;
  }
  meet(counters + row, row_blocks, block == 0);
  const Stats of_row = join_parts(row_stats, row_parts, shared);
  part.template write<kAligned>(destination + start, lane, leaf_cols, leaf_factor(stats.max, of_row, zero_masked_rows));
}

// How a row is cut, and how many rows go into one launch; 0 where not even one fits.
struct Cut {
  unsigned block_leaves;
  unsigned row_blocks;
  unsigned row_parts;
  std::size_t rows_at_once;
};

template <class Kernel>
Cut cut_of(Kernel kernel, const Job& job, unsigned block_leaves) {
  const std::size_t leaves = leaf_count(job.matrix.cols);
  const std::size_t row_blocks = groups_of(leaves, block_leaves);
  const std::size_t row_parts = block_leaves == kGroupSize ? row_blocks : leaves;
  if (row_parts > kMaxParts || row_blocks >= kRound) return {};
  const std::size_t held = blocks_held(kernel, block_leaves * kLeafLanes, sizeof(SharedStats), job.device);
  const std::size_t rows = std::min({held / row_blocks, kCounters, job.matrix.rows});
  return {block_leaves, static_cast<unsigned>(row_blocks), static_cast<unsigned>(row_parts), rows};
}

// The smallest blocks with which all rows go at once, since many small ones keep more of the device busy than few large
// ones; else those with which the most rows do.
template <class Kernel>
Cut best_cut(Kernel kernel, const Job& job) {
  Cut best{};
  for (unsigned block_leaves = 4; block_leaves * kLeafLanes <= kMaxBlockThreads; block_leaves *= 2) {
    const Cut cut = cut_of(kernel, job, block_leaves);
    if (cut.rows_at_once > best.rows_at_once) best = cut;
    if (best.rows_at_once == job.matrix.rows) break;
  }
  return best;
}

template <class Element, bool kAligned>
Error run(const Job& job) {
  const auto kernel = softmax_split_row<Element, kAligned>;
  const Cut cut = best_cut(kernel, job);
  if (cut.rows_at_once == 0) return run_reread_row(job);
  const auto* source = static_cast<const typename Element::Item*>(job.source);
  auto* destination = static_cast<typename Element::Item*>(job.destination);
  const std::size_t cols = job.matrix.cols;
  Error error = kSuccess;
  for (std::size_t row = 0; row < job.matrix.rows && error == kSuccess; row += cut.rows_at_once) {
    const std::size_t rows = std::min(cut.rows_at_once, job.matrix.rows - row);
    error =
        launch_together(kernel, rows * cut.row_blocks, cut.block_leaves * kLeafLanes, sizeof(SharedStats), job.stream,
                        source + row * cols, destination + row * cols, cols, cut.row_blocks, cut.row_parts,
                        reinterpret_cast<Stats*>(job.workspace), job.counters, job.options.zero_masked_rows);
  }
  return error;
}

}  // namespace

std::size_t split_row_workspace_bytes(const Matrix& matrix) {
  const std::size_t rows = std::min(matrix.rows, kCounters);
  return std::max(rows * std::min(leaf_count(matrix.cols), kMaxParts) * sizeof(Stats),
                  reread_row_workspace_bytes(matrix));
}

Error run_split_row(const Job& job) {
  return with_element_and_alignment(
      job, [&](auto element, auto aligned) { return run<decltype(element), aligned.value>(job); });
}

}  // namespace softmaxd::gpu
