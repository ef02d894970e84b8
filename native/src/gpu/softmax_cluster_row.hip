// A cluster of blocks a row, 32 lanes a leaf: each block keeps its leaves in registers and gives their stats to all
// blocks of its cluster, which meet once. One read and one write, for many rows that are too long for a block; only
// where a device has clusters, NVIDIA's from Hopper on.
#include "gpu/element.h"
#include "gpu/leaf.h"
#include "gpu/variants.h"

namespace softmaxd::gpu {

#if SOFTMAXD_HAS_CLUSTERS

namespace {

// More and smaller blocks wait less for each other; beyond 16 of them the next size is taken.
constexpr unsigned kBlockLeaves[] = {8, 16};
constexpr std::size_t kMaxClusterBlocks = 16;

template <class Element, bool kAligned>
__global__ void __launch_bounds__(kMaxBlockThreads)
    softmax_cluster_row(const typename Element::Item* source, typename Element::Item* destination,
                        std::size_t first_row, std::size_t cols, unsigned row_blocks, unsigned leaves,
                        bool zero_masked_rows) {
  arrive_at_cluster();
  Stats* const of_groups = reinterpret_cast<Stats*>(dynamic_shared());
  Stats* const of_leaves = of_groups + kGroupSize;
  const std::size_t row = first_row + blockIdx.x / row_blocks;
  const unsigned lane = threadIdx.x % kLeafLanes;
  const unsigned leaf = (blockIdx.x % row_blocks * blockDim.x + threadIdx.x) / kLeafLanes;
  const LeafPlace place(row, cols, leaf);

  WholeLeaf<Element> part;
  part.template read<kAligned>(source + place.start, lane, place.cols);
  const Stats stats = part.exponentiate();
  wait_for_cluster();  // all its blocks have begun, and so have their memory
  if (lane < row_blocks && leaf < leaves) *in_block_of_cluster(of_leaves + leaf, lane) = stats;
  arrive_at_cluster();
  wait_for_cluster();
  const Stats of_row = join_parts(of_leaves, leaves, of_groups);
  part.template write<kAligned>(destination + place.start, lane, place.cols,
                                leaf_factor(stats.max, of_row, zero_masked_rows));
}

template <class Element, bool kAligned>
Error run(const Job& job) {
  const std::size_t leaves = leaf_count(job.matrix.cols);
  unsigned block_leaves = kBlockLeaves[0];
  if (groups_of(leaves, block_leaves) > kMaxClusterBlocks) block_leaves = kBlockLeaves[1];
  const auto row_blocks = static_cast<unsigned>(groups_of(leaves, block_leaves));
  const std::size_t shared_bytes = (kGroupSize + leaves) * sizeof(Stats);
  const auto start = [&](std::size_t first_row, std::size_t rows) {
    return launch_clusters(softmax_cluster_row<Element, kAligned>, rows, row_blocks, block_leaves * kLeafLanes,
                           shared_bytes, job.stream, static_cast<const typename Element::Item*>(job.source),
                           static_cast<typename Element::Item*>(job.destination), first_row, job.matrix.cols,
                           row_blocks, static_cast<unsigned>(leaves), job.options.zero_masked_rows);
  };
  return for_each_launch(job.matrix.rows, start, kMaxBlocks / kMaxClusterBlocks);
}

}  // namespace

std::size_t cluster_row_max_columns() { return kBlockLeaves[1] * kMaxClusterBlocks * kLeafColumns; }

Error run_cluster_row(const Job& job) {
  const Error error = with_element_and_alignment(
      job, [&](auto element, auto aligned) { return run<decltype(element), aligned.value>(job); });
  if (error == kSuccess) return error;
  // A device without clusters, or not as large ones.
  static_cast<void>(last_error());
  return run_reread_row(job);
}

#else

std::size_t cluster_row_max_columns() { return 0; }

Error run_cluster_row(const Job& job) { return run_reread_row(job); }

#endif

}  // namespace softmaxd::gpu
