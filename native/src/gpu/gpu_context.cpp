#include "softmaxd/gpu_context.h"

#include <algorithm>
#include <cctype>
#include <mutex>
#include <numeric>

#include "cpu/thread_pool.h"
#include "cpu/topology.h"
#include "gpu/choice.h"
#include "gpu/device_context.h"
#include "gpu/host_memory.h"
#include "gpu/ipc_memory.h"
#include "gpu/pipeline.h"
#include "gpu/runtime_error.h"
#include "gpu/timing.h"
#include "gpu/variants.h"

namespace softmaxd {
namespace {

// More do not copy faster: bench/README.md.
constexpr std::size_t kDefaultThreads = 8;
// Calls that copy at the same time without waiting for a lane, besides the helping threads.
constexpr std::size_t kCallers = 8;
// Of what a caller gives as one, so much is repeated in a message.
constexpr std::size_t kLongestBusId = 32;

std::string upper_case(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::toupper(c); });
  return text;
}

int device_count() {
  int count = 0;
  const gpu::Error error = gpu::device_count(&count);
  gpu::forget_last_error();
  if (error == gpu::kSuccess && count > 0) return count;
  const std::string reason = error == gpu::kSuccess ? "the runtime sees none" : gpu::error_name(error);
  throw Unsupported("no " + upper_case(gpu::kRuntimeName) + " device (" + reason + ")");
}

// The devices that were asked for, each once.
std::vector<int> chosen_devices(const std::vector<int>& asked) {
  const int count = device_count();
  std::vector<int> chosen = asked;
  if (chosen.empty()) {
    chosen.resize(static_cast<std::size_t>(count));
    std::iota(chosen.begin(), chosen.end(), 0);
  }
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    if (chosen[i] < 0 || chosen[i] >= count) {
      throw InvalidArgument("there is no device " + std::to_string(chosen[i]) + "; there are 0 to " +
                            std::to_string(count - 1));
    }
    if (std::find(chosen.begin(), chosen.begin() + static_cast<std::ptrdiff_t>(i), chosen[i]) !=
        chosen.begin() + static_cast<std::ptrdiff_t>(i)) {
      throw InvalidArgument("device " + std::to_string(chosen[i]) + " is given twice");
    }
  }
  return chosen;
}

std::string describe(const Matrix& matrix) {
  return std::to_string(matrix.rows) + " x " + std::to_string(matrix.cols) + " " + std::string(name_of(matrix.dtype));
}

const gpu::Variant& variant_for(std::string_view name, std::size_t cols) {
  const gpu::Variant& variant = gpu::variant_named(name);
  if (cols <= variant.max_columns) return variant;
  throw InvalidArgument("the variant " + std::string(name) + " does not take " + std::to_string(cols) +
                        " columns; it takes up to " + std::to_string(variant.max_columns));
}

// Returns what act() does; what it throws says on what it was at work.
template <class Act>
auto with_circumstances(const gpu::Variant& variant, const Matrix& matrix, const GpuDevice& device, Act act) {
  const auto told = [&](const std::exception& error) {
    return std::string(error.what()) + " (" + std::string(variant.name) + ", " + describe(matrix) + ", device " +
           std::to_string(device.index) + ")";
  };
  try {
    return act();
  } catch (const OutOfMemory& error) {
    throw OutOfMemory(told(error));
  } catch (const DeviceError& error) {
    throw DeviceError(told(error));
  }
}

// Where `matrix` lies in the memory. Throws InvalidArgument where it does not lie in it, or not aligned.
std::byte* place_in(const DeviceMemory& memory, const gpu::IpcMemory& opened, std::size_t offset, const Matrix& matrix,
                    const std::string& what) {
  const std::size_t item_bytes = item_size(matrix.dtype);
  const std::size_t items = offset > memory.byte_size() ? 0 : (memory.byte_size() - offset) / item_bytes;
  const bool fits = matrix.cols == 0 || matrix.rows <= items / matrix.cols;
  if (offset > memory.byte_size() || !fits) {
    throw InvalidArgument("the " + what + ", " + describe(matrix) + " from byte " + std::to_string(offset) +
                          ", does not lie within the memory of " + std::to_string(memory.byte_size()) + " bytes");
  }
  std::byte* const place = opened.data() + offset;
  if (reinterpret_cast<std::uintptr_t>(place) % item_bytes != 0) {
    throw InvalidArgument("the " + what + " starts at byte " + std::to_string(offset) + "; it must be a multiple of " +
                          std::to_string(item_bytes));
  }
  return place;
}

