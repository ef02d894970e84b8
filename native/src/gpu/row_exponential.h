// The exponentials of one row, as exact as float32 has them.
#pragma once

#include "gpu/gpu_runtime.h"

namespace softmaxd::gpu {

// Computes exp(x) * 2^k for x up to a row's maximum; k is the row's own, so that a softmax does not see it.
//
// Of exp(x - max), the difference is the problem: it is rounded to 24 bits, which at -20 alone is an error of 1e-6 in
// the result. Here nothing is rounded before the argument is reduced. Up to a maximum of 208 there is no difference: k
// takes max * log2(e), rounded to an integer, off the exponent. Beyond, x and max are within a factor of two of each
// other wherever the result is not 0, and their difference is exact (P. Sterbenz, Floating-Point Computation, 1974).
//
// k adds 24, so that what is 2^-126 of a sum is still a normal number. Below 2^-149 of the maximum the result is 0, for
// a NaN, or +inf, it is NaN.
//
// Source for the reduction: W. J. Cody and W. Waite, Software Manual for the Elementary Functions (1980), chapter 6.
class RowExponential {
 public:
  // max: the row's; -inf for a row of nothing else.
  __device__ explicit RowExponential(float max) {
    if (max == -INFINITY) max = 0.0F;
    const float magnitude = fabsf(max);
    const bool is_far = magnitude >= 208.0F && magnitude < INFINITY;
    const float shifted = is_far ? kMagic : fmaf(max, kLog2e, kMagic);
    subtrahend_ = is_far ? max : 0.0F;
    exponent_bits_ = 127U + kHeadroom - __float_as_uint(shifted);
    lowest_ = ((shifted - kMagic) - 125.0F - kHeadroom) * kLn2;
  }

  __device__ float operator()(float x) const {
    const float y = x - subtrahend_;
    const float shifted = fmaf(y, kLog2e, kMagic);  // the integer nearest to y * log2(e), in the low bits
    const float n = shifted - kMagic;
    const float fraction = fmaf(y, kLog2eRest, fmaf(y, kLog2e, -n));
    const float power = __uint_as_float((__float_as_uint(shifted) + exponent_bits_) << 23);
    const float result = exp2_of_fraction(fraction) * power;  // a product: it keeps a NaN
    return y < lowest_ ? 0.0F : result;
  }

 private:
  static constexpr float kMagic = 0x1.8p23F;
  static constexpr float kLog2e = 0x1.715476p0F;
  static constexpr float kLog2eRest = 0x1.4ae0cp-26F;
  static constexpr float kLn2 = 0x1.62e43p-1F;
  static constexpr unsigned kHeadroom = 24;

  float subtrahend_;
  float lowest_;
  unsigned exponent_bits_;
};

}  // namespace softmaxd::gpu
