// The host's side of a GPU runtime, on the CPU: devices, memory, streams, events. For tests, beside simt.h.
//
// Stands for the vendor's runtime where SOFTMAXD_SIMT is defined. It has what our code uses, no more. Each stream is a
// thread that does what was put into it in order, so that the host really runs ahead of the device, and the thread
// sanitizer sees a buffer that is touched before its copy or kernel is waited for. Memory is filled with 0xff.
//
// What a test sets by environment variables, read at each call:
//   SIMT_DEVICES=n          devices that there are; 1 if unset
//   SIMT_DEVICE_BYTES=n     memory of each; 1 GiB if unset
//   SIMT_MULTIPROCESSORS=n  that each says it has; 1 if unset
//   SIMT_CLUSTERS=1         they say that they have clusters of blocks
//   SIMT_COOPERATIVE=0      they say that they cannot promise to hold all blocks of a launch at once
//   SIMT_FAIL=Name          calls of simtName fail with simtErrorLaunchFailure
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>

enum simtError_t {
  simtSuccess = 0,
  simtErrorInvalidValue = 1,
  simtErrorMemoryAllocation = 2,
  simtErrorInvalidConfiguration = 9,
  simtErrorNoDevice = 100,
  simtErrorInvalidDevice = 101,
  simtErrorMapFailed = 205,
  simtErrorInvalidHandle = 400,
  simtErrorNotReady = 600,
  simtErrorHostMemoryAlreadyRegistered = 712,
  simtErrorLaunchFailure = 719,
};

enum simtMemcpyKind { simtMemcpyHostToDevice, simtMemcpyDeviceToHost };
inline constexpr unsigned simtStreamNonBlocking = 1;
inline constexpr unsigned simtHostRegisterPortable = 1;
inline constexpr unsigned simtIpcMemLazyEnablePeerAccess = 1;

struct simtDeviceProp {
  char name[32];
  int multiProcessorCount;
  std::size_t sharedMemPerBlock;
  int cooperativeLaunch;
  int clusters;
};

namespace simt {

inline std::size_t setting(const char* name, std::size_t otherwise) {
  const char* const value = std::getenv(name);
  return value == nullptr ? otherwise : std::strtoull(value, nullptr, 10);
}

inline bool is_to_fail(const char* call) {
  const char* const name = std::getenv("SIMT_FAIL");
  return name != nullptr && std::strcmp(name, call) == 0;
}

inline thread_local int device = 0;

// Who owns which memory: the device's bounds, and a check that nothing else is given back.
class Memory {
 public:
  simtError_t allocate(void** data, std::size_t bytes, int owner, std::size_t limit) {
    const std::lock_guard lock(mutex_);
    if (bytes > limit - std::min(limit, used_[owner])) return simtErrorMemoryAllocation;
    *data = std::malloc(bytes);
    std::memset(*data, 0xFF, bytes);
    used_[owner] += bytes;
    owned_[*data] = {owner, bytes};
    return simtSuccess;
  }

  simtError_t release(void* data) {
    const std::lock_guard lock(mutex_);
    const auto found = owned_.find(data);
    if (found == owned_.end()) return simtErrorInvalidValue;
    used_[found->second.first] -= found->second.second;
    owned_.erase(found);
    std::free(data);
    return simtSuccess;
  }

  std::size_t used(int owner) {
    const std::lock_guard lock(mutex_);
    return used_[owner];
  }

  // A piece of memory; of no bytes where there is none.
  struct Place {
    unsigned char* start = nullptr;
    std::size_t bytes = 0;
    int owner = 0;

    bool holds(const void* data, std::size_t count) const {
      const auto* const first = static_cast<const unsigned char*>(data);
      return first >= start && count <= bytes && static_cast<std::size_t>(first - start) <= bytes - count;
    }
  };

  // What `data` lies in.
  Place place_of(const void* data) {
    const std::lock_guard lock(mutex_);
    auto after = owned_.upper_bound(const_cast<void*>(data));
    if (after == owned_.begin()) return {};
    const auto& [start, owned] = *--after;
    const Place place{static_cast<unsigned char*>(start), owned.second, owned.first};
    return place.holds(data, 1) ? place : Place{};
  }

  // Takes the host's memory, that is not ours, for pinned.
  simtError_t adopt(void* data, std::size_t bytes, int owner) {
    const std::lock_guard lock(mutex_);
    const auto* const end = static_cast<unsigned char*>(data) + bytes;
    auto after = owned_.lower_bound(const_cast<unsigned char*>(end));
    if (after != owned_.begin()) {
      const auto& [start, owned] = *--after;
      if (static_cast<unsigned char*>(start) + owned.second > data) return simtErrorHostMemoryAlreadyRegistered;
    }
    owned_[data] = {owner, bytes};
    return simtSuccess;
  }

