// A block a row, 32 lanes a leaf: up to 32 leaves (16 on AMD), kept in registers, read once and written once.
#include "gpu/element.h"
#include "gpu/leaf.h"
#include "gpu/variants.h"

namespace softmaxd::gpu {
namespace {

template <class Element, bool kAligned>
__global__ void __launch_bounds__(kMaxBlockThreads)
    softmax_block_row(const typename Element::Item* source, typename Element::Item* destination, std::size_t first_row,
                      unsigned cols, bool zero_masked_rows) {
  __shared__ Stats of_leaves[kGroupSize];
  const unsigned leaf = threadIdx.x / kLeafLanes;
  const unsigned lane = threadIdx.x % kLeafLanes;
  const unsigned column = leaf * static_cast<unsigned>(kLeafColumns);
  const unsigned leaf_cols = cols - column < kLeafColumns ? cols - column : static_cast<unsigned>(kLeafColumns);
  const std::size_t start = (first_row + blockIdx.x) * cols + column;

  WholeLeaf<Element> part;
  part.template read<kAligned>(source + start, lane, leaf_cols);
  const Stats stats = part.exponentiate();
  if (lane == 0) of_leaves[leaf] = stats;
  __syncthreads();
  const Stats row = join_lanes(lane < blockDim.x / kLeafLanes ? of_leaves[lane] : no_stats());
  part.template write<kAligned>(destination + start, lane, leaf_cols, leaf_factor(stats.max, row, zero_masked_rows));
}

template <class Element, bool kAligned>
Error run(const Job& job) {
  const auto threads = static_cast<unsigned>(leaf_count(job.matrix.cols)) * kLeafLanes;
  return for_each_launch(job.matrix.rows, [&](std::size_t first, std::size_t blocks) {
    return launch(softmax_block_row<Element, kAligned>, blocks, threads, job.stream,
                  static_cast<const typename Element::Item*>(job.source),
                  static_cast<typename Element::Item*>(job.destination), first, static_cast<unsigned>(job.matrix.cols),
                  job.options.zero_masked_rows);
  });
}

}  // namespace

std::size_t block_row_max_columns() { return kMaxBlockThreads / kLeafLanes * kLeafColumns; }

Error run_block_row(const Job& job) {
  return with_element_and_alignment(
      job, [&](auto element, auto aligned) { return run<decltype(element), aligned.value>(job); });
}

}  // namespace softmaxd::gpu
