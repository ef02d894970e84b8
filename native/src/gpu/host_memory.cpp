#include "gpu/host_memory.h"

#include <functional>
#include <iterator>
#include <string>

#include "gpu/runtime_error.h"
#include "softmaxd/error.h"

namespace softmaxd::gpu {

HostMemory::~HostMemory() {
  for (const auto& [data, byte_size] : places_) disregard(unregister_host(const_cast<std::byte*>(data)));
}

std::map<const std::byte*, std::size_t>::const_iterator HostMemory::at(const std::byte* data) const {
  const auto after = places_.upper_bound(data);
  return after == places_.begin() ? places_.end() : std::prev(after);
}

void HostMemory::add(std::byte* data, std::size_t byte_size) {
  if (byte_size == 0) throw InvalidArgument("there is no memory to register: it has 0 bytes");
  const std::lock_guard changing(changing_);
  const auto before = at(data + byte_size - 1);
  if (before != places_.end() && before->first + before->second > data) {
    throw InvalidArgument("the memory overlaps with memory that is registered already; unregister that first");
  }
  const Error error = register_host(data, byte_size);
  if (error != kSuccess) {
    forget_last_error();
    check(error, ("registering " + std::to_string(byte_size) + " bytes of the host's memory").c_str());
  }
  const std::lock_guard lock(mutex_);
  places_[data] = byte_size;
}

void HostMemory::remove(std::byte* data, std::size_t byte_size) {
  const std::lock_guard changing(changing_);
  {
    const std::lock_guard lock(mutex_);
    const auto found = places_.find(data);
    if (found == places_.end() || found->second != byte_size) {
      throw InvalidArgument("the memory is not registered, or with another size");
    }
    places_.erase(found);
  }
  const Error error = unregister_host(data);
  if (error == kSuccess) return;
  forget_last_error();
  check(error, "unregistering the host's memory");
}

bool HostMemory::contains(const std::byte* data, std::size_t byte_size) const {
  const std::lock_guard lock(mutex_);
  const auto place = at(data);
  return place != places_.end() && data + byte_size <= place->first + place->second;
}

}  // namespace softmaxd::gpu