  simtError_t disown(void* data, int owner) {
    const std::lock_guard lock(mutex_);
    const auto found = owned_.find(data);
    if (found == owned_.end() || found->second.first != owner) return simtErrorInvalidValue;
    owned_.erase(found);
    return simtSuccess;
  }

 private:
  std::mutex mutex_;
  std::map<int, std::size_t> used_;
  std::map<void*, std::pair<int, std::size_t>> owned_;
};

inline constexpr int kHost = -1;
inline constexpr int kRegistered = -2;
// By copies from and to registered memory, since the start.
inline std::atomic<std::size_t> bytes_moved_directly;

inline Memory& memory() {
  static Memory instance;
  return instance;
}

inline constexpr int kMaxDevices = 8;
// By device, since the start.
inline std::atomic<std::size_t> launches[kMaxDevices];

class StreamThread {
 public:
  StreamThread() : device_(simt::device), thread_([this] { work(); }) {}

  int device() const { return device_; }

  ~StreamThread() {
    put([this] { is_ending_ = true; });
    thread_.join();
  }

  void put(std::function<void()> task) {
    {
      const std::lock_guard lock(mutex_);
      tasks_.push_back(std::move(task));
    }
    changed_.notify_all();
  }

  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return tasks_.empty(); });
  }

 private:
  void work() {
    while (!is_ending_) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return !tasks_.empty(); });
      lock.unlock();
      tasks_.front()();  // a deque's elements stay where they are
      lock.lock();
      tasks_.pop_front();  // only now, since wait() takes an empty queue for the end
      lock.unlock();
      changed_.notify_all();
    }
  }

  const int device_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  bool is_ending_ = false;  // the thread's own
  std::thread thread_;
};

// Without a stream it is done at once.
inline void put(StreamThread* stream, std::function<void()> task) {
  if (stream == nullptr) {
    task();
  } else {
    stream->put(std::move(task));
  }
}

class StreamEvent {
 public:
  void record(StreamThread& stream) {
    const std::lock_guard lock(mutex_);
    const std::uint64_t number = ++recorded_;
    stream.put([this, number] {
      const std::lock_guard passing(mutex_);
      passed_ = number;
      time_ = std::chrono::steady_clock::now();
      changed_.notify_all();
    });
  }

  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this, number = recorded_] { return passed_ >= number; });
  }

  // Whether it has passed, and when.
  std::pair<bool, std::chrono::steady_clock::time_point> state() {
    const std::lock_guard lock(mutex_);
    return {passed_ == recorded_ && recorded_ != 0, time_};
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t recorded_ = 0;
  std::uint64_t passed_ = 0;
  std::chrono::steady_clock::time_point time_;
};

}  // namespace simt

using simtStream_t = simt::StreamThread*;
using simtEvent_t = simt::StreamEvent*;

inline const char* simtGetErrorName(simtError_t error) {
  switch (error) {
    case simtSuccess:
      return "simtSuccess";
    case simtErrorInvalidValue:
      return "simtErrorInvalidValue";
    case simtErrorMemoryAllocation:
      return "simtErrorMemoryAllocation";
    case simtErrorInvalidConfiguration:
      return "simtErrorInvalidConfiguration";
    case simtErrorNoDevice:
      return "simtErrorNoDevice";
    case simtErrorInvalidDevice:
      return "simtErrorInvalidDevice";
    case simtErrorMapFailed:
      return "simtErrorMapFailed";
    case simtErrorInvalidHandle:
      return "simtErrorInvalidHandle";
    case simtErrorNotReady:
      return "simtErrorNotReady";
    case simtErrorHostMemoryAlreadyRegistered:
      return "simtErrorHostMemoryAlreadyRegistered";
    case simtErrorLaunchFailure:
      return "simtErrorLaunchFailure";
  }
  return "unknown";
}
inline simtError_t simtGetLastError() { return simtSuccess; }

