// The GPU runtime under one set of names: HIP for AMD and Hygon, CUDA for NVIDIA.
//
// A kernel file includes this and nothing of a vendor's. Only what the kernels use is here; every call's error comes
// back as a value, so that none can be overlooked.
#pragma once

#if defined(SOFTMAXD_SIMT)  // tests/native/simt runs the kernels on the CPU
#include "simt.h"
#elif defined(__CUDACC__)
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#else
#include <hip/hip_fp16.h>
#include <hip/hip_runtime.h>
#endif

#include <cstddef>
#include <cstdint>

namespace softmaxd::gpu {

#if defined(SOFTMAXD_SIMT)
inline constexpr const char* kRuntimeName = "simt";
using Error = int;
using Stream = void*;
inline constexpr Error kSuccess = 0;
inline const char* error_name(Error) { return "invalid launch"; }
#elif defined(__CUDACC__)
inline constexpr const char* kRuntimeName = "cuda";
using Error = cudaError_t;
using Stream = cudaStream_t;
inline constexpr Error kSuccess = cudaSuccess;
inline const char* error_name(Error error) { return cudaGetErrorName(error); }
inline Error last_error() { return cudaGetLastError(); }
#else
inline constexpr const char* kRuntimeName = "hip";
using Error = hipError_t;
using Stream = hipStream_t;
inline constexpr Error kSuccess = hipSuccess;
inline const char* error_name(Error error) { return hipGetErrorName(error); }
inline Error last_error() { return hipGetLastError(); }
#endif

// What one launch can have in x on every runtime.
inline constexpr std::size_t kMaxBlocks = (std::size_t{1} << 31) - 1;

// Starts `blocks` blocks of `threads` threads; returns the launch's own error.
template <class... Parameters, class... Arguments>
Error launch(void (*kernel)(Parameters...), std::size_t blocks, unsigned threads, Stream stream,
             Arguments... arguments) {
#if defined(SOFTMAXD_SIMT)
  static_cast<void>(stream);
  return simt::run(blocks, threads, [&] { kernel(arguments...); });
#else
  // clang-format off
  kernel<<<dim3(static_cast<unsigned>(blocks)), dim3(threads), 0, stream>>>(arguments...);
  // clang-format on
  return last_error();
#endif
}

}  // namespace softmaxd::gpu