bool overlap(const std::byte* a, const std::byte* b, std::size_t bytes) {
  return a != b && (a < b ? b - a : a - b) < static_cast<std::ptrdiff_t>(bytes);
}

std::string lower_case(std::string_view text) {
  std::string lower(text);
  std::transform(lower.begin(), lower.end(), lower.begin(), [](unsigned char c) { return std::tolower(c); });
  return lower;
}

}  // namespace

const char* gpu_runtime() { return gpu::kRuntimeName; }

std::vector<GpuDevice> gpu_devices() {
  std::vector<GpuDevice> devices;
  const int count = device_count();
  for (int index = 0; index < count; ++index) devices.push_back(gpu::describe_device(index));
  return devices;
}

int gpu_driver_version() {
  int version = 0;
  gpu::check(gpu::driver_version(&version), "asking for the driver's version");
  return version;
}

struct GpuContext::Impl {
  struct Device {
    Device(int index, std::size_t lanes, std::size_t pool_bytes) : context(index, lanes, pool_bytes) {}
    gpu::DeviceContext context;
    std::size_t load_bytes = 0;  // of the calls under way
  };

  explicit Impl(const GpuOptions& options)
      : choices(options.choices), threads(cpu::thread_count(options.threads, kDefaultThreads)), pool(threads - 1) {
    for (const int index : chosen_devices(options.devices)) {
      devices.push_back(std::make_unique<Device>(index, threads + kCallers, options.device_pool_bytes));
    }
    if (options.choices.empty()) choices = gpu::Choices(gpu::default_choices(least_capacity()));
  }

  // A call is planned before its device is known: what suits the least of them suits all.
  gpu::Capacity least_capacity() const {
    gpu::Capacity least = devices.front()->context.capacity;
    for (const auto& device : devices) least = gpu::least_of(least, device->context.capacity);
    return least;
  }

  // What computes a call, and in which blocks.
  struct Chosen {
    const gpu::Variant& variant;
    gpu::Blocks blocks;
  };

  // blocks_for(row_workspace_bytes) says how the matrix is cut.
  template <class BlocksFor>
  Chosen choose(const Matrix& matrix, std::string_view name, BlocksFor blocks_for) const {
    if (!name.empty()) {
      const gpu::Variant& named = variant_for(name, matrix.cols);
      return {named, blocks_for(named.workspace_bytes({1, matrix.cols, matrix.dtype}))};
    }
    const gpu::Blocks blocks = blocks_for(choices.row_workspace_bytes(matrix.dtype, matrix.cols));
    return {choices.variant_for({blocks.rows, matrix.cols, matrix.dtype}), blocks};
  }

  Chosen choose(const Matrix& matrix, std::string_view name, const gpu::Traffic& traffic) const {
    return choose(matrix, name, [&](std::size_t bytes) { return gpu::blocks_of(matrix, bytes, traffic); });
  }

  Device& device_of(const gpu::IpcMemory& memory) const {
    for (const auto& device : devices) {
      if (device->context.device.index == memory.device()) return *device;
    }
    throw InvalidArgument("the memory is on device " + std::to_string(memory.device()) +
                          ", which the context does not have");
  }

