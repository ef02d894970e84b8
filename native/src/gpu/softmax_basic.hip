// A block a row: maximum, sum, result, each a read of the row; reduced by a tree in shared memory.
#include <algorithm>

#include "gpu/element.h"
#include "gpu/reduce.h"
#include "gpu/row_exponential.h"
#include "gpu/variants.h"

namespace softmaxd::gpu {
namespace {

constexpr unsigned kMaxThreads = 256;

template <class Element>
__global__ void __launch_bounds__(kMaxThreads)
    softmax_basic(const typename Element::Item* source, typename Element::Item* destination, std::size_t cols,
                  bool zero_masked_rows) {
  __shared__ float of_max[kMaxThreads];
  __shared__ float of_sum[kMaxThreads];
  const auto* x = source + blockIdx.x * cols;
  auto* y = destination + blockIdx.x * cols;

  float max = -INFINITY;
  for (std::size_t i = threadIdx.x; i < cols; i += blockDim.x) max = Max::join(max, Element::load(x[i]));
  const RowExponential exponential(reduce_block<Max>(max, of_max));

  CompensatedSum sum;
  for (std::size_t i = threadIdx.x; i < cols; i += blockDim.x) sum.add(exponential(Element::load(x[i])));
  const float factor = factor_of(reduce_block<Sum>(sum.value(), of_sum), zero_masked_rows);

  for (std::size_t i = threadIdx.x; i < cols; i += blockDim.x) {
    y[i] = Element::store(exponential(Element::load(x[i])) * factor);
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
    Error error = kSuccess;
    for (std::size_t row = 0; row < job.matrix.rows && error == kSuccess; row += kMaxBlocks) {
      error = launch(softmax_basic<Element>, std::min(kMaxBlocks, job.matrix.rows - row), threads_for(cols), job.stream,
                     source + row * cols, destination + row * cols, cols, job.options.zero_masked_rows);
    }
    return error;
  });
}

}  // namespace softmaxd::gpu
