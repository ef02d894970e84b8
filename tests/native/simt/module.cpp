// The Python module softmaxd_simt: softmaxd_native's GPU part on the simulated device. For tests.
#include <memory>

#include "gpu/device_context.h"
#include "gpu/gpu_runtime.h"
#include "gpu/runtime_error.h"
#include "gpu_binding.h"

namespace {

namespace py = pybind11;
namespace gpu = softmaxd::gpu;

// Memory on a simulated device as another process would export it; Python reads and writes it as a buffer.
class DeviceAllocation {
 public:
  DeviceAllocation(std::size_t byte_size, int device) : byte_size_(byte_size), device_(device) {
    gpu::check(gpu::set_device(device), "choosing the device");
    gpu::check(gpu::allocate_device(&data_, byte_size), "allocating");
  }
  ~DeviceAllocation() { gpu::disregard(gpu::release_device(data_)); }
  DeviceAllocation(const DeviceAllocation&) = delete;
  DeviceAllocation& operator=(const DeviceAllocation&) = delete;

  py::bytes ipc_handle() const {
    gpu::IpcHandle handle;
    gpu::check(simtIpcGetMemHandle(&handle, data_), "exporting");
    return {handle.reserved, sizeof handle.reserved};
  }
  std::string pci_bus_id() const { return gpu::pci_bus_id_of(device_); }
  py::buffer_info buffer() const { return {static_cast<unsigned char*>(data_), static_cast<py::ssize_t>(byte_size_)}; }

 private:
  void* data_ = nullptr;
  const std::size_t byte_size_;
  const int device_;
};

}  // namespace

PYBIND11_MODULE(softmaxd_simt, m) {
  softmaxd::bindings::define_errors(m);
  softmaxd::bindings::define_gpu(m);
  py::class_<DeviceAllocation>(m, "DeviceAllocation", py::buffer_protocol())
      .def(py::init<std::size_t, int>(), py::arg("byte_size"), py::arg("device") = 0)
      .def_property_readonly("ipc_handle", &DeviceAllocation::ipc_handle)
      .def_property_readonly("pci_bus_id", &DeviceAllocation::pci_bus_id)
      .def_buffer(&DeviceAllocation::buffer);
  m.def("opened_count", &simt::opened_count, "IPC handles that are open.");
  m.def(
      "bytes_moved_directly", [] { return simt::bytes_moved_directly.load(); },
      "Bytes that were copied from and to registered memory.");
}