  // A call's load on a device; it ends with the call, however that ends.
  class Load {
   public:
    Load(Impl& impl, std::size_t bytes, Device& device) : impl_(impl), bytes_(bytes), device_(&device) {
      const std::lock_guard lock(impl_.mutex);
      device_->load_bytes += bytes_;
    }
    // On the device that has the least now.
    Load(Impl& impl, std::size_t bytes) : impl_(impl), bytes_(bytes) {
      const std::lock_guard lock(impl_.mutex);
      device_ = std::min_element(impl_.devices.begin(), impl_.devices.end(), [](const auto& a, const auto& b) {
                  return a->load_bytes < b->load_bytes;
                })->get();
      device_->load_bytes += bytes_;
    }
    ~Load() {
      const std::lock_guard lock(impl_.mutex);
      device_->load_bytes -= bytes_;
    }
    Load(const Load&) = delete;
    Load& operator=(const Load&) = delete;

    gpu::DeviceContext& context() const { return device_->context; }

   private:
    Impl& impl_;
    const std::size_t bytes_;
    Device* device_;
  };

  gpu::Choices choices;
  const std::size_t threads;
  cpu::ThreadPool pool;
  std::vector<std::unique_ptr<Device>> devices;
  gpu::HostMemory host_memory;
  std::mutex mutex;
};

GpuContext::GpuContext(const GpuOptions& options) : impl_(std::make_unique<Impl>(options)) {}
GpuContext::~GpuContext() = default;

void GpuContext::warm_up() {
  const std::vector<float> source(128);
  std::vector<float> destination(source.size());
  const gpu::Traffic traffic = gpu::traffic_of(impl_->threads, false);
  for (const auto& device : impl_->devices) {
    for (const gpu::Variant& variant : gpu::variants()) {
      if (variant.max_columns == 0) continue;  // not for this runtime
      for (std::size_t dtype = 0; dtype < kDTypeCount; ++dtype) {
        const gpu::Request request{reinterpret_cast<const std::byte*>(source.data()),
                                   reinterpret_cast<std::byte*>(destination.data()),
                                   {2, source.size() / 2, static_cast<DType>(dtype)},
                                   {}};
        const gpu::Blocks blocks = impl_->choose(request.matrix, variant.name, traffic).blocks;
        gpu::run_pipeline(device->context, impl_->pool, variant, traffic, blocks, request);
      }
    }
  }
}

Plan GpuContext::plan(const Matrix& matrix, std::string_view variant) const {
  return gpu::plan_of(matrix, impl_->choose(matrix, variant, gpu::traffic_of(impl_->threads, false)).variant);
}

Phases GpuContext::softmax(const void* source, void* destination, const Matrix& matrix, Options options,
                           std::string_view variant) {
  const auto* const from = static_cast<const std::byte*>(source);
  auto* const to = static_cast<std::byte*>(destination);
  const std::size_t bytes = matrix.rows * matrix.cols * item_size(matrix.dtype);
  const bool is_source_registered = impl_->host_memory.contains(from, bytes);
  const bool is_destination_registered = impl_->host_memory.contains(to, bytes);
  const gpu::Traffic traffic = gpu::traffic_of(impl_->threads, is_source_registered && is_destination_registered);
  const Impl::Chosen chosen = impl_->choose(matrix, variant, traffic);
  if (bytes == 0) return {};
  const gpu::Request request{from, to, matrix, options, is_source_registered, is_destination_registered};
  const Impl::Load load(*impl_, bytes);
  gpu::DeviceContext& device = load.context();
  return with_circumstances(chosen.variant, matrix, device.device, [&] {
    return gpu::run_pipeline(device, impl_->pool, chosen.variant, traffic, chosen.blocks, request);
  });
}

void GpuContext::register_memory(void* data, std::size_t byte_size) {
  for (const auto& device : impl_->devices) device->context.reserve_direct_pieces();
  impl_->devices.front()->context.make_current();
  impl_->host_memory.add(static_cast<std::byte*>(data), byte_size);
}

void GpuContext::unregister_memory(void* data, std::size_t byte_size) {
  impl_->devices.front()->context.make_current();
  impl_->host_memory.remove(static_cast<std::byte*>(data), byte_size);
}

