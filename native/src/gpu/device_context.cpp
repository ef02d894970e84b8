#include "gpu/device_context.h"

#include <string>

#include "gpu/runtime_error.h"

namespace softmaxd::gpu {
namespace {

void choose_device(int index) { check(set_device(index), "choosing the device"); }

DeviceProperties properties_of(int index) {
  DeviceProperties properties;
  check(device_properties(&properties, index), "asking for the device's properties");
  return properties;
}

// The first step of making a context: what follows is made on this device.
GpuDevice open(int index) {
  choose_device(index);
  return describe_device(index);
}

std::size_t pool_limit(std::size_t asked) {
  if (asked != 0) return asked;
  std::size_t free = 0;
  std::size_t total = 0;  // a part of a shared card sees its own share
  check(memory_info(&free, &total), "asking for the device's free memory");
  return free / 5 * 4;
}

}  // namespace

TimedEvent::TimedEvent() { check(create_event(&event_), "making an event"); }
TimedEvent::~TimedEvent() { disregard(destroy_event(event_)); }

void TimedEvent::record(Stream stream) { check(record_event(event_, stream), "recording an event"); }
void TimedEvent::wait() const { check(synchronize_event(event_), "waiting for the device"); }

double TimedEvent::seconds_since(const TimedEvent& earlier) const {
  float milliseconds = 0;
  check(elapsed_milliseconds(&milliseconds, earlier.event_, event_), "reading an event's time");
  return milliseconds * 1e-3;
}

Lane::Lane() {
  check(create_stream(&stream), "making a stream");
  void* memory = nullptr;
  check(allocate_device(&memory, kCounters * sizeof(unsigned)), "allocating a stream's counters");
  counters = static_cast<unsigned*>(memory);
  check(fill_device(counters, 0, kCounters * sizeof(unsigned), stream), "clearing a stream's counters");
  check(synchronize_stream(stream), "clearing a stream's counters");
}

Lane::~Lane() {
  disregard(release_device(counters));
  disregard(destroy_stream(stream));
}

GpuDevice describe_device(int index) {
  const DeviceProperties properties = properties_of(index);
  return {index, product_name(properties), static_cast<std::size_t>(properties.multiProcessorCount)};
}

std::string pci_bus_id_of(int index) {
  char id[32] = "";
  check(pci_bus_id(id, sizeof id, index), "asking for the device's PCI bus id");
  return id;
}

Capacity capacity_of(int index) {
  const DeviceProperties properties = properties_of(index);
  return {static_cast<std::size_t>(properties.multiProcessorCount), properties.sharedMemPerBlock,
          has_clusters(properties), properties.cooperativeLaunch != 0};
}

DeviceContext::DeviceContext(int index, std::size_t lane_count, std::size_t pool_bytes)
    : device(open(index)),
      capacity(capacity_of(index)),
      device_pool("device:" + std::to_string(index), {allocate_device, release_device}, pool_limit(pool_bytes)),
      // Pieces alone are lent from it, and lanes have a fixed number of them.
      pinned_pool("pinned:" + std::to_string(index), {allocate_pinned, release_pinned}, SIZE_MAX),
      lanes(lane_count),
      start_events(lane_count),
      slots_(lane_count * Lane::kSlots) {
  device_pool.reserve(slot_bytes(kPieceBytes), slots_);
  pinned_pool.reserve(kPieceBytes, slots_);
}

void DeviceContext::make_current() const { choose_device(device.index); }

void DeviceContext::reserve_direct_pieces() {
  const std::lock_guard lock(reserving_);
  if (has_direct_pieces_) return;
  make_current();
  device_pool.reserve(slot_bytes(kDirectPieceBytes), slots_);
  has_direct_pieces_ = true;
}

}  // namespace softmaxd::gpu
