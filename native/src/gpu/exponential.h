// Exponentials as exact as float32 has them, and what joins those of one maximum to those of another.
#pragma once

#include "gpu/gpu_runtime.h"

namespace softmaxd::gpu {

// Computes exp(x) * 2^k for x up to a maximum; k belongs to the maximum, so that a softmax does not see it.
//
// Of exp(x - max), the difference is the problem: it is rounded to 24 bits, which at -20 alone is an error of 1e-6 in
// the result. Here nothing is rounded before the argument is reduced. Up to a maximum of 208 there is no difference: k
// takes max * log2(e), rounded to an integer, off the exponent. Beyond, x and max are within a factor of two of each
// other wherever the result is not 0, and their difference is exact (P. Sterbenz, Floating-Point Computation, 1974).
//
// k adds 2, so that what is 2^-126 of a sum is a normal number. Below 2^-128 of the maximum the result is 0, for a NaN,
// or +inf, it is NaN.
//
// Source for the reduction: W. J. Cody and W. Waite, Software Manual for the Elementary Functions (1980), chapter 6.
class Exponential {
 public:
  // max: of all x; -inf where there is nothing else.
  __device__ explicit Exponential(float max) : is_empty_(max == -INFINITY) {
    if (is_empty_) max = 0.0F;
    const float magnitude = fabsf(max);
    const bool is_far = magnitude >= 208.0F && magnitude < INFINITY;
    subtrahend_ = is_far ? max : 0.0F;
    shifted_ = is_far ? kMagic : fmaf(max, kLog2e, kMagic);
    exponent_bits_ = (127U + kHeadroom - __float_as_uint(shifted_)) << 23;
    lowest_ = ((shifted_ - kMagic) - 127.0F - kHeadroom) * kLn2;
  }

  __device__ float operator()(float x) const {
    float fraction;
    const float shifted = reduce(not_below(x - subtrahend_, lowest_), fraction);
    // At the lowest, all bits of the power are 0. A product: it keeps a NaN.
    return exp2_of_fraction(fraction) * __uint_as_float((__float_as_uint(shifted) << 23) + exponent_bits_);
  }

  // Returns what turns an exponential of this maximum into one of a larger one; 0 where there is nothing but -inf.
  // A power of two, and so exact, for maxima up to 208.
  __device__ float ratio_to(const Exponential& larger) const {
    float fraction;
    const float shifted = reduce(fmaxf(subtrahend_ - larger.subtrahend_, -1000.0F), fraction);
    const unsigned exponent = 127U + __float_as_uint(shifted) - __float_as_uint(kMagic) + __float_as_uint(shifted_) -
                              __float_as_uint(larger.shifted_);
    if (is_empty_ || static_cast<int>(exponent) < 1) return 0.0F;
    return exp2_of_fraction(fraction) * __uint_as_float(exponent << 23);
  }

 private:
  // Returns the integer nearest to y * log2(e), in the low bits, and sets what is left of it.
  __device__ static float reduce(float y, float& fraction) {
    const float shifted = fmaf(y, kLog2e, kMagic);
    fraction = fmaf(y, kLog2eRest, fmaf(y, kLog2e, kMagic - shifted));
    return shifted;
  }

  static constexpr float kMagic = 0x1.8p23F;
  static constexpr float kLog2e = 0x1.715476p0F;
  static constexpr float kLog2eRest = 0x1.4ae0cp-26F;
  static constexpr float kLn2 = 0x1.62e43p-1F;
  static constexpr unsigned kHeadroom = 2;

  bool is_empty_;
  float subtrahend_;
  float shifted_;  // k, in the low bits
  float lowest_;
  unsigned exponent_bits_;
};

}  // namespace softmaxd::gpu
