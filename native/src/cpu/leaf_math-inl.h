// Loads, stores and exp for one instruction set: included once for each by leaf_kernels.cpp.
#if defined(SOFTMAXD_LEAF_MATH_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef SOFTMAXD_LEAF_MATH_INL_H
#undef SOFTMAXD_LEAF_MATH_INL_H
#else
#define SOFTMAXD_LEAF_MATH_INL_H
#endif

#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>

#include "cpu/row_stats.h"

HWY_BEFORE_NAMESPACE();
namespace softmaxd::cpu {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Every instruction set adds up the same 32 partial sums, so the vector's width does not show in the order of the
// additions. A vector is at most 16 floats: that is AVX-512, and 32 accumulators of one are enough to hide latencies.
inline constexpr std::size_t kLanes = 32;
using DF = hn::CappedTag<float, 16>;
using VF = hn::Vec<DF>;
inline constexpr std::size_t kVectors = kLanes / hn::MaxLanes(DF());

// F16C and Arm convert in hardware and round to nearest even; Highway 1.0's portable conversion truncates.
#undef SOFTMAXD_HAVE_F16C
#if HWY_TARGET <= HWY_AVX2 || HWY_ARCH_ARM
#define SOFTMAXD_HAVE_F16C 1
#else
#define SOFTMAXD_HAVE_F16C 0
#endif

struct Float32 {
  using Item = float;
  static constexpr bool kIs16Bit = false;

  static HWY_INLINE VF load(const Item* x) { return hn::LoadU(DF(), x); }
  static HWY_INLINE void store(VF v, Item* y) { hn::StoreU(v, DF(), y); }
};

// Widened integers of a 16-bit type, and back.
struct Bits16 {
  using Item = std::uint16_t;
  static constexpr bool kIs16Bit = true;
  using D16 = hn::Rebind<std::uint16_t, DF>;
  using D32 = hn::RebindToUnsigned<DF>;
  using V32 = hn::Vec<D32>;

  static HWY_INLINE V32 widen(const Item* x) { return hn::PromoteTo(D32(), hn::LoadU(D16(), x)); }
  static HWY_INLINE void narrow(V32 v, Item* y) {
    hn::StoreU(hn::DemoteTo(D16(), hn::BitCast(hn::RebindToSigned<DF>(), v)), D16(), y);
  }
};

struct BFloat16 : Bits16 {
  static HWY_INLINE VF load(const Item* x) { return hn::BitCast(DF(), hn::ShiftLeft<16>(widen(x))); }

  // Rounds to nearest even. A NaN stays one: those of 16 bits' values have no low bits that could carry.
  static HWY_INLINE void store(VF v, Item* y) {
    const D32 d;
    const V32 bits = hn::BitCast(d, v);
    const V32 even = hn::And(hn::ShiftRight<16>(bits), hn::Set(d, 1u));
    narrow(hn::ShiftRight<16>(hn::Add(hn::Add(bits, hn::Set(d, 0x7FFFu)), even)), y);
  }
};

struct Float16 : Bits16 {
#if SOFTMAXD_HAVE_F16C
  static HWY_INLINE VF load(const Item* x) {
    const hn::Rebind<hwy::float16_t, DF> d;
    return hn::PromoteTo(DF(), hn::BitCast(d, hn::LoadU(D16(), x)));
  }
  static HWY_INLINE void store(VF v, Item* y) {
    const hn::Rebind<hwy::float16_t, DF> d;
    hn::StoreU(hn::BitCast(D16(), hn::DemoteTo(d, v)), D16(), y);
  }
#else
  static HWY_INLINE VF load(const Item* x) {
    const D32 d;
    const hn::RebindToSigned<DF> di;
    const V32 bits = widen(x);
    const V32 sign = hn::ShiftLeft<16>(hn::And(bits, hn::Set(d, 0x8000u)));
    const V32 mantissa = hn::And(bits, hn::Set(d, 0x03FFu));
    const V32 magnitude = hn::And(bits, hn::Set(d, 0x7FFFu));
    const V32 normal = hn::Add(hn::ShiftLeft<13>(magnitude), hn::Set(d, (127u - 15u) << 23));
    // A subnormal is its mantissa times 2^-24; as an integer it cannot be flushed on its way.
    const V32 subnormal =
        hn::BitCast(d, hn::Mul(hn::ConvertTo(DF(), hn::BitCast(di, mantissa)), hn::Set(DF(), 0x1p-24f)));
    const V32 special = hn::Or(hn::ShiftLeft<13>(mantissa), hn::Set(d, 0x7F800000u));
    V32 result = hn::IfThenElse(hn::Lt(magnitude, hn::Set(d, 0x0400u)), subnormal, normal);
    result = hn::IfThenElse(hn::Lt(magnitude, hn::Set(d, 0x7C00u)), result, special);
    return hn::BitCast(DF(), hn::Or(result, sign));
  }

