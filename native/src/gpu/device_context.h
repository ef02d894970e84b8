// What is kept of one device for the life of the process: streams, events and pools, made at the start.
#pragma once

#include <cstddef>
#include <mutex>

#include "gpu/buffer_pool.h"
#include "gpu/choice.h"
#include "gpu/gpu_runtime.h"
#include "gpu/shelf.h"
#include "gpu/variants.h"
#include "softmaxd/gpu_context.h"

namespace softmaxd::gpu {

// An event that takes its time on the device.
class TimedEvent {
 public:
  TimedEvent();
  ~TimedEvent();
  TimedEvent(const TimedEvent&) = delete;
  TimedEvent& operator=(const TimedEvent&) = delete;

  void record(Stream stream);
  // Waits until the device has come to where it was last recorded.
  void wait() const;
  // Both have been waited for.
  double seconds_since(const TimedEvent& earlier) const;

 private:
  Event event_;
};

// Bytes of a matrix that a thread copies, and the device moves, at once: up to the first; down to the second where
// there would be too few pieces for all threads. Measured: bench/README.md.
inline constexpr std::size_t kPieceBytes = std::size_t{1} << 20;
inline constexpr std::size_t kSmallestPieceBytes = std::size_t{128} << 10;
// Of the device, behind a piece; so large that it bounds no piece whose rows are longer than 100 elements.
inline constexpr std::size_t kSlotWorkspaceBytes = kPieceBytes / 4;

// One piece of a matrix on its way through the device, and the memory that it takes for that long.
struct Slot {
  void let_go() {
    pinned.end();
    device.end();
  }

  BufferPool::Loan pinned;
  BufferPool::Loan device;
  TimedEvent uploaded;
  TimedEvent computed;
  TimedEvent downloaded;
};

// A stream for one thread, with room for two pieces: the thread copies one while the device works on the other.
struct Lane {
  static constexpr std::size_t kSlots = 2;

  Lane();
  ~Lane();
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  Stream stream;
  unsigned* counters;  // kCounters
  Slot slots[kSlots];
};

// Both throw DeviceError.
GpuDevice describe_device(int index);
Capacity capacity_of(int index);

struct DeviceContext {
  // Makes `lanes` lanes, and the memory that all of them take at once.
  // pool_bytes: the bound of the device's pool; 0 for 80 % of what is free now. Throws OutOfMemory, DeviceError.
  DeviceContext(int index, std::size_t lanes, std::size_t pool_bytes);

  // Makes it the calling thread's device.
  void make_current() const;

  const GpuDevice device;
  const Capacity capacity;
  BufferPool device_pool;
  BufferPool pinned_pool;
  Shelf<Lane> lanes;
  Shelf<TimedEvent> start_events;
  // Held by a matrix whose rows do not fit into a slot: it keeps all threads and the bus busy by itself, and two at a
  // time would only need twice the memory.
  std::mutex wide_turn;
};

}  // namespace softmaxd::gpu
