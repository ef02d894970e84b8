// The Python module softmaxd_native._native: checks buffers, releases the GIL, and nothing else.
#include <chrono>
#include <memory>
#include <string>

#include "context_binding.h"
#include "gpu_binding.h"
#include "shared_mapping_binding.h"
#include "softmaxd/cpu_context.h"

namespace softmaxd::bindings {
namespace {

// Below this many bytes of source, handing the GIL over costs more than the computation.
constexpr std::size_t kHoldGilBytes = 32 * 1024;

// Returns the seconds that it took.
double compute(CpuContext& context, const void* source, void* destination, const Matrix& matrix, bool zero_masked_rows,
               const std::string& variant) {
  const auto run = [&] {
    const auto start = std::chrono::steady_clock::now();
    context.softmax(source, destination, matrix, {zero_masked_rows}, variant);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  if (size_of(matrix) <= kHoldGilBytes) return run();
  const py::gil_scoped_release release;
  return run();
}

void define_cpu(py::module_& m) {
  py::class_<CpuContext> context(m, "CpuContext",
                                 "Softmax on the CPU: threads, workspaces and instruction set, made once.");
  context
      .def(py::init([](std::size_t threads, const std::string& target) {
             return std::make_unique<CpuContext>(threads, target);
           }),
           py::arg("threads") = 0, py::arg("target") = "")
      .def_property_readonly("target", &CpuContext::target);
  define_context<compute>(context);
  m.def("targets", &cpu_targets, "The instruction sets that can be had here, best first.");
}

}  // namespace
}  // namespace softmaxd::bindings

PYBIND11_MODULE(_native, m) {
  m.doc() = "The device core of softmaxd; import it as softmaxd_native.";
  softmaxd::bindings::define_errors(m);
  softmaxd::bindings::define_cpu(m);
  softmaxd::bindings::define_gpu(m);
  softmaxd::bindings::define_shared_mapping(m);
}
