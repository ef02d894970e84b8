// Memory on a device that another process has allocated and lends.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <utility>

#include "softmaxd/error.h"

namespace softmaxd {

namespace gpu {
class IpcMemory;
}

// From GpuContext::open_device_memory(). The process that lends it keeps it allocated until this is closed.
// Thread-safe.
class DeviceMemory {
 public:
  DeviceMemory(std::shared_ptr<const gpu::IpcMemory> memory, std::size_t byte_size)
      : memory_(std::move(memory)), byte_size_(byte_size) {}

  // What was asked for; the allocation may be larger.
  std::size_t byte_size() const { return byte_size_; }

  // Lets go of the memory, which is unmapped once nobody else of this process has it open and the calls that compute on
  // it have ended. A second call does nothing.
  void close() {
    std::shared_ptr<const gpu::IpcMemory> closed;  // unmapped without the lock
    const std::lock_guard lock(mutex_);
    closed.swap(memory_);
  }

  // Keeps it open for a call. Throws InvalidArgument where it is closed.
  std::shared_ptr<const gpu::IpcMemory> memory() const {
    const std::lock_guard lock(mutex_);
    if (!memory_) throw InvalidArgument("the device memory is closed");
    return memory_;
  }

 private:
  mutable std::mutex mutex_;
  std::shared_ptr<const gpu::IpcMemory> memory_;
  const std::size_t byte_size_;
};

}  // namespace softmaxd
