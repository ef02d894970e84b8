// Arrays on the device for the tests and benchmarks: plain allocations, and an exit with the reason at any error.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "gpu/element.h"
#include "gpu/gpu_runtime.h"
#include "softmaxd/softmax.h"

namespace testing {

inline constexpr int kNoDevice = 2;

inline void check(softmaxd::gpu::Error error, const char* what) {
  if (error == softmaxd::gpu::kSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, softmaxd::gpu::error_name(error));
  std::exit(kNoDevice);
}

#if defined(SOFTMAXD_SIMT)
inline void synchronize() {}
inline void* allocate(std::size_t bytes) { return std::malloc(bytes); }
inline void release(void* data) { std::free(data); }
inline void copy(void* to, const void* from, std::size_t bytes) { std::memcpy(to, from, bytes); }
inline void fill(void* data, int byte, std::size_t bytes) { std::memset(data, byte, bytes); }
inline std::string device_name() { return "simt, on the CPU"; }
#elif defined(__CUDACC__)
inline void synchronize() { check(cudaDeviceSynchronize(), "synchronize"); }
inline void* allocate(std::size_t bytes) {
  void* data = nullptr;
  check(cudaMalloc(&data, bytes), "allocate");
  return data;
}
inline void release(void* data) { check(cudaFree(data), "release"); }
inline void copy(void* to, const void* from, std::size_t bytes) {
  check(cudaMemcpy(to, from, bytes, cudaMemcpyDefault), "copy");
}
inline void fill(void* data, int byte, std::size_t bytes) { check(cudaMemset(data, byte, bytes), "fill"); }
inline std::string device_name() {
  cudaDeviceProp properties;
  check(cudaGetDeviceProperties(&properties, 0), "device 0");
  return std::string(softmaxd::gpu::kRuntimeName) + ", " + properties.name;
}
#else
inline void synchronize() { check(hipDeviceSynchronize(), "synchronize"); }
inline void* allocate(std::size_t bytes) {
  void* data = nullptr;
  check(hipMalloc(&data, bytes), "allocate");
  return data;
}
inline void release(void* data) { check(hipFree(data), "release"); }
inline void copy(void* to, const void* from, std::size_t bytes) {
  check(hipMemcpy(to, from, bytes, hipMemcpyDefault), "copy");
}
inline void fill(void* data, int byte, std::size_t bytes) { check(hipMemset(data, byte, bytes), "fill"); }
inline std::string device_name() {
  hipDeviceProp_t properties;
  check(hipGetDeviceProperties(&properties, 0), "device 0");
  return std::string(softmaxd::gpu::kRuntimeName) + ", " + properties.name;
}
#endif

// `size` elements of a dtype on the device.
class Array {
 public:
  Array(std::size_t size, softmaxd::DType dtype)
      : size_(size), dtype_(dtype), data_(allocate(std::max<std::size_t>(bytes(), 1))) {}
  ~Array() { release(data_); }
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;

  void* data() const { return data_; }
  std::size_t bytes() const { return size_ * softmaxd::item_size(dtype_); }

  // Fills it with a pattern that no right result has.
  void poison() { fill(data_, 0xA5, bytes()); }

  // Writes values, rounded to the type.
  void write(const std::vector<double>& values) {
    std::vector<unsigned char> host(bytes());
    for (std::size_t i = 0; i < size_; ++i) {
      const float value = static_cast<float>(values[i]);
      if (dtype_ == softmaxd::DType::kFloat32) {
        std::memcpy(host.data() + 4 * i, &value, 4);
      } else if (dtype_ == softmaxd::DType::kFloat16) {
        const __half half = __float2half(value);
        std::memcpy(host.data() + 2 * i, &half, 2);
      } else {
        std::memcpy(host.data() + 2 * i, reinterpret_cast<const unsigned char*>(&value) + 2, 2);  // truncated
        if (value != value) std::memcpy(host.data() + 2 * i, "\xC0\x7F", 2);
      }
    }
    copy(data_, host.data(), host.size());
  }

  std::vector<double> read() const {
    std::vector<unsigned char> host(bytes());
    copy(host.data(), data_, host.size());
    std::vector<double> values(size_);
    for (std::size_t i = 0; i < size_; ++i) {
      float value = 0;
      if (dtype_ == softmaxd::DType::kFloat32) {
        std::memcpy(&value, host.data() + 4 * i, 4);
      } else if (dtype_ == softmaxd::DType::kFloat16) {
        __half half;
        std::memcpy(&half, host.data() + 2 * i, 2);
        value = __half2float(half);
      } else {
        std::memcpy(reinterpret_cast<unsigned char*>(&value) + 2, host.data() + 2 * i, 2);
      }
      values[i] = value;
    }
    return values;
  }

 private:
  const std::size_t size_;
  const softmaxd::DType dtype_;
  void* const data_;
};

}  // namespace testing
