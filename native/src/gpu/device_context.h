// What is kept of one device for the life of the process: streams, events and pools, made at the start.
#pragma once

#include <cstddef>
#include <mutex>
#include <string>

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
// A workspace lies behind a piece; so large that it bounds no piece whose rows are longer than 100 elements.
constexpr std::size_t slot_workspace_bytes(std::size_t piece_bytes) { return piece_bytes / 4; }
constexpr std::size_t slot_bytes(std::size_t piece_bytes) { return piece_bytes + slot_workspace_bytes(piece_bytes); }

// Of a matrix that the device moves from and to the caller's memory by itself. No thread copies, so a piece is larger:
// a copy's start, some microseconds, is little of the 40 that 2 MiB take at 50 GB/s. It is no larger still because
// nothing overlaps with the first piece's way up and the last one's way down.
inline constexpr std::size_t kDirectPieceBytes = std::size_t{2} << 20;
inline constexpr std::size_t kSmallestDirectPieceBytes = std::size_t{512} << 10;
// Streams that keep the bus busy in both directions: one uploads, one computes, one downloads, one is being refilled.
inline constexpr std::size_t kDirectThreads = 4;

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

// All throw DeviceError.
GpuDevice describe_device(int index);
std::string pci_bus_id_of(int index);
Capacity capacity_of(int index);

struct DeviceContext {
  // Makes `lanes` lanes, and the memory that all of them take at once.
  // pool_bytes: the bound of the device's pool; 0 for 80 % of what is free now. Throws OutOfMemory, DeviceError.
  DeviceContext(int index, std::size_t lanes, std::size_t pool_bytes);

  // Makes it the calling thread's device.
  void make_current() const;

  // Makes the memory that all lanes take at once for pieces that no thread copies; once. Throws OutOfMemory,
  // DeviceError.
  void reserve_direct_pieces();

  const GpuDevice device;
  const Capacity capacity;
  BufferPool device_pool;
  BufferPool pinned_pool;
  Shelf<Lane> lanes;
  Shelf<TimedEvent> start_events;
  // Held by a matrix whose rows do not fit into a slot: it keeps all threads and the bus busy by itself, and two at a
  // time would only need twice the memory.
  std::mutex wide_turn;

 private:
  const std::size_t slots_;
  std::mutex reserving_;
  bool has_direct_pieces_ = false;
};

}  // namespace softmaxd::gpu
