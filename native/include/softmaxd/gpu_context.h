// Softmax on GPUs: streams, pools and the choice of a device, made once and kept.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "softmaxd/device_memory.h"
#include "softmaxd/softmax.h"

namespace softmaxd {

// The runtime that this was built for, "hip" or "cuda"; null where it was built for the CPU alone.
const char* gpu_runtime();

struct GpuDevice {
  int index;  // as the runtime counts them, from 0
  std::string name;
  std::size_t multiprocessors;
};

// The devices that can be had, in the runtime's order.
// Throws Unsupported where there is none; the message is the reason in one line: "no HIP device (hipErrorNoDevice)".
std::vector<GpuDevice> gpu_devices();

// The version of the driver, as the runtime counts it.
// Throws Unsupported in a build without GPU support, DeviceError.
int gpu_driver_version();

inline constexpr std::size_t kNoLimit = SIZE_MAX;

// A rule of the choice of a variant. It fits matrices up to a size, as far as the variant takes that many columns.
struct Choice {
  std::optional<DType> dtype;  // that it fits; none is each
  std::size_t
      max_rows;  // of one launch: a matrix goes to the device in blocks of about 1 MiB; kNoLimit fits any number
  std::size_t max_cols;  // kNoLimit fits any number
  std::string variant;
};

// Throws InvalidArgument for a variant that there is not, a limit of 0, or rules by which the number of rows would
// decide between variants that give a row other bits. What no rule fits goes to reread_row.
void check_choices(const std::vector<Choice>& choices);

struct GpuOptions {
  std::vector<int> devices;       // indices; empty takes all
  std::vector<Choice> choices;    // the first that fits decides; empty takes what is built in for such devices
  std::size_t threads;            // copy between callers' and pinned memory, the calling one included; 0 decides itself
  std::size_t device_pool_bytes;  // at most so many on each device; 0 takes 80 % of what is free at the start
};

// Where the time of one call went; the sum is the whole call.
//
// The phases of large calls overlap: a phase lasts from the end of the one before it until nothing of it is left.
struct Phases {
  double upload_seconds;    // until the last of the source is on the device
  double kernel_seconds;    // from then until the last result is computed
  double download_seconds;  // from then until the last result is in the caller's memory
};

// Computes softmax on GPUs. A call goes to the device with the least work under way.
//
// In a steady state no call allocates memory of a device, or pinned memory: PoolUse::allocations stays as it is.
// One row's bits depend on its values, its dtype, the device's kind and the choices, and on no other row: see Choice.
// Results below 2^-126 are flushed to zero in float32 and bfloat16; float16 keeps its subnormals.
//
// Thread-safe. Where a call throws, what it borrowed is back and the next call may succeed.
class GpuContext {
 public:
  // Throws Unsupported where there is no device, InvalidArgument for a device that there is not, choices that
  // check_choices() refuses or more than 1024 threads, OutOfMemory, DeviceError.
  explicit GpuContext(const GpuOptions& options);
  ~GpuContext();
  GpuContext(const GpuContext&) = delete;
  GpuContext& operator=(const GpuContext&) = delete;

  // Computes a small matrix of each type by each variant on each device: kernels are loaded when they are first used.
  void warm_up();

  // Says how softmax() will compute `matrix`.
  // variant: a name from variants(), or empty for what the choices say. Throws InvalidArgument for another name.
  Plan plan(const Matrix& matrix, std::string_view variant = {}) const;

  // Writes softmax(source) to destination; both are the host's, hold rows * cols elements at any alignment, and are the
  // same memory or do not overlap. Returns when all is written. What lies within registered memory is moved by the
  // device, with no copy on the host.
  // Throws as plan() does, OutOfMemory where the matrix does not fit, DeviceError.
  Phases softmax(const void* source, void* destination, const Matrix& matrix, Options options = {},
                 std::string_view variant = {});

  // Registers memory of the host, so that all devices reach it by themselves; it stays as it is until it is
  // unregistered, or the context ends, and no page of it is registered otherwise. Its pages are pinned: they stay in
  // memory, and the devices' own, also when the file that they are of is truncated. The first registration reserves
  // memory on each device. Takes milliseconds. Throws InvalidArgument for 0 bytes or what overlaps with registered
  // memory, OutOfMemory, DeviceError where the runtime cannot pin it; it is not registered then.
  void register_memory(void* data, std::size_t byte_size);
  // No call on the memory is under way. Throws InvalidArgument for what was not registered so, DeviceError.
  void unregister_memory(void* data, std::size_t byte_size);

  // Opens memory that another process has allocated on a device and exported.
  // ipc_handle: a cudaIpcMemHandle_t's or hipIpcMemHandle_t's bytes. pci_bus_id: of the device, as in "0000:3b:00.0".
  // Throws InvalidArgument for a device that the context has not, a handle that cannot be opened or an allocation of
  // less than `byte_size` bytes, OutOfMemory, DeviceError.
  std::unique_ptr<DeviceMemory> open_device_memory(std::string_view ipc_handle, std::string_view pci_bus_id,
                                                   std::size_t byte_size) const;

  // Writes softmax of what is in `source` to `destination`, both on one device of the context: the same memory or none
  // that overlaps. Nothing is moved: upload and download take no time. Returns when all is written; what other
  // processes put into the source must be there when it is called.
  // source_offset, destination_offset: in bytes, of rows * cols elements at their alignment.
  // Throws as plan() does, InvalidArgument for what does not lie within the memory, is not aligned, overlaps, is closed
  // or on different devices, OutOfMemory where there is no room for a workspace, DeviceError.
  Phases softmax_on_device(const DeviceMemory& source, std::size_t source_offset, const DeviceMemory& destination,
                           std::size_t destination_offset, const Matrix& matrix, Options options = {},
                           std::string_view variant = {});

  // Returns the seconds that a launch of `variant` takes on the first device, from its memory to its memory: the median
  // of several runs of launches one behind the other. What the device's caches can hold of the matrix, they do.
  // Throws InvalidArgument for an empty matrix or as plan() does, OutOfMemory where two matrices do not fit,
  // DeviceError.
  double time_variant(std::string_view variant, const Matrix& matrix);

  // The names of the variants that take rows of `cols` columns and give them the same bits, so that a number of rows
  // may decide between them.
  std::vector<std::string_view> candidates(std::size_t cols) const;

  std::size_t threads() const;
  std::vector<GpuDevice> devices() const;
  std::vector<VariantNote> variants() const;
  std::vector<PoolUse> pools() const;  // "device:0", "pinned:0" and so on, by the device's index

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace softmaxd
