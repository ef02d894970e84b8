// Memory that another process has allocated on a device and exported by a handle.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "gpu/gpu_runtime.h"

namespace softmaxd::gpu {

// An allocation of another process, mapped for as long as this lives. A handle is opened once in a process, however
// many of these there are of it: not every runtime takes it twice. Thread-safe.
class IpcMemory {
 public:
  // Opens it on `device`, which becomes the calling thread's. Throws InvalidArgument for what is no handle of memory
  // there, OutOfMemory, DeviceError where the device has failed.
  IpcMemory(int device, std::string_view handle);
  ~IpcMemory();
  IpcMemory(const IpcMemory&) = delete;
  IpcMemory& operator=(const IpcMemory&) = delete;

  int device() const { return opened_->first.first; }
  std::byte* data() const { return opened_->second.data; }
  std::size_t byte_size() const { return opened_->second.byte_size; }

 private:
  struct Opened {
    std::byte* data;
    std::size_t byte_size;
    std::size_t count;  // of those that have it
  };
  using Table = std::map<std::pair<int, std::string>, Opened>;  // by device and handle

  static Table& table();

  Table::iterator opened_;
};

}  // namespace softmaxd::gpu
