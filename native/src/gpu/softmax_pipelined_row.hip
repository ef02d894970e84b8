// Blocks that stay, 32 lanes a leaf: each keeps the leaves of a tile in registers, and while the stats of that row's
// other tiles are on their way it reads its next tile and makes the exponentials of it. One read and one write, for
// many rows that are too long for a block. All blocks of the launch are held at the same time, so they may wait.
#include <algorithm>

#include "gpu/element.h"
#include "gpu/leaf.h"
#include "gpu/variants.h"

namespace softmaxd::gpu {
namespace {

// Small blocks, as those of one wait for each other; and as many of them as have two leaves a warp in registers.
constexpr unsigned kTileLeaves = 4;
constexpr unsigned kThreads = kTileLeaves * kLeafLanes;
constexpr std::size_t kSharedBytes = 2 * kGroupSize * sizeof(Stats);
#if defined(__CUDACC__)
constexpr unsigned kBound = 5;  // blocks of a multiprocessor
#else
constexpr unsigned kBound = 1;  // waves of a SIMD
#endif

// What a leaf's stats are before they are published: all bits set, which published ones never are.
constexpr unsigned char kMissingByte = 0xFF;
constexpr std::uint64_t kMissing = ~std::uint64_t{0};

// In one access, so that whoever sees the stats sees both of them, and needs no other sign that they are there.
__device__ inline void publish(std::uint64_t* to, const Stats& stats) {
  const std::uint64_t bits = std::uint64_t{__float_as_uint(stats.sum)} << 32 | __float_as_uint(stats.max);
  store_shared_word(to, bits == kMissing ? kMissing >> 1 : bits);  // two NaN either way
}

__device__ inline Stats wait_for_stats(const std::uint64_t* from) {
  std::uint64_t bits;
  while ((bits = load_shared_word(from)) == kMissing) pause();
  return {__uint_as_float(static_cast<unsigned>(bits)), __uint_as_float(static_cast<unsigned>(bits >> 32))};
}

// Joins up to 32 leaves of a row, as soon as they are there.
__device__ inline Stats join_when_there(const std::uint64_t* leaves, unsigned count, unsigned lane) {
  return join_lanes(lane < count ? wait_for_stats(leaves + lane) : no_stats());
}

// Joins all leaves of a row, in the order of join_parts(); a single group is joined with nothing. All threads of the
// block call it. of_groups: room for 32 in the block's shared memory, which the next call does not use.
__device__ inline Stats join_row(const std::uint64_t* row_leaves, unsigned count, Stats* of_groups) {
  constexpr auto kGroup = static_cast<unsigned>(kGroupSize);
  const unsigned lane = threadIdx.x % kLeafLanes;
  const auto groups = static_cast<unsigned>(groups_of(count, kGroup));
  // All lanes come to every round: 32 of them may be half a wave.
  for (unsigned first = 0; first < groups; first += kTileLeaves) {
    const unsigned group = first + threadIdx.x / kLeafLanes;
    const unsigned start = group < groups ? group * kGroup : count;
    const Stats joined = join_when_there(row_leaves + start, count - start, lane);
    if (lane == 0 && group < groups) of_groups[group] = joined;
  }
  __syncthreads();
  return join_lanes(lane < groups ? of_groups[lane] : no_stats());
}

// Of all rows: tile 0 is the first of row 0. Each of `blocks` blocks takes every so manieth.
struct Tiles {
  unsigned of_row;
  unsigned count;
  unsigned blocks;
};

// This thread's leaf of a tile.
struct TiledLeaf {
  unsigned row;
  unsigned number;

