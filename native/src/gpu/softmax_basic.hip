// A block a row: maximum, sum, result, each a read of the row unless it is short; reduced by a tree in shared memory.
#include "gpu/element.h"
#include "gpu/exponential.h"
#include "gpu/reduce.h"
#include "gpu/variants.h"

namespace softmaxd::gpu {
namespace {

constexpr unsigned kMaxThreads = 256;

// Items that a thread reads before it works on them, so that they are on their way at once.
constexpr unsigned kItems = 4;

// Calls act(column, x) for each column of this thread. act() may write the result where x was.
template <class Element, class Act>
__device__ void for_each_column(const typename Element::Item* row, std::size_t cols, Act act) {
  float x[kItems];
  std::size_t first = threadIdx.x;
  for (; first + (kItems - 1) * blockDim.x < cols; first += kItems * blockDim.x) {
#pragma unroll
    for (unsigned k = 0; k < kItems; ++k) x[k] = Element::load(row[first + k * blockDim.x]);
#pragma unroll
    for (unsigned k = 0; k < kItems; ++k) act(first + k * blockDim.x, x[k]);
  }
  for (; first < cols; first += blockDim.x) act(first, Element::load(row[first]));
}

// A thread has one element, or none: nothing is read or computed twice.
template <class Element>
__device__ void softmax_short_row(const typename Element::Item* row, typename Element::Item* result, std::size_t cols,
                                  bool zero_masked_rows, float* of_max, float* of_sum) {
  const bool has_element = threadIdx.x < cols;
  const float x = has_element ? Element::load(row[threadIdx.x]) : -INFINITY;
  const Exponential exponential(reduce_block<Max>(x, of_max));
  const float e = exponential(x);
  const float factor = factor_of(reduce_block<Sum>(e, of_sum), zero_masked_rows);
  if (has_element) result[threadIdx.x] = Element::store(e * factor);
}

template <class Element>
__device__ void softmax_row(const typename Element::Item* row, typename Element::Item* result, std::size_t cols,
                            bool zero_masked_rows, float* of_max, float* of_sum) {
  float max = -INFINITY;
  for_each_column<Element>(row, cols, [&](std::size_t, float x) { max = Max::join(max, x); });
  const Exponential exponential(reduce_block<Max>(max, of_max));

  CompensatedSum sum;
  for_each_column<Element>(row, cols, [&](std::size_t, float x) { sum.add(exponential(x)); });
  const float factor = factor_of(reduce_block<Sum>(sum.value(), of_sum), zero_masked_rows);

  for_each_column<Element>(row, cols,
                           [&](std::size_t i, float x) { result[i] = Element::store(exponential(x) * factor); });
}

template <class Element>
__global__ void __launch_bounds__(kMaxThreads)
    softmax_basic(const typename Element::Item* source, typename Element::Item* destination, std::size_t cols,
                  bool zero_masked_rows) {
  __shared__ float of_max[kMaxThreads];
  __shared__ float of_sum[kMaxThreads];
  const std::size_t start = blockIdx.x * cols;
  if (cols <= blockDim.x) {
    softmax_short_row<Element>(source + start, destination + start, cols, zero_masked_rows, of_max, of_sum);
  } else {
    softmax_row<Element>(source + start, destination + start, cols, zero_masked_rows, of_max, of_sum);
  }
}

// The next power of two, up to kMaxThreads.
unsigned threads_for(std::size_t cols) {
  unsigned threads = 1;
  while (threads < kMaxThreads && threads < cols) threads *= 2;
  return threads;
}

}  // namespace

Error run_basic(const Job& job) {
  return with_element(job.matrix.dtype, [&](auto element) {
    using Element = decltype(element);
    const auto* source = static_cast<const typename Element::Item*>(job.source);
    auto* destination = static_cast<typename Element::Item*>(job.destination);
    const std::size_t cols = job.matrix.cols;
    return for_each_launch(job.matrix.rows, [&](std::size_t row, std::size_t blocks) {
      return launch(softmax_basic<Element>, blocks, threads_for(cols), job.stream, source + row * cols,
                    destination + row * cols, cols, job.options.zero_masked_rows);
    });
  });
}

}  // namespace softmaxd::gpu
