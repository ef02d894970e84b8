// Memory of the host that devices reach by themselves.
#pragma once

#include <cstddef>
#include <map>
#include <mutex>

namespace softmaxd::gpu {

// The places of the caller's memory that are registered with the runtime, for all devices. Thread-safe; the thread's
// device is one of the context's.
class HostMemory {
 public:
  HostMemory() = default;
  // Unregisters what is left.
  ~HostMemory();
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;

  // Throws InvalidArgument for 0 bytes or what overlaps with what is registered; OutOfMemory, DeviceError, and then
  // it is not registered.
  void add(std::byte* data, std::size_t byte_size);
  // Throws InvalidArgument for what was not added so; DeviceError.
  void remove(std::byte* data, std::size_t byte_size);

  // Whether all of it lies within one registered place.
  bool contains(const std::byte* data, std::size_t byte_size) const;

 private:
  // The last one that starts at or before `data`, or the end.
  std::map<const std::byte*, std::size_t>::const_iterator at(const std::byte* data) const;

  std::mutex changing_;                             // held while the runtime pins pages, which takes milliseconds
  mutable std::mutex mutex_;                        // held to look a place up; who changes places holds both
  std::map<const std::byte*, std::size_t> places_;  // bytes by start
};

}  // namespace softmaxd::gpu
