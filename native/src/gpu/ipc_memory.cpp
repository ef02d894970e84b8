#include "gpu/ipc_memory.h"

#include <cstring>
#include <mutex>

#include "gpu/runtime_error.h"
#include "softmaxd/error.h"

namespace softmaxd::gpu {
namespace {

std::mutex table_mutex;

IpcHandle handle_of(std::string_view bytes) {
  IpcHandle handle;
  if (bytes.size() != sizeof handle) {
    throw InvalidArgument("the IPC handle has " + std::to_string(bytes.size()) + " bytes; it must have " +
                          std::to_string(sizeof handle));
  }
  std::memcpy(&handle, bytes.data(), sizeof handle);
  return handle;
}

// The thread's device is the handle's.
void* open(const IpcHandle& handle) {
  void* data = nullptr;
  const Error error = open_ipc_memory(&data, handle);
  if (error == kSuccess) return data;
  forget_last_error();
  std::size_t free = 0;
  std::size_t total = 0;
  check(memory_info(&free, &total), "opening an IPC handle");  // a device that has failed refuses good handles too
  if (error == kOutOfMemory) check(error, "opening an IPC handle");
  throw InvalidArgument(std::string("the IPC handle cannot be opened: ") + error_name(error) +
                        "; it must be another process's, of memory on this device that is still allocated");
}

// From `data` to the end of the allocation: an exporter may hand out a place within a larger one.
std::size_t bytes_from(void* data) {
  void* start = nullptr;
  std::size_t byte_size = 0;
  check(address_range(&start, &byte_size, data), "asking for the size of another process's memory");
  return byte_size - static_cast<std::size_t>(static_cast<std::byte*>(data) - static_cast<std::byte*>(start));
}

}  // namespace

IpcMemory::Table& IpcMemory::table() {
  static Table instance;
  return instance;
}

IpcMemory::IpcMemory(int device, std::string_view handle) {
  const IpcHandle checked = handle_of(handle);
  check(set_device(device), "choosing the device");
  const std::lock_guard lock(table_mutex);
  opened_ = table().try_emplace({device, std::string(handle)}, Opened{}).first;
  Opened& opened = opened_->second;
  try {
    if (opened.count == 0) {
      opened.data = static_cast<std::byte*>(open(checked));
      opened.byte_size = bytes_from(opened.data);
    }
    ++opened.count;
  } catch (...) {
    if (opened.data != nullptr) disregard(close_ipc_memory(opened.data));
    table().erase(opened_);
    throw;
  }
}

IpcMemory::~IpcMemory() {
  const std::lock_guard lock(table_mutex);
  if (--opened_->second.count != 0) return;
  disregard(set_device(device()));
  disregard(close_ipc_memory(data()));
  forget_last_error();
  table().erase(opened_);
}

}  // namespace softmaxd::gpu
