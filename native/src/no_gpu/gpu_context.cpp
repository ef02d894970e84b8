// What a build with SOFTMAXD_GPU=NONE has for softmaxd/gpu_context.h: no device, and the reason.
#include "softmaxd/gpu_context.h"

#include "softmaxd/error.h"

namespace softmaxd {
namespace {

[[noreturn]] void refuse() {
  throw Unsupported("softmaxd_native was built without GPU support: build it with SOFTMAXD_GPU=HIP or CUDA");
}

}  // namespace

const char* gpu_runtime() { return nullptr; }
std::vector<GpuDevice> gpu_devices() { refuse(); }
int gpu_driver_version() { refuse(); }
void check_choices(const std::vector<Choice>&) { refuse(); }

struct GpuContext::Impl {};
GpuContext::GpuContext(const GpuOptions&) { refuse(); }
GpuContext::~GpuContext() = default;
void GpuContext::warm_up() { refuse(); }
Plan GpuContext::plan(const Matrix&, std::string_view) const { refuse(); }
Phases GpuContext::softmax(const void*, void*, const Matrix&, Options, std::string_view) { refuse(); }
void GpuContext::register_memory(void*, std::size_t) { refuse(); }
void GpuContext::unregister_memory(void*, std::size_t) { refuse(); }
std::unique_ptr<DeviceMemory> GpuContext::open_device_memory(std::string_view, std::string_view, std::size_t) const {
  refuse();
}
Phases GpuContext::softmax_on_device(const DeviceMemory&, std::size_t, const DeviceMemory&, std::size_t, const Matrix&,
                                     Options, std::string_view) {
  refuse();
}
double GpuContext::time_variant(std::string_view, const Matrix&) { refuse(); }
std::vector<std::string_view> GpuContext::candidates(std::size_t) const { refuse(); }
std::size_t GpuContext::threads() const { refuse(); }
std::vector<GpuDevice> GpuContext::devices() const { refuse(); }
std::vector<VariantNote> GpuContext::variants() const { refuse(); }
std::vector<PoolUse> GpuContext::pools() const { refuse(); }

}  // namespace softmaxd
