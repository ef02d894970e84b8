// Arrays on the device for the tests and benchmarks: plain allocations, and an exit with the reason at any error.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "cases.h"
#include "gpu/gpu_runtime.h"
#include "softmaxd/softmax.h"

namespace testing {

inline constexpr int kNoDevice = 2;

inline void check(softmaxd::gpu::Error error, const char* what) {
  if (error == softmaxd::gpu::kSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, softmaxd::gpu::error_name(error));
  std::exit(kNoDevice);
}

inline void synchronize() { check(softmaxd::gpu::synchronize_stream({}), "synchronize"); }

inline std::string device_name() {
  softmaxd::gpu::DeviceProperties properties;
  check(softmaxd::gpu::device_properties(&properties, 0), "device 0");
  return std::string(softmaxd::gpu::kRuntimeName) + ", " + softmaxd::gpu::product_name(properties);
}

// `size` elements of a dtype on the device.
class Array {
 public:
  Array(std::size_t size, softmaxd::DType dtype) : size_(size), dtype_(dtype) {
    check(softmaxd::gpu::allocate_device(&data_, std::max<std::size_t>(bytes(), 1)), "allocate");
  }
  ~Array() { check(softmaxd::gpu::release_device(data_), "release"); }
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;

  void* data() const { return data_; }
  std::size_t bytes() const { return size_ * softmaxd::item_size(dtype_); }

  // Fills it with a pattern that no right result has.
  void poison() { write(Bytes(bytes(), 0xA5)); }

  void write(const Bytes& values) {
    check(softmaxd::gpu::copy_to_device(data_, values.data(), bytes(), {}), "copy to the device");
    synchronize();
  }

  Bytes read() const {
    Bytes values(bytes());
    check(softmaxd::gpu::copy_to_host(values.data(), data_, bytes(), {}), "copy from the device");
    synchronize();
    return values;
  }

 private:
  const std::size_t size_;
  const softmaxd::DType dtype_;
  void* data_ = nullptr;
};

}  // namespace testing
