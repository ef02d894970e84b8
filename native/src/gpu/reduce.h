// Reductions over the threads of one block, by a tree in shared memory; the number of threads is a power of two.
#pragma once

#include "gpu/gpu_runtime.h"

namespace softmaxd::gpu {

struct Max {
  // fmaxf passes over a NaN: it is found by the sum, which it makes NaN.
  __device__ static float join(float a, float b) { return fmaxf(a, b); }
};

struct Sum {
  __device__ static float join(float a, float b) { return a + b; }
};

// Returns the reduction of every thread's `value`, to every thread. All threads of the block call it.
// shared: room for a float a thread; free for other use after the call.
template <class Operation>
__device__ float reduce_block(float value, float* shared) {
  shared[threadIdx.x] = value;
  __syncthreads();
  for (unsigned half = blockDim.x / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) shared[threadIdx.x] = Operation::join(shared[threadIdx.x], shared[threadIdx.x + half]);
    __syncthreads();
  }
  const float result = shared[0];
  __syncthreads();
  return result;
}

// A sum that carries its rounding error along (Kahan): a thread may add up thousands of terms.
class CompensatedSum {
 public:
  __device__ void add(float term) {
    const float corrected = term - error_;
    const float sum = sum_ + corrected;
    error_ = (sum - sum_) - corrected;
    sum_ = sum;
  }

  __device__ float value() const { return sum_; }

 private:
  float sum_ = 0.0F;
  float error_ = 0.0F;
};

// What a row's values are reduced by: its maximum, or 0 where all of it is -inf, which then gives exponentials of 0 and
// not of -inf - -inf. A +inf or a NaN makes the row's sum NaN.
__device__ inline float subtrahend_of(float max) { return max == -INFINITY ? 0.0F : max; }

// Returns 1 / sum, with the answer for a row of nothing but -inf, whose sum is 0.
__device__ inline float factor_of(float sum, bool zero_masked_rows) {
  if (sum == 0.0F) return zero_masked_rows ? 0.0F : NAN;
  return 1.0F / sum;
}

}  // namespace softmaxd::gpu
