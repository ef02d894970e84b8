// The GPU variants behind a C interface, for bench/gpu_kernels.py. A dtype is the number of a softmaxd::DType.
#include <cstddef>
#include <string_view>

#include "gpu/variants.h"

using softmaxd::DType;
using softmaxd::Matrix;
using softmaxd::gpu::Variant;

// The numbers that bench/figures.py counts by.
static_assert(static_cast<int>(DType::kFloat32) == 0 && static_cast<int>(DType::kFloat16) == 1 &&
              static_cast<int>(DType::kBFloat16) == 2);

namespace {

const Variant* variant_of(const char* name) {
  for (const Variant& variant : softmaxd::gpu::variants()) {
    if (variant.name == std::string_view(name)) return &variant;
  }
  return nullptr;
}

Matrix matrix_of(std::size_t rows, std::size_t cols, int dtype) { return {rows, cols, static_cast<DType>(dtype)}; }

}  // namespace

extern "C" {

// The name of the variant with this number, or null beyond the last.
const char* variant_name(std::size_t number) {
  return number < softmaxd::gpu::variants().size() ? softmaxd::gpu::variants()[number].name.data() : nullptr;
}

std::size_t max_columns(const char* name) { return variant_of(name)->max_columns; }

std::size_t workspace_bytes(const char* name, std::size_t rows, std::size_t cols, int dtype) {
  return variant_of(name)->workspace_bytes(matrix_of(rows, cols, dtype));
}

// Bytes of counters that are 0 at first.
std::size_t counter_bytes() { return softmaxd::gpu::kCounters * sizeof(unsigned); }

const char* error_name(int error) { return softmaxd::gpu::error_name(static_cast<softmaxd::gpu::Error>(error)); }

// Starts a softmax in a stream on device 0; pointers are the device's. Returns the runtime's error, 0 for none.
int start(const char* name, const void* source, void* destination, std::size_t rows, std::size_t cols, int dtype,
          void* workspace, void* counters, void* stream) {
  return variant_of(name)->run({source,
                                destination,
                                matrix_of(rows, cols, dtype),
                                {},
                                static_cast<float*>(workspace),
                                static_cast<unsigned*>(counters),
                                0,
                                static_cast<softmaxd::gpu::Stream>(stream)});
}
}
