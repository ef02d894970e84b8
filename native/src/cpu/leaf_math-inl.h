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
  static constexpr bool kExactDifference = true;

  static HWY_INLINE VF load(const Item* x) { return hn::LoadU(DF(), x); }
  static HWY_INLINE void store(VF v, Item* y) { hn::StoreU(v, DF(), y); }
};

// Widened integers of a 16-bit type, and back.
struct Bits16 {
  using Item = std::uint16_t;
  static constexpr bool kExactDifference = false;
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

  // Rounds to nearest even; a NaN stays one, where the rounding's carry could make it an infinity or a zero.
  static HWY_INLINE void store(VF v, Item* y) {
    const D32 d;
    const V32 bits = hn::BitCast(d, v);
    const V32 even = hn::And(hn::ShiftRight<16>(bits), hn::Set(d, 1u));
    const V32 rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(even, hn::Set(d, 0x7FFFu))));
    narrow(hn::IfThenElse(hn::RebindMask(d, hn::IsNaN(v)), hn::Set(d, 0x7FC0u), rounded), y);
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

// Returns exp(x - max) for x <= max: 0 below 2^-126, NaN for a NaN or for inf - inf.
//
// Source: W. J. Cody and W. Waite, Software Manual for the Elementary Functions (1980), chapter 6, for the reduction;
// the polynomial is a minimax fit of its own, 3.6e-9 relative on [-ln 2 / 2, ln 2 / 2].
//
// kExactDifference: x - max is rounded to 24 bits, which for a difference of -20 alone is an error of 1e-6 in the
// result. The rounding's error is found (D. Knuth, The Art of Computer Programming, volume 2, 4.2.2, theorem B) and
// added to the reduced argument. 16-bit inputs need none of it.
template <bool kExactDifference>
HWY_INLINE VF exp_difference(VF x, VF max) {
  const DF d;
  const hn::RebindToUnsigned<DF> du;
  const VF difference = hn::Sub(x, max);

  // Adding 1.5 * 2^23 rounds to an integer in the low bits, here with a float's exponent bias on top, so that a shift
  // makes 2^n of it.
  const VF magic = hn::Set(d, 0x1.8p23f + 127.0f);
  const VF shifted = hn::MulAdd(difference, hn::Set(d, 0x1.715476p0f), magic);
  const VF n = hn::Sub(shifted, magic);
  const VF power = hn::BitCast(d, hn::ShiftLeft<23>(hn::BitCast(du, shifted)));

  VF r = hn::NegMulAdd(n, hn::Set(d, 0x1.63p-1f), difference);  // ln 2 = 0x1.63p-1 - 0x1.bd0106p-13
  r = hn::MulAdd(n, hn::Set(d, 0x1.bd0106p-13f), r);
  if constexpr (kExactDifference) {
    const VF x_rounded = hn::Add(difference, max);
    const VF max_rounded = hn::Sub(x_rounded, difference);
    r = hn::Add(r, hn::Add(hn::Sub(x, x_rounded), hn::Sub(max_rounded, max)));
  }

  VF p = hn::MulAdd(hn::Set(d, 0.00138145406f), r, hn::Set(d, 0.00836874545f));
  p = hn::MulAdd(p, r, hn::Set(d, 0.041668389f));
  p = hn::MulAdd(p, r, hn::Set(d, 0.166665211f));
  p = hn::MulAdd(p, r, hn::Set(d, 0.49999994f));
  const VF e = hn::Add(hn::MulAdd(hn::Mul(r, r), p, r), hn::Set(d, 1.0f));

  // Below -88 the result is under 2^-126 and `power` no longer a power of two. A NaN is not below, and stays.
  return hn::IfThenZeroElse(hn::Lt(difference, hn::Set(d, -88.0f)), hn::Mul(e, power));
}

}  // namespace HWY_NAMESPACE
}  // namespace softmaxd::cpu
HWY_AFTER_NAMESPACE();

#endif
