// The element types on a device: read as float, written as the type.
//
// Results below 2^-126 are written as 0 in float32 and bfloat16, as on the CPU; float16 keeps its subnormals.
#pragma once

#include "gpu/gpu_runtime.h"
#include "softmaxd/softmax.h"

namespace softmaxd::gpu {

inline constexpr float kSmallestNormal = 1.17549435e-38F;

__device__ inline float flush(float value) { return value < kSmallestNormal ? 0.0F : value; }

struct Float32 {
  using Item = float;
  using Bits = std::uint32_t;
  __device__ static Item from_bits(Bits bits) { return __uint_as_float(bits); }
  __device__ static Bits to_bits(Item x) { return __float_as_uint(x); }
  __device__ static float load(Item x) { return x; }
  __device__ static Item store(float y) { return flush(y); }
};

struct Float16 {
  using Item = __half;
  using Bits = std::uint16_t;
  __device__ static Item from_bits(Bits bits) { return __ushort_as_half(bits); }
  __device__ static Bits to_bits(Item x) { return __half_as_ushort(x); }
  __device__ static float load(Item x) { return __half2float(x); }
  __device__ static Item store(float y) { return __float2half(y); }
};

struct BFloat16 {
  using Item = std::uint16_t;
  using Bits = std::uint16_t;
  __device__ static Item from_bits(Bits bits) { return bits; }
  __device__ static Bits to_bits(Item x) { return x; }
  __device__ static float load(Item x) { return __uint_as_float(static_cast<std::uint32_t>(x) << 16); }

  // Rounds to nearest even; a NaN stays one, where the rounding's carry could make it an infinity or a zero.
  __device__ static Item store(float y) {
    if (y != y) return 0x7FC0;
    const std::uint32_t bits = __float_as_uint(flush(y));
    return static_cast<Item>((bits + 0x7FFFU + (bits >> 16 & 1U)) >> 16);
  }
};

// Calls act(Element{}) with the element type that stands for `dtype`.
template <class Act>
auto with_element(DType dtype, Act act) {
  switch (dtype) {
    case DType::kFloat16:
      return act(Float16{});
    case DType::kBFloat16:
      return act(BFloat16{});
    case DType::kFloat32:
      break;
  }
  return act(Float32{});
}

}  // namespace softmaxd::gpu
