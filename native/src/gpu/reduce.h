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

// Values that a thread joins at each level of the tree: with 8, 256 threads meet 4 times; with 2 they would 9 times.
inline constexpr unsigned kFanIn = 8;

// Returns the reduction of every thread's `value`, to every thread. All threads of the block call it.
// shared: room for a float a thread; not to be written again before all threads have met once more.
template <class Operation>
__device__ float reduce_block(float value, float* shared) {
  shared[threadIdx.x] = value;
  __syncthreads();
  unsigned count = blockDim.x;
  for (; count >= kFanIn; count /= kFanIn) {
    const unsigned joined = count / kFanIn;
    if (threadIdx.x < joined) {
      float result = shared[threadIdx.x];
#pragma unroll
      for (unsigned k = 1; k < kFanIn; ++k) result = Operation::join(result, shared[threadIdx.x + k * joined]);
      shared[threadIdx.x] = result;
    }
    __syncthreads();
  }
  // What is left is so little that each thread joins it for itself.
  float result = shared[0];
#pragma unroll
  for (unsigned k = 1; k < kFanIn; ++k) {
    if (k < count) result = Operation::join(result, shared[k]);
  }
  return result;
}

// A sum that adds up its rounding errors apart: a thread may add thousands of terms.
//
// Source: W. Kahan's compensation, but joined to the sum at the end (A. Neumaier, 1974), so that one addition waits for
// the one before, and not four. The terms of a softmax are no larger than the sum for long.
class CompensatedSum {
 public:
  __device__ void add(float term) {
    const float sum = sum_ + term;
    error_ += term - (sum - sum_);
    sum_ = sum;
  }

  __device__ float value() const { return sum_ + error_; }

 private:
  float sum_ = 0.0F;
  float error_ = 0.0F;
};

// Returns 1 / sum, with the answer for a row of nothing but -inf, whose sum is 0.
__device__ inline float factor_of(float sum, bool zero_masked_rows) {
  if (sum == 0.0F) return zero_masked_rows ? 0.0F : NAN;
  return reciprocal(sum);
}

}  // namespace softmaxd::gpu
