// 32 lanes a leaf, of any row: the stats of all leaves; these joined, 32 at a time, until a row has at most 32; then
// the leaves once more, for the result. Two reads and one write, and blocks that wait for nothing.
#include "gpu/element.h"
#include "gpu/leaf.h"
#include "gpu/variants.h"

namespace softmaxd::gpu {
namespace {

constexpr unsigned kThreads = 128;
constexpr std::size_t kGroupsABlock = kThreads / kLeafLanes;

// A leaf by its number over all rows.
struct NumberedLeaf {
  std::size_t row;
  LeafPlace place;

  __device__ NumberedLeaf(std::size_t index, std::size_t cols)
      : row(index / leaf_count(cols)), place(row, cols, index - row * leaf_count(cols)) {}
};

// The number of this thread's group of 32 lanes over all blocks of all launches.
__device__ std::size_t group_index(std::size_t first) {
  return first + blockIdx.x * kGroupsABlock + threadIdx.x / kLeafLanes;
}

template <class Element, bool kAligned>
__global__ void __launch_bounds__(kThreads) leaf_stats(const typename Element::Item* source, std::size_t cols,
                                                       std::size_t first, std::size_t count, Stats* of_leaves) {
  const std::size_t index = group_index(first);
  if (index >= count) return;  // all 32 lanes alike
  const NumberedLeaf leaf(index, cols);
  const unsigned lane = threadIdx.x % kLeafLanes;
  WholeLeaf<Element> part;
  part.template read<kAligned>(source + leaf.place.start, lane, leaf.place.cols);
  const Stats stats = part.exponentiate();
  if (lane == 0) of_leaves[index] = stats;
}

// parts: (rows, row_parts). joined: (rows, groups_of(row_parts, 32)), of which there are `count`.
__global__ void __launch_bounds__(kThreads)
    join_stats(const Stats* parts, std::size_t row_parts, std::size_t first, std::size_t count, Stats* joined) {
  const std::size_t index = group_index(first);
  if (index >= count) return;
  const std::size_t row_groups = groups_of(row_parts, kGroupSize);
  const std::size_t row = index / row_groups;
  const unsigned lane = threadIdx.x % kLeafLanes;
  const std::size_t part = (index - row * row_groups) * kGroupSize + lane;
  const Stats stats = join_lanes(part < row_parts ? parts[row * row_parts + part] : no_stats());
  if (lane == 0) joined[index] = stats;
}

// top: (rows, row_tops), at most 32 a row.
template <class Element, bool kAligned>
__global__ void __launch_bounds__(kThreads)
    write_leaves(const typename Element::Item* source, typename Element::Item* destination, std::size_t cols,
                 std::size_t first, std::size_t count, const Stats* top, unsigned row_tops, bool zero_masked_rows) {
  const std::size_t index = group_index(first);
  if (index >= count) return;
  const NumberedLeaf leaf(index, cols);
  const unsigned lane = threadIdx.x % kLeafLanes;
  WholeLeaf<Element> part;
  part.template read<kAligned>(source + leaf.place.start, lane, leaf.place.cols);
  const Stats stats = part.exponentiate();
  const Stats row = join_lanes(lane < row_tops ? top[leaf.row * row_tops + lane] : no_stats());
  part.template write<kAligned>(destination + leaf.place.start, lane, leaf.place.cols,
                                leaf_factor(stats.max, row, zero_masked_rows));
}

// Calls start(first, blocks) for the launches that give each of `count` groups its 32 lanes.
template <class Start>
Error for_each_group(std::size_t count, Start start) {
  return for_each_launch(groups_of(count, kGroupsABlock), [&](std::size_t first_block, std::size_t blocks) {
    return start(first_block * kGroupsABlock, blocks);
  });
}

template <class Element, bool kAligned>
Error run(const Job& job) {
  const auto* source = static_cast<const typename Element::Item*>(job.source);
  auto* destination = static_cast<typename Element::Item*>(job.destination);
  const std::size_t cols = job.matrix.cols;
  const std::size_t leaves = job.matrix.rows * leaf_count(cols);

  auto* parts = reinterpret_cast<Stats*>(job.workspace);
  Error error = for_each_group(leaves, [&](std::size_t first, std::size_t blocks) {
    return launch(leaf_stats<Element, kAligned>, blocks, kThreads, job.stream, source, cols, first, leaves, parts);
  });
  std::size_t row_parts = leaf_count(cols);
  while (row_parts > kGroupSize && error == kSuccess) {
    Stats* const joined = parts + job.matrix.rows * row_parts;
    const std::size_t row_groups = groups_of(row_parts, kGroupSize);
    const std::size_t count = job.matrix.rows * row_groups;
    error = for_each_group(count, [&](std::size_t first, std::size_t blocks) {
      return launch(join_stats, blocks, kThreads, job.stream, parts, row_parts, first, count, joined);
    });
    parts = joined;
    row_parts = row_groups;
  }
  if (error != kSuccess) return error;
  return for_each_group(leaves, [&](std::size_t first, std::size_t blocks) {
    return launch(write_leaves<Element, kAligned>, blocks, kThreads, job.stream, source, destination, cols, first,
                  leaves, parts, static_cast<unsigned>(row_parts), job.options.zero_masked_rows);
  });
}

}  // namespace

std::size_t reread_row_workspace_bytes(const Matrix& matrix) {
  std::size_t stats = leaf_count(matrix.cols);
  for (std::size_t level = stats; level > kGroupSize;) stats += level = groups_of(level, kGroupSize);
  return matrix.rows * stats * sizeof(Stats);
}

Error run_reread_row(const Job& job) {
  return with_element_and_alignment(
      job, [&](auto element, auto aligned) { return run<decltype(element), aligned.value>(job); });
}

}  // namespace softmaxd::gpu
