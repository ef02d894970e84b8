// 32 lanes a row, or 1 to 16 where it has few columns: one leaf, kept in registers, read once and written once.
#include "gpu/element.h"
#include "gpu/leaf.h"
#include "gpu/variants.h"

namespace softmaxd::gpu {
namespace {

constexpr unsigned kThreads = 128;

template <class Element, unsigned kVectors, unsigned kLanes, bool kAligned>
__global__ void __launch_bounds__(kThreads)
    softmax_warp_row(const typename Element::Item* source, typename Element::Item* destination, std::size_t first_row,
                     std::size_t rows, unsigned cols, bool zero_masked_rows) {
  constexpr unsigned kRows = kThreads / kLanes;
  const std::size_t row = first_row + blockIdx.x * std::size_t{kRows} + threadIdx.x / kLanes;
  const unsigned lane = threadIdx.x % kLanes;
  // Lanes beyond the last row come to the shuffles too.
  const unsigned own_cols = row < rows ? cols : 0;
  const std::size_t start = row < rows ? row * cols : 0;

  LeafPart<Element, kVectors, kLanes> part;
  part.template read<kAligned>(source + start, lane, own_cols);
  const Stats stats = part.exponentiate();
  // leaf_factor() would multiply by 1.
  part.template write<kAligned>(destination + start, lane, own_cols, factor_of(stats.sum, zero_masked_rows));
}

template <class Element, bool kAligned, unsigned kVectors, unsigned kLanes>
Error run_with(const Job& job) {
  constexpr std::size_t kRows = kThreads / kLanes;
  const auto kernel = softmax_warp_row<Element, kVectors, kLanes, kAligned>;
  return for_each_launch(groups_of(job.matrix.rows, kRows), [&](std::size_t first, std::size_t blocks) {
    return launch(kernel, blocks, kThreads, job.stream, static_cast<const typename Element::Item*>(job.source),
                  static_cast<typename Element::Item*>(job.destination), first * kRows, job.matrix.rows,
                  static_cast<unsigned>(job.matrix.cols), job.options.zero_masked_rows);
  });
}

// The least lanes and vectors that hold a row.
template <class Element, bool kAligned>
Error run(const Job& job) {
  constexpr std::size_t kVectorItems = 16 / sizeof(typename Element::Item);
  const std::size_t vectors = groups_of(job.matrix.cols, kVectorItems);
  if (vectors <= 1) return run_with<Element, kAligned, 1, 1>(job);
  if (vectors <= 2) return run_with<Element, kAligned, 1, 2>(job);
  if (vectors <= 4) return run_with<Element, kAligned, 1, 4>(job);
  if (vectors <= 8) return run_with<Element, kAligned, 1, 8>(job);
  if (vectors <= 16) return run_with<Element, kAligned, 1, 16>(job);
  if (vectors <= 32) return run_with<Element, kAligned, 1, 32>(job);
  if (vectors <= 64) return run_with<Element, kAligned, 2, 32>(job);
  if constexpr (kVectorItems == 4) {
    if (vectors > 128) return run_with<Element, kAligned, 8, 32>(job);
  }
  return run_with<Element, kAligned, 4, 32>(job);
}

}  // namespace

Error run_warp_row(const Job& job) {
  return with_element_and_alignment(
      job, [&](auto element, auto aligned) { return run<decltype(element), aligned.value>(job); });
}

}  // namespace softmaxd::gpu