inline simtError_t simtDriverGetVersion(int* version) {
  *version = 1;
  return simtSuccess;
}
inline simtError_t simtGetDeviceCount(int* count) {
  *count = static_cast<int>(simt::setting("SIMT_DEVICES", 1));
  return *count == 0 ? simtErrorNoDevice : simtSuccess;
}
inline simtError_t simtSetDevice(int device) {
  if (device < 0 || static_cast<std::size_t>(device) >= simt::setting("SIMT_DEVICES", 1)) return simtErrorInvalidDevice;
  simt::device = device;
  return simtSuccess;
}
inline simtError_t simtGetDeviceProperties(simtDeviceProp* properties, int device) {
  std::snprintf(properties->name, sizeof properties->name, "simulated device %d", device);
  properties->multiProcessorCount = static_cast<int>(simt::setting("SIMT_MULTIPROCESSORS", 1));
  properties->sharedMemPerBlock = std::size_t{64} << 10;
  properties->cooperativeLaunch = static_cast<int>(simt::setting("SIMT_COOPERATIVE", 1));
  properties->clusters = static_cast<int>(simt::setting("SIMT_CLUSTERS", 0));
  return simtSuccess;
}
inline simtError_t simtMemGetInfo(std::size_t* free, std::size_t* total) {
  if (simt::is_to_fail("MemGetInfo")) return simtErrorLaunchFailure;
  *total = simt::setting("SIMT_DEVICE_BYTES", std::size_t{1} << 30);
  *free = *total - std::min(*total, simt::memory().used(simt::device));
  return simtSuccess;
}

inline simtError_t simtMalloc(void** data, std::size_t bytes) {
  if (simt::is_to_fail("Malloc")) return simtErrorLaunchFailure;
  return simt::memory().allocate(data, bytes, simt::device, simt::setting("SIMT_DEVICE_BYTES", std::size_t{1} << 30));
}
inline simtError_t simtFree(void* data) { return simt::memory().release(data); }
inline simtError_t simtMallocHost(void** data, std::size_t bytes) {
  return simt::memory().allocate(data, bytes, simt::kHost, SIZE_MAX);
}
inline simtError_t simtFreeHost(void* data) { return simt::memory().release(data); }

inline simtError_t simtHostRegister(void* data, std::size_t bytes, unsigned) {
  if (simt::is_to_fail("HostRegister")) return simtErrorLaunchFailure;
  return simt::memory().adopt(data, bytes, simt::kRegistered);
}
inline simtError_t simtHostUnregister(void* data) { return simt::memory().disown(data, simt::kRegistered); }

inline simtError_t simtDeviceGetPCIBusId(char* id, int bytes, int device) {
  std::snprintf(id, static_cast<std::size_t>(bytes), "0000:%02X:00.0", 0xA0 + static_cast<unsigned>(device));
  return simtSuccess;
}
inline simtError_t simtMemGetAddressRange(void** start, std::size_t* bytes, void* data) {
  if (simt::is_to_fail("MemGetAddressRange")) return simtErrorLaunchFailure;
  const auto place = simt::memory().place_of(data);
  *start = place.start;
  *bytes = place.bytes;
  return place.bytes == 0 ? simtErrorInvalidValue : simtSuccess;
}

// One process plays both sides: it exports memory of its own and opens that, at the same address. A handle is the
// memory's address and size. To open what is open already is an error, as in older runtimes.
struct simtIpcMemHandle_t {
  char reserved[64];
};

namespace simt {

struct Exported {
  char magic[8];
  void* data;
  std::size_t bytes;
};
inline constexpr char kMagic[8] = "simtIpc";

inline std::mutex opened_mutex;
inline std::set<void*> opened;

inline std::size_t opened_count() {
  const std::lock_guard lock(opened_mutex);
  return opened.size();
}

}  // namespace simt

inline simtError_t simtIpcGetMemHandle(simtIpcMemHandle_t* handle, void* data) {
  const auto place = simt::memory().place_of(data);
  if (place.bytes == 0 || place.owner < 0) return simtErrorInvalidValue;
  simt::Exported exported{{}, place.start, place.bytes};
  std::memcpy(exported.magic, simt::kMagic, sizeof exported.magic);
  *handle = {};
  std::memcpy(handle->reserved, &exported, sizeof exported);
  return simtSuccess;
}
inline simtError_t simtIpcOpenMemHandle(void** data, simtIpcMemHandle_t handle, unsigned) {
  simt::Exported exported;
  std::memcpy(&exported, handle.reserved, sizeof exported);
  if (std::memcmp(exported.magic, simt::kMagic, sizeof exported.magic) != 0) return simtErrorInvalidHandle;
  const auto place = simt::memory().place_of(exported.data);
  if (place.start != exported.data || place.bytes != exported.bytes || place.owner != simt::device) {
    return simtErrorInvalidHandle;
  }
  const std::lock_guard lock(simt::opened_mutex);
  if (!simt::opened.insert(exported.data).second) return simtErrorMapFailed;
  *data = exported.data;
  return simtSuccess;
}
inline simtError_t simtIpcCloseMemHandle(void* data) {
  const std::lock_guard lock(simt::opened_mutex);
  return simt::opened.erase(data) == 1 ? simtSuccess : simtErrorInvalidValue;
}

