// The GPU variants behind a C interface, for bench/gpu_kernels.py.
#include <cstddef>
#include <string_view>

#include "gpu/variants.h"

using softmaxd::DType;
using softmaxd::gpu::Variant;

namespace {

const Variant* variant_of(const char* name) {
  for (const Variant& variant : softmaxd::gpu::variants()) {
    if (variant.name == std::string_view(name)) return &variant;
  }
  return nullptr;
}

}  // namespace

extern "C" {

// The name of the variant with this number, or null beyond the last.
const char* variant_name(std::size_t number) {
  return number < softmaxd::gpu::variants().size() ? softmaxd::gpu::variants()[number].name.data() : nullptr;
}

std::size_t max_columns(const char* name) { return variant_of(name)->max_columns; }

// Bytes of workspace for float32.
std::size_t workspace_bytes(const char* name, std::size_t rows, std::size_t cols) {
  return variant_of(name)->workspace_bytes({rows, cols, DType::kFloat32});
}

// Bytes of counters that are 0 at first.
std::size_t counter_bytes() { return softmaxd::gpu::kCounters * sizeof(unsigned); }

// Starts a float32 softmax in a stream on device 0; pointers are the device's. Returns the runtime's error, 0 for none.
int start(const char* name, const void* source, void* destination, std::size_t rows, std::size_t cols, void* workspace,
          void* counters, void* stream) {
  return variant_of(name)->run({source,
                                destination,
                                {rows, cols, DType::kFloat32},
                                {},
                                static_cast<float*>(workspace),
                                static_cast<unsigned*>(counters),
                                0,
                                static_cast<softmaxd::gpu::Stream>(stream)});
}
}
