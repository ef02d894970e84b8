// Many blocks a row, 32 lanes a leaf, in one launch: each block publishes the stats of its leaves, waits once until all
// blocks of the row have, and writes. The leaves of its last tile stay in registers: of a row that the device can hold,
// that is all there is, and it is read once. Of a longer row the other tiles are read again, those first that were read
// last and may still be in the cache.
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

// How a row is cut: into tiles of a leaf for each warp of a block; a block has every row_blocks-th tile.
struct Cut {
  unsigned row_blocks;
  unsigned block_tiles;
  unsigned row_parts;
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

// parts: (rows of this launch, row_parts).
template <class Element, bool kAligned>
__global__ void __launch_bounds__(kMaxBlockThreads)
    softmax_split_row(const typename Element::Item* source, typename Element::Item* destination, std::size_t cols,
                      Cut cut, Stats* parts, unsigned* counters, bool zero_masked_rows) {
  auto& shared = *reinterpret_cast<SharedStats*>(dynamic_shared());
  const unsigned row = blockIdx.x / cut.row_blocks;
  const unsigned block = blockIdx.x % cut.row_blocks;
  const unsigned block_leaves = blockDim.x / kLeafLanes;
  const unsigned own = threadIdx.x / kLeafLanes;
  const unsigned lane = threadIdx.x % kLeafLanes;
  Stats* const row_parts = parts + std::size_t{row} * cut.row_parts;
  const auto leaf_of = [=](unsigned tile) { return std::size_t{tile} * block_leaves + own; };

  WholeLeaf<Element> part;
  Stats stats;
  const auto read = [&](unsigned tile) {
    const LeafPlace place(row, cols, leaf_of(tile));
    part.template read<kAligned>(source + place.start, lane, place.cols);
    stats = part.exponentiate();
  };
  const unsigned last = block + (cut.block_tiles - 1) * cut.row_blocks;
#pragma unroll 1
  for (unsigned tile = block; tile <= last; tile += cut.row_blocks) {
    read(tile);
    if (block_leaves == kGroupSize) {
      if (lane == 0) shared.of_leaves[own] = stats;
      __syncthreads();
      const Stats group = join_lanes(shared.of_leaves[lane]);
      if (threadIdx.x == 0 && tile < cut.row_parts) row_parts[tile] = group;
      __syncthreads();
    } else if (lane == 0 && leaf_of(tile) < cut.row_parts) {
      row_parts[leaf_of(tile)] = stats;
    }
  }
  meet(counters + row, cut.row_blocks, block == 0);
  const Stats of_row = join_parts(row_parts, cut.row_parts, shared.of_groups);
#pragma unroll 1
  for (unsigned tile = last;; tile -= cut.row_blocks) {
    if (tile != last) read(tile);
    const float factor = leaf_factor(stats.max, of_row, zero_masked_rows);
    const LeafPlace place(row, cols, leaf_of(tile));
    part.template write<kAligned>(destination + place.start, lane, place.cols, factor);
    if (tile == block) return;
  }
}

// How many rows go into one launch, and how: no rows where not even one fits.
struct Launch {
  std::size_t rows;
  unsigned block_leaves;
  Cut cut;
};

template <class Kernel>
Launch launch_with(Kernel kernel, const Job& job, unsigned block_leaves) {
  const std::size_t leaves = leaf_count(job.matrix.cols);
  const std::size_t tiles = groups_of(leaves, block_leaves);
  const std::size_t row_parts = block_leaves == kGroupSize ? tiles : leaves;
  const std::size_t held = blocks_held(kernel, block_leaves * kLeafLanes, sizeof(SharedStats), job.device);
  if (row_parts > kMaxParts || held == 0) return {};
  const std::size_t block_tiles = groups_of(tiles, std::min<std::size_t>(held, kRound - 1));
  const std::size_t row_blocks = groups_of(tiles, block_tiles);
  return {std::min({held / row_blocks, kCounters, job.matrix.rows}),
          block_leaves,
          {static_cast<unsigned>(row_blocks), static_cast<unsigned>(block_tiles), static_cast<unsigned>(row_parts)}};
}

// The smallest blocks of 8 leaves and more with which all rows go at once, each read once; of 4 leaves, where that
// gives no multiprocessor more than one block. Many small ones keep more of the device busy than few large ones, but
// come to the meeting one after the other. Else the largest.
template <class Kernel>
Launch best_launch(Kernel kernel, const Job& job) {
  constexpr unsigned kLargest = kMaxBlockThreads / kLeafLanes;
  const auto is_all = [&](const Launch& launch) { return launch.rows == job.matrix.rows; };
  const Launch smallest = launch_with(kernel, job, 4);
  const std::size_t blocks = smallest.rows * smallest.cut.row_blocks;
  if (is_all(smallest) && smallest.cut.block_tiles == 1 &&
      blocks <= blocks_held(kernel, kMaxBlockThreads, sizeof(SharedStats), job.device)) {
    return smallest;
  }
  for (unsigned block_leaves = 8; block_leaves < kLargest; block_leaves *= 2) {
    const Launch launch = launch_with(kernel, job, block_leaves);
    if (is_all(launch) && launch.cut.block_tiles == 1) return launch;
  }
  return launch_with(kernel, job, kLargest);
}

template <class Element, bool kAligned>
Error run(const Job& job) {
  const auto kernel = softmax_split_row<Element, kAligned>;
  const Launch best = best_launch(kernel, job);
  if (best.rows == 0) return run_reread_row(job);
  const auto* source = static_cast<const typename Element::Item*>(job.source);
  auto* destination = static_cast<typename Element::Item*>(job.destination);
  const std::size_t cols = job.matrix.cols;
  Error error = kSuccess;
  for (std::size_t row = 0; row < job.matrix.rows && error == kSuccess; row += best.rows) {
    const std::size_t rows = std::min(best.rows, job.matrix.rows - row);
    error = launch_together(kernel, rows * best.cut.row_blocks, best.block_leaves * kLeafLanes, sizeof(SharedStats),
                            job.stream, source + row * cols, destination + row * cols, cols, best.cut,
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