inline simtError_t simtStreamCreateWithFlags(simtStream_t* stream, unsigned) {
  *stream = new simt::StreamThread;
  return simtSuccess;
}
inline simtError_t simtStreamDestroy(simtStream_t stream) {
  delete stream;
  return simtSuccess;
}
inline simtError_t simtStreamSynchronize(simtStream_t stream) {
  if (stream != nullptr) stream->wait();
  return simtSuccess;
}

inline simtError_t simtEventCreate(simtEvent_t* event) {
  *event = new simt::StreamEvent;
  return simtSuccess;
}
inline simtError_t simtEventDestroy(simtEvent_t event) {
  event->wait();
  delete event;
  return simtSuccess;
}
inline simtError_t simtEventRecord(simtEvent_t event, simtStream_t stream) {
  event->record(*stream);
  return simtSuccess;
}
inline simtError_t simtEventSynchronize(simtEvent_t event) {
  if (simt::is_to_fail("EventSynchronize")) return simtErrorLaunchFailure;
  event->wait();
  return simtSuccess;
}
inline simtError_t simtEventElapsedTime(float* milliseconds, simtEvent_t from, simtEvent_t to) {
  const auto [has_from, start] = from->state();
  const auto [has_to, end] = to->state();
  if (!has_from || !has_to) return simtErrorNotReady;
  *milliseconds = std::chrono::duration<float, std::milli>(end - start).count();
  return simtSuccess;
}

inline simtError_t simtMemcpyAsync(void* to, const void* from, std::size_t bytes, simtMemcpyKind kind,
                                   simtStream_t stream) {
  if (simt::is_to_fail("MemcpyAsync")) return simtErrorLaunchFailure;
  if (bytes == 0) return simtSuccess;
  if (stream != nullptr) {
    const void* const on_host = kind == simtMemcpyHostToDevice ? from : to;
    const void* const on_device = kind == simtMemcpyHostToDevice ? to : from;
    const auto host = simt::memory().place_of(on_host);
    const auto device = simt::memory().place_of(on_device);
    if (!host.holds(on_host, bytes) || host.owner >= 0) return simtErrorInvalidValue;
    if (!device.holds(on_device, bytes) || device.owner != stream->device()) return simtErrorInvalidValue;
    if (host.owner == simt::kRegistered) simt::bytes_moved_directly += bytes;
  }
  simt::put(stream, [=] { std::memcpy(to, from, bytes); });
  return simtSuccess;
}

inline simtError_t simtMemsetAsync(void* data, int value, std::size_t bytes, simtStream_t stream) {
  if (simt::is_to_fail("MemsetAsync")) return simtErrorLaunchFailure;
  if (bytes == 0) return simtSuccess;
  simt::put(stream, [=] { std::memset(data, value, bytes); });
  return simtSuccess;
}

namespace simt {

inline simtError_t put_launch(simtStream_t stream, const char* call, bool can_launch, std::function<void()> launch) {
  if (is_to_fail(call)) return simtErrorLaunchFailure;
  if (!can_launch) return simtErrorInvalidConfiguration;
  if (stream != nullptr) ++launches[stream->device()];
  put(stream, std::move(launch));
  return simtSuccess;
}

}  // namespace simt

inline simtError_t simtLaunch(simtStream_t stream, std::size_t blocks, unsigned threads, std::function<void()> body) {
  return simt::put_launch(stream, "Launch", simt::can_launch(blocks, threads),
                          [=] { simt::run(blocks, threads, body); });
}
// Blocks that a device holds at once: few, so that a matrix of some rows takes several launches.
inline std::size_t simtBlocksTogether(unsigned threads, std::size_t shared_bytes, int) {
  return std::min<std::size_t>(8, simt::max_blocks_together(threads, shared_bytes));
}
// All blocks are resident at once, as by a vendor's cooperative launch.
inline simtError_t simtLaunchTogether(simtStream_t stream, std::size_t blocks, unsigned threads,
                                      std::size_t shared_bytes, std::function<void()> body) {
  return simt::put_launch(stream, "LaunchTogether", simt::can_launch_together(blocks, threads, shared_bytes),
                          [=] { simt::run_together(blocks, threads, shared_bytes, body); });
}
inline simtError_t simtLaunchClusters(simtStream_t stream, std::size_t clusters, unsigned cluster_blocks,
                                      unsigned threads, std::size_t shared_bytes, std::function<void()> body) {
  return simt::put_launch(stream, "LaunchClusters",
                          clusters != 0 && simt::can_launch_together(cluster_blocks, threads, shared_bytes),
                          [=] { simt::run_clusters(clusters, cluster_blocks, threads, shared_bytes, body); });
}
