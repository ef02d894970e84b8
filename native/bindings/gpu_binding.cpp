#include "gpu_binding.h"

#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "context_binding.h"
#include "softmaxd/error.h"
#include "softmaxd/gpu_context.h"

namespace softmaxd::bindings {
namespace {

// Returns the seconds of upload, kernel and download.
std::tuple<double, double, double> compute(GpuContext& context, const void* source, void* destination,
                                           const Matrix& matrix, bool zero_masked_rows, const std::string& variant) {
  const py::gil_scoped_release release;
  const auto phases = context.softmax(source, destination, matrix, {zero_masked_rows}, variant);
  return {phases.upload_seconds, phases.kernel_seconds, phases.download_seconds};
}

py::list device_rows(const std::vector<GpuDevice>& devices) {
  py::list rows;
  for (const auto& device : devices) rows.append(py::make_tuple(device.index, device.name, device.multiprocessors));
  return rows;
}

// dtype, max_rows, max_cols, variant; None is each type, or no limit.
using ChoiceRow =
    std::tuple<std::optional<std::string>, std::optional<std::size_t>, std::optional<std::size_t>, std::string>;

std::vector<Choice> choices_of(const std::vector<ChoiceRow>& rows) {
  std::vector<Choice> choices;
  for (const auto& [dtype, max_rows, max_cols, variant] : rows) {
    choices.push_back({dtype ? std::optional(dtype_from_name(*dtype)) : std::nullopt, max_rows.value_or(kNoLimit),
                       max_cols.value_or(kNoLimit), variant});
  }
  return choices;
}

double time_variant(GpuContext& context, const std::string& variant, std::size_t rows, std::size_t cols,
                    const std::string& dtype) {
  const Matrix matrix{rows, cols, dtype_from_name(dtype)};
  static_cast<void>(size_of(matrix));
  const py::gil_scoped_release release;
  return context.time_variant(variant, matrix);
}

void register_memory(GpuContext& context, const py::object& buffer) {
  const Bytes memory(buffer, PyBUF_WRITABLE);
  const py::gil_scoped_release release;
  context.register_memory(memory.data(), memory.size());
}

void unregister_memory(GpuContext& context, const py::object& buffer) {
  const Bytes memory(buffer, PyBUF_WRITABLE);
  const py::gil_scoped_release release;
  context.unregister_memory(memory.data(), memory.size());
}

std::unique_ptr<DeviceMemory> open_device_memory(const GpuContext& context, const py::bytes& ipc_handle,
                                                 const std::string& pci_bus_id, std::size_t byte_size) {
  const std::string_view handle = ipc_handle;
  const py::gil_scoped_release release;
  return context.open_device_memory(handle, pci_bus_id, byte_size);
}

// Returns the seconds of upload, kernel and download.
std::tuple<double, double, double> compute_on_device(GpuContext& context, const DeviceMemory& source,
                                                     std::size_t source_offset, const DeviceMemory& destination,
                                                     std::size_t destination_offset, std::size_t rows, std::size_t cols,
                                                     const std::string& dtype, bool zero_masked_rows,
                                                     const std::string& variant) {
  const Matrix matrix{rows, cols, dtype_from_name(dtype)};
  static_cast<void>(size_of(matrix));
  const py::gil_scoped_release release;
  const auto phases = context.softmax_on_device(source, source_offset, destination, destination_offset, matrix,
                                                {zero_masked_rows}, variant);
  return {phases.upload_seconds, phases.kernel_seconds, phases.download_seconds};
}

}  // namespace

void define_errors(py::module_& m) {
  // Local: tests load a second module with these classes beside this one.
  py::register_local_exception<InvalidArgument>(m, "InvalidArgument", PyExc_ValueError);
  py::register_local_exception<Unsupported>(m, "Unsupported", PyExc_RuntimeError);
  py::register_local_exception<DeviceError>(m, "DeviceError", PyExc_RuntimeError);
}

void define_gpu(py::module_& m) {
  py::class_<DeviceMemory>(m, "DeviceMemory", py::module_local(),
                           "Memory on a device that another process has allocated and lends.")
      .def_property_readonly("byte_size", &DeviceMemory::byte_size)
      .def("close", &DeviceMemory::close, py::call_guard<py::gil_scoped_release>(),
           "Let go of it; calls that compute on it end first.");
  py::class_<GpuContext> context(m, "GpuContext", py::module_local(), "Softmax on GPUs: streams and pools, made once.");
  context
      .def(py::init([](const std::vector<int>& devices, const std::vector<ChoiceRow>& choices, std::size_t threads,
                       std::size_t device_pool_bytes) {
             const py::gil_scoped_release release;
             return std::make_unique<GpuContext>(GpuOptions{devices, choices_of(choices), threads, device_pool_bytes});
           }),
           py::kw_only(), py::arg("devices"), py::arg("choices") = std::vector<ChoiceRow>(), py::arg("threads") = 0,
           py::arg("device_pool_bytes") = 0)
      .def("register_memory", &register_memory, py::arg("buffer"))
      .def("unregister_memory", &unregister_memory, py::arg("buffer"))
      .def("open_device_memory", &open_device_memory, py::arg("ipc_handle"), py::arg("pci_bus_id"),
           py::arg("byte_size"))
      .def("softmax_on_device", &compute_on_device, py::arg("source"), py::arg("source_offset"), py::arg("destination"),
           py::arg("destination_offset"), py::arg("rows"), py::arg("cols"), py::arg("dtype"), py::kw_only(),
           py::arg("zero_masked_rows") = false, py::arg("variant") = "")
      .def("time_variant", &time_variant, py::arg("variant"), py::arg("rows"), py::arg("cols"), py::arg("dtype"))
      .def("candidates", &GpuContext::candidates, py::arg("cols"))
      .def("warm_up", &GpuContext::warm_up, py::call_guard<py::gil_scoped_release>())
      .def_property_readonly("devices", [](const GpuContext& self) { return device_rows(self.devices()); });
  define_context<compute>(context);
  m.def(
      "gpu_devices", [] { return device_rows(gpu_devices()); },
      "The GPUs that can be had: index, name, multiprocessors.");
  m.def("gpu_driver_version", &gpu_driver_version, "The driver's version, as the runtime counts it.");
  m.def(
      "check_choices", [](const std::vector<ChoiceRow>& choices) { check_choices(choices_of(choices)); },
      py::arg("choices"), "Raises InvalidArgument for rules that GpuContext would not take.");
  m.attr("gpu_runtime") = gpu_runtime();
}

}  // namespace softmaxd::bindings
