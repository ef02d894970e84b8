#include "softmaxd/gpu_context.h"

#include <algorithm>
#include <cctype>
#include <mutex>
#include <numeric>

#include "cpu/thread_pool.h"
#include "cpu/topology.h"
#include "gpu/device_context.h"
#include "gpu/pipeline.h"
#include "gpu/runtime_error.h"
#include "gpu/variants.h"

namespace softmaxd {
namespace {

// More do not copy faster: bench/README.md.
constexpr std::size_t kDefaultThreads = 8;
// Calls that copy at the same time without waiting for a lane, besides the helping threads.
constexpr std::size_t kCallers = 8;

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

}  // namespace

const char* gpu_runtime() { return gpu::kRuntimeName; }

std::vector<GpuDevice> gpu_devices() {
  std::vector<GpuDevice> devices;
  const int count = device_count();
  for (int index = 0; index < count; ++index) devices.push_back(gpu::describe_device(index));
  return devices;
}

struct GpuContext::Impl {
  struct Device {
    Device(int index, std::size_t lanes, std::size_t pool_bytes) : context(index, lanes, pool_bytes) {}
    gpu::DeviceContext context;
    std::size_t load_bytes = 0;  // of the calls under way
  };

  explicit Impl(const GpuOptions& options)
      : max_basic_columns(options.max_basic_columns),
        threads(cpu::thread_count(options.threads, kDefaultThreads)),
        pool(threads - 1) {
    if (max_basic_columns == 0) throw InvalidArgument("max_basic_columns is 0; it must be 1 or more");
    for (const int index : chosen_devices(options.devices)) {
      devices.push_back(std::make_unique<Device>(index, threads + kCallers, options.device_pool_bytes));
    }
  }

  const gpu::Variant& choose(const Matrix& matrix, std::string_view name) const {
    if (name.empty()) return gpu::variants()[matrix.cols <= max_basic_columns ? gpu::kBasic : gpu::kFivePass];
    std::string names;
    for (const gpu::Variant& variant : gpu::variants()) {
      if (variant.name == name && matrix.cols > variant.max_columns) {
        throw InvalidArgument("the variant " + std::string(name) + " does not take " + std::to_string(matrix.cols) +
                              " columns; it takes up to " + std::to_string(variant.max_columns));
      }
      if (variant.name == name) return variant;
      names.append(" ").append(variant.name);
    }
    throw InvalidArgument("there is no variant '" + std::string(name) + "'; there are:" + names);
  }

  // A call's load on the device that had the least when it came; it ends with the call, however that ends.
  class Load {
   public:
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

  const std::size_t max_basic_columns;
  const std::size_t threads;
  cpu::ThreadPool pool;
  std::vector<std::unique_ptr<Device>> devices;
  std::mutex mutex;
};

GpuContext::GpuContext(const GpuOptions& options) : impl_(std::make_unique<Impl>(options)) {}
GpuContext::~GpuContext() = default;

void GpuContext::warm_up() {
  const std::vector<float> source(128);
  std::vector<float> destination(source.size());
  for (const auto& device : impl_->devices) {
    for (const gpu::Variant& variant : gpu::variants()) {
      for (std::size_t dtype = 0; dtype < kDTypeCount; ++dtype) {
        const gpu::Request request{reinterpret_cast<const std::byte*>(source.data()),
                                   reinterpret_cast<std::byte*>(destination.data()),
                                   {2, source.size() / 2, static_cast<DType>(dtype)},
                                   {}};
        gpu::run_pipeline(device->context, impl_->pool, variant, request);
      }
    }
  }
}

Plan GpuContext::plan(const Matrix& matrix, std::string_view variant) const {
  return gpu::plan_of(matrix, impl_->choose(matrix, variant));
}

Phases GpuContext::softmax(const void* source, void* destination, const Matrix& matrix, Options options,
                           std::string_view variant) {
  const gpu::Variant& chosen = impl_->choose(matrix, variant);
  if (matrix.rows == 0 || matrix.cols == 0) return {};
  const gpu::Request request{static_cast<const std::byte*>(source), static_cast<std::byte*>(destination), matrix,
                             options};
  const Impl::Load load(*impl_, matrix.rows * matrix.cols * item_size(matrix.dtype));
  gpu::DeviceContext& device = load.context();
  const auto with_circumstances = [&](const std::exception& error) {
    return std::string(error.what()) + " (" + std::string(chosen.name) + ", " + describe(matrix) + ", device " +
           std::to_string(device.device.index) + ")";
  };
  try {
    return gpu::run_pipeline(device, impl_->pool, chosen, request);
  } catch (const OutOfMemory& error) {
    throw OutOfMemory(with_circumstances(error));
  } catch (const DeviceError& error) {
    throw DeviceError(with_circumstances(error));
  }
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