std::unique_ptr<DeviceMemory> GpuContext::open_device_memory(std::string_view ipc_handle, std::string_view pci_bus_id,
                                                             std::size_t byte_size) const {
  const std::string asked = lower_case(pci_bus_id);
  std::string there_are;
  for (const auto& device : impl_->devices) {
    const int index = device->context.device.index;
    const std::string own = lower_case(gpu::pci_bus_id_of(index));
    there_are += (there_are.empty() ? "" : ", ") + own;
    if (own != asked) continue;
    auto memory = std::make_shared<const gpu::IpcMemory>(index, ipc_handle);
    if (memory->byte_size() >= byte_size) return std::make_unique<DeviceMemory>(std::move(memory), byte_size);
    throw InvalidArgument("the allocation has " + std::to_string(memory->byte_size()) + " bytes, fewer than the " +
                          std::to_string(byte_size) + " that were asked for");
  }
  throw InvalidArgument("there is no device with the PCI bus id '" + asked.substr(0, kLongestBusId) + "'; there are " +
                        there_are);
}

Phases GpuContext::softmax_on_device(const DeviceMemory& source, std::size_t source_offset,
                                     const DeviceMemory& destination, std::size_t destination_offset,
                                     const Matrix& matrix, Options options, std::string_view variant) {
  const auto opened_source = source.memory();
  const auto opened_destination = destination.memory();
  if (opened_source->device() != opened_destination->device()) {
    throw InvalidArgument("source and destination are on different devices, " +
                          std::to_string(opened_source->device()) + " and " +
                          std::to_string(opened_destination->device()));
  }
  Impl::Device& device = impl_->device_of(*opened_source);
  const std::byte* const from = place_in(source, *opened_source, source_offset, matrix, "source");
  std::byte* const to = place_in(destination, *opened_destination, destination_offset, matrix, "destination");
  const std::size_t bytes = matrix.rows * matrix.cols * item_size(matrix.dtype);
  if (overlap(from, to, bytes)) {
    throw InvalidArgument("source and destination overlap; they must be the same memory, or have none in common");
  }
  const Impl::Chosen chosen =
      impl_->choose(matrix, variant, [&](std::size_t row_bytes) { return gpu::blocks_on_device(matrix, row_bytes); });
  if (bytes == 0) return {};
  const Impl::Load load(*impl_, bytes, device);
  return with_circumstances(chosen.variant, matrix, device.context.device, [&] {
    const double seconds = gpu::run_on_device(device.context, chosen.variant, chosen.blocks, from, to, matrix, options);
    return Phases{0.0, seconds, 0.0};
  });
}

double GpuContext::time_variant(std::string_view variant, const Matrix& matrix) {
  if (matrix.rows == 0 || matrix.cols == 0) throw InvalidArgument("there is nothing to time in " + describe(matrix));
  const gpu::Variant& timed = variant_for(variant, matrix.cols);
  gpu::DeviceContext& device = impl_->devices.front()->context;
  return with_circumstances(timed, matrix, device.device, [&] { return gpu::time_variant(device, timed, matrix); });
}

std::vector<std::string_view> GpuContext::candidates(std::size_t cols) const {
  std::vector<std::string_view> names;
  for (const gpu::Variant& variant : gpu::variants()) {
    if (variant.is_by_leaves && cols <= variant.max_columns) names.emplace_back(variant.name);
  }
  return names;
}

std::size_t GpuContext::threads() const { return impl_->threads; }

std::vector<GpuDevice> GpuContext::devices() const {
  std::vector<GpuDevice> devices;
  for (const auto& device : impl_->devices) devices.push_back(device->context.device);
  return devices;
}

std::vector<VariantNote> GpuContext::variants() const {
  std::vector<VariantNote> notes;
  for (const gpu::Variant& variant : gpu::variants()) {
    notes.push_back({std::string(variant.name), std::string(variant.note)});
  }
  return notes;
}

std::vector<PoolUse> GpuContext::pools() const {
  std::vector<PoolUse> uses;
  for (const auto& device : impl_->devices) {
    uses.push_back(device->context.device_pool.use());
    uses.push_back(device->context.pinned_pool.use());
  }
  return uses;
}

}  // namespace softmaxd