  __device__ TiledLeaf(unsigned tile, unsigned row_tiles)
      : row(tile / row_tiles), number((tile - row * row_tiles) * kTileLeaves + threadIdx.x / kLeafLanes) {}
};

// A row has no more tiles than there are blocks, so that all of them are published in one turn or in two that follow
// each other; and a block publishes what it has of a turn before it waits for the turn before.
// of_leaves: (rows, leaves), all missing.
template <class Element, bool kAligned>
__global__ void __launch_bounds__(kThreads, kBound)
    softmax_pipelined_row(const typename Element::Item* source, typename Element::Item* destination, std::size_t cols,
                          Tiles tiles, unsigned leaves, std::uint64_t* of_leaves, bool zero_masked_rows) {
  Stats* const of_groups = reinterpret_cast<Stats*>(dynamic_shared());  // of two turns
  const unsigned lane = threadIdx.x % kLeafLanes;

  // Two of these are most of a thread's registers: what lies where is found again.
  struct Held {
    WholeLeaf<Element> part;
    Stats stats;
  };
  const auto read = [&](Held& held, unsigned tile) {
    if (tile >= tiles.count) return;
    const TiledLeaf leaf(tile, tiles.of_row);
    const LeafPlace place(leaf.row, cols, leaf.number);
    held.part.template read<kAligned, Caching::kOnce>(source + place.start, lane, place.cols);
    held.stats = held.part.exponentiate();
    if (lane == 0 && leaf.number < leaves) {
      publish(of_leaves + std::size_t{leaf.row} * leaves + leaf.number, held.stats);
    }
  };
  const auto write = [&](const Held& held, unsigned tile, Stats* shared) {
    const TiledLeaf leaf(tile, tiles.of_row);
    const Stats of_row = join_row(of_leaves + std::size_t{leaf.row} * leaves, leaves, shared);
    const LeafPlace place(leaf.row, cols, leaf.number);
    held.part.template write<kAligned, Caching::kOnce>(destination + place.start, lane, place.cols,
                                                       leaf_factor(held.stats.max, of_row, zero_masked_rows));
  };

  Held even;
  Held odd;
  unsigned tile = blockIdx.x;
  read(even, tile);
#pragma unroll 1
  for (;;) {
    read(odd, tile + tiles.blocks);
    write(even, tile, of_groups);
    if ((tile += tiles.blocks) >= tiles.count) return;
    read(even, tile + tiles.blocks);
    write(odd, tile, of_groups + kGroupSize);
    if ((tile += tiles.blocks) >= tiles.count) return;
  }
}

template <class Element, bool kAligned>
Error run(const Job& job) {
  const auto kernel = softmax_pipelined_row<Element, kAligned>;
  const std::size_t leaves = leaf_count(job.matrix.cols);
  const std::size_t row_tiles = groups_of(leaves, kTileLeaves);
  const std::size_t held = blocks_held(kernel, kThreads, kSharedBytes, job.device);
  if (row_tiles > held || job.matrix.rows > kMaxBlocks / row_tiles) return run_reread_row(job);
  const std::size_t count = job.matrix.rows * row_tiles;
  const std::size_t blocks = std::min(count, held);
  const Tiles tiles{static_cast<unsigned>(row_tiles), static_cast<unsigned>(count), static_cast<unsigned>(blocks)};
  auto* const of_leaves = reinterpret_cast<std::uint64_t*>(job.workspace);
  const Error error =
      fill_device(of_leaves, kMissingByte, job.matrix.rows * leaves * sizeof(std::uint64_t), job.stream);
  if (error != kSuccess) return error;
  return launch_together(kernel, blocks, kThreads, kSharedBytes, job.stream,
                         static_cast<const typename Element::Item*>(job.source),
                         static_cast<typename Element::Item*>(job.destination), job.matrix.cols, tiles,
                         static_cast<unsigned>(leaves), of_leaves, job.options.zero_masked_rows);
}

}  // namespace

std::size_t pipelined_row_max_columns() { return kGroupSize * kGroupSize * kLeafColumns; }

std::size_t pipelined_row_tile_columns() { return kTileLeaves * kLeafColumns; }

// The same as reread_row's, which it falls back to, or less: the stats of all leaves.
std::size_t pipelined_row_workspace_bytes(const Matrix& matrix) { return reread_row_workspace_bytes(matrix); }

Error run_pipelined_row(const Job& job) {
  return with_element_and_alignment(
      job, [&](auto element, auto aligned) { return run<decltype(element), aligned.value>(job); });
}

}  // namespace softmaxd::gpu
