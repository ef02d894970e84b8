// From the runtime's error values to exceptions.
#pragma once

#include <string>

#include "gpu/gpu_runtime.h"
#include "softmaxd/error.h"

namespace softmaxd::gpu {

// Throws unless `error` is success: OutOfMemory where memory ran out, else DeviceError.
// what: what was tried, as in "copying to the device".
inline void check(Error error, const char* what) {
  if (error == kSuccess) return;
  const std::string message = std::string(what) + " failed: " + error_name(error);
  if (error == kOutOfMemory) throw OutOfMemory(message);
  throw DeviceError(message);
}

// For a clean-up, where nothing can be done about an error, and for one that was dealt with.
inline void disregard(Error) {}

// An error that was dealt with must not come back as a launch's.
inline void forget_last_error() { disregard(last_error()); }

}  // namespace softmaxd::gpu