  // Rounds to nearest even. Only for what a softmax gives: 0 <= v < 2, or a NaN.
  static HWY_INLINE void store(VF v, Item* y) {
    const D32 d;
    const V32 bits = hn::BitCast(d, v);
    const V32 even = hn::And(hn::ShiftRight<13>(bits), hn::Set(d, 1u));
    const V32 rebiased = hn::Sub(hn::Add(bits, hn::Add(even, hn::Set(d, 0x0FFFu))), hn::Set(d, (127u - 15u) << 23));
    // Adding 0.5 leaves a multiple of 2^-24 in the low bits, rounded by the addition itself.
    const V32 subnormal = hn::Sub(hn::BitCast(d, hn::Add(v, hn::Set(DF(), 0.5f))), hn::BitCast(d, hn::Set(DF(), 0.5f)));
    V32 result =
        hn::IfThenElse(hn::RebindMask(d, hn::Lt(v, hn::Set(DF(), 0x1p-14f))), subnormal, hn::ShiftRight<13>(rebiased));
    result = hn::IfThenElse(hn::RebindMask(d, hn::IsNaN(v)), hn::Set(d, 0x7E00u), result);
    narrow(result, y);
  }
#endif
};

// Returns x - n ln 2.
HWY_INLINE VF subtract_ln2_multiple(VF x, VF n) {
  const DF d;
#if HWY_TARGET <= HWY_AVX2 || HWY_ARCH_ARM_A64
  return hn::NegMulAdd(n, hn::Set(d, 0x1.62e43p-1f), x);
#else
  // Without a fused multiplication n ln 2 is rounded, but n 0x1.63p-1 is not.
  return hn::MulAdd(n, hn::Set(d, 0x1.bd0106p-13f), hn::NegMulAdd(n, hn::Set(d, 0x1.63p-1f), x));
#endif
}

// A leaf's reference, as exponential() wants it.
struct VectorReference {
  VF shift;
  VF magic;
  VF zero_below;
};

// Adding 1.5 * 2^23 rounds to an integer in the low bits, here with a float's exponent bias on top and the reference's
// exponent off, so that a shift makes a power of two of it.
HWY_INLINE VectorReference vectors_of(Reference reference) {
  const DF d;
  return {hn::Set(d, reference.shift), hn::Set(d, 0x1.8p23f + 127.0f - reference.exponent),
          hn::Set(d, (reference.exponent - 126.75f) * 0x1.62e43p-1f)};
}

// Returns exp(x) / (e^shift 2^exponent) for the x of a leaf: 0 below 2^-126, NaN for a NaN or for inf - inf.
//
// Nothing is rounded before the reduction's one step, r = x - n ln 2, and that is exact: ln 2 has 24 bits, n few, and
// what is left of x is small. The error of ln 2 itself, n 1.9e-9, counts for the difference of two values only, and so
// is under 2.4e-7 for results that are not 0.
//
// Source: W. J. Cody and W. Waite, Software Manual for the Elementary Functions (1980), chapter 6, for the reduction;
// the polynomials are minimax fits of its own on [-0.3475, 0.3475], 1.1e-7 relative, for 16 bits 2.9e-6.
template <bool kIs16Bit>
HWY_INLINE VF exponential(VF x, const VectorReference& reference) {
  const DF d;
  const hn::RebindToUnsigned<DF> du;
  const VF shifted = hn::Sub(x, reference.shift);
  const VF sum = hn::MulAdd(shifted, hn::Set(d, 0x1.715476p0f), reference.magic);
  const VF n = hn::Sub(sum, reference.magic);
  const VF power = hn::BitCast(d, hn::ShiftLeft<23>(hn::BitCast(du, sum)));
  const VF r = subtract_ln2_multiple(shifted, n);

  VF p;
  if constexpr (kIs16Bit) {
    p = hn::MulAdd(hn::Set(d, 0.041512925f), r, hn::Set(d, 0.16788107f));
    p = hn::MulAdd(p, r, hn::Set(d, 0.50003046f));
    p = hn::MulAdd(p, r, hn::Set(d, 0.9999665f));
  } else {
    p = hn::MulAdd(hn::Set(d, 0.008312391f), r, hn::Set(d, 0.04189128f));
    p = hn::MulAdd(p, r, hn::Set(d, 0.1666712f));
    p = hn::MulAdd(p, r, hn::Set(d, 0.49999225f));
    p = hn::MulAdd(p, r, hn::Set(d, 1.0f));
  }
  const VF e = hn::MulAdd(p, r, hn::Set(d, 1.0f));

  // There the result is under 2^-126 and `power` no longer a power of two. A NaN is not below, and stays.
  return hn::IfThenZeroElse(hn::Lt(shifted, reference.zero_below), hn::Mul(e, power));
}

// Returns a probability from an exponential and the leaf_factor().
HWY_INLINE VF probability(VF e, VF factor) { return hn::Mul(hn::Mul(e, factor), hn::Set(DF(), 1 / kFactorScale)); }

}  // namespace HWY_NAMESPACE
}  // namespace softmaxd::cpu
HWY_AFTER_NAMESPACE();

#endif
