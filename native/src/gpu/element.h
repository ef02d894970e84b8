// The element types on a device: read as float, written as the type.
//
// Results below 2^-126 are written as 0 in float32 and bfloat16, as on the CPU; float16 keeps its subnormals.
#pragma once

#include "gpu/gpu_runtime.h"
#include "softmaxd/softmax.h"

namespace softmaxd::gpu {

// kNothing: a word of items that are -inf. unpack() and pack() read and write the items of a word, item() takes one of
// them.
struct Float32 {
  using Item = float;
  static constexpr std::uint32_t kNothing = 0xFF800000;
  __device__ static float load(Item x) { return x; }
  __device__ static Item store(float y) { return flush(y); }
  __device__ static void unpack(std::uint32_t word, float (&x)[1]) { x[0] = __uint_as_float(word); }
  __device__ static std::uint32_t pack(const float (&y)[1]) { return __float_as_uint(store(y[0])); }
  __device__ static Item item(std::uint32_t word, unsigned) { return __uint_as_float(word); }
};

struct Float16 {
  using Item = __half;
  static constexpr std::uint32_t kNothing = 0xFC00FC00;
  __device__ static float load(Item x) { return __half2float(x); }
  __device__ static Item store(float y) { return __float2half(y); }
  __device__ static Item item(std::uint32_t word, unsigned i) {
    return __ushort_as_half(static_cast<std::uint16_t>(word >> 16 * i));
  }
  __device__ static void unpack(std::uint32_t word, float (&x)[2]) {
    x[0] = load(item(word, 0));
    x[1] = load(item(word, 1));
  }
  __device__ static std::uint32_t pack(const float (&y)[2]) {
#if defined(__CUDACC__)
    const __half2 both = __floats2half2_rn(y[0], y[1]);
    return std::uint32_t{__half_as_ushort(both.x)} | std::uint32_t{__half_as_ushort(both.y)} << 16;
#else
    return std::uint32_t{__half_as_ushort(store(y[0]))} | std::uint32_t{__half_as_ushort(store(y[1]))} << 16;
#endif
  }
};

struct BFloat16 {
  using Item = std::uint16_t;
  static constexpr std::uint32_t kNothing = 0xFF80FF80;
  __device__ static float load(Item x) { return __uint_as_float(static_cast<std::uint32_t>(x) << 16); }
  __device__ static Item store(float y) { return round(flush(y)); }
  __device__ static Item item(std::uint32_t word, unsigned i) { return static_cast<Item>(word >> 16 * i); }
  __device__ static void unpack(std::uint32_t word, float (&x)[2]) {
    x[0] = __uint_as_float(word << 16);
    x[1] = __uint_as_float(word & 0xFFFF0000U);
  }
  __device__ static std::uint32_t pack(const float (&y)[2]) {
#if defined(__CUDACC__)
    const __nv_bfloat162 both = __floats2bfloat162_rn(flush(y[0]), flush(y[1]));
    return std::uint32_t{__bfloat16_as_ushort(both.x)} | std::uint32_t{__bfloat16_as_ushort(both.y)} << 16;
#else
    return std::uint32_t{store(y[0])} | std::uint32_t{store(y[1])} << 16;
#endif
  }

 private:
  // To nearest even; a NaN stays one, where the rounding's carry could make it an infinity or a zero.
  __device__ static Item round(float y) {
#if defined(__CUDACC__)
    return __bfloat16_as_ushort(__float2bfloat16_rn(y));
#else
    if (y != y) return 0x7FC0;
    const std::uint32_t bits = __float_as_uint(y);
    return static_cast<Item>((bits + 0x7FFFU + (bits >> 16 & 1U)) >> 16);
#endif
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
