// The Python module softmaxd_native._native: checks buffers, releases the GIL, and nothing else.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <chrono>
#include <cstring>
#include <limits>
#include <string>
#include <tuple>

#include "softmaxd/cpu_context.h"
#include "softmaxd/error.h"

namespace py = pybind11;
using softmaxd::CpuContext;
using softmaxd::InvalidArgument;
using softmaxd::Matrix;
using softmaxd::Plan;

namespace {

// Below this many bytes of source, handing the GIL over costs more than the computation.
constexpr std::size_t kHoldGilBytes = 32 * 1024;

// The bytes of a contiguous buffer, held for as long as this lives.
class Bytes {
 public:
  Bytes(const py::object& object, int flags) {
    if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_SIMPLE | flags) != 0) throw py::error_already_set();
  }
  ~Bytes() { PyBuffer_Release(&view_); }
  Bytes(const Bytes&) = delete;
  Bytes& operator=(const Bytes&) = delete;

  void* data() const { return view_.buf; }
  std::size_t size() const { return static_cast<std::size_t>(view_.len); }

 private:
  Py_buffer view_;
};

std::size_t size_of(const Matrix& matrix) {
  const std::size_t item = softmaxd::item_size(matrix.dtype);
  const std::size_t largest = static_cast<std::size_t>(std::numeric_limits<std::ptrdiff_t>::max()) / item;
  if (matrix.cols != 0 && matrix.rows > largest / matrix.cols) {
    throw InvalidArgument(std::to_string(matrix.rows) + " x " + std::to_string(matrix.cols) +
                          " elements are more than memory can hold");
  }
  return matrix.rows * matrix.cols * item;
}

void check_size(const char* name, std::size_t got, std::size_t wanted, const Matrix& matrix) {
  if (got == wanted) return;
  throw InvalidArgument(std::string(name) + " has " + std::to_string(got) + " bytes; " + std::to_string(matrix.rows) +
                        " x " + std::to_string(matrix.cols) + " elements need " + std::to_string(wanted));
}

// Returns the seconds that the kernel took.
double compute(CpuContext& context, const void* source, void* destination, const Matrix& matrix, bool zero_masked_rows,
               const std::string& variant, std::size_t bytes) {
  const auto run = [&] {
    const auto start = std::chrono::steady_clock::now();
    context.softmax(source, destination, matrix, {zero_masked_rows}, variant);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  if (bytes <= kHoldGilBytes) return run();
  const py::gil_scoped_release release;
  return run();
}

double softmax(CpuContext& context, const py::object& source, const py::object& destination, std::size_t rows,
               std::size_t cols, const std::string& dtype, bool zero_masked_rows, const std::string& variant) {
  const Matrix matrix{rows, cols, softmaxd::dtype_from_name(dtype)};
  const Bytes in(source, 0);
  const Bytes out(destination, PyBUF_WRITABLE);
  const std::size_t bytes = size_of(matrix);
  check_size("source", in.size(), bytes, matrix);
  check_size("destination", out.size(), bytes, matrix);
  return compute(context, in.data(), out.data(), matrix, zero_masked_rows, variant, bytes);
}

// The result is computed into a bytes object that nobody else has seen yet: one allocation and no copy.
std::tuple<py::bytes, double> softmax_message(CpuContext& context, const py::bytes& prefix, const py::object& source,
                                              std::size_t rows, std::size_t cols, const std::string& dtype,
                                              bool zero_masked_rows, const std::string& variant) {
  const Matrix matrix{rows, cols, softmaxd::dtype_from_name(dtype)};
  const Bytes in(source, 0);
  const std::size_t bytes = size_of(matrix);
  check_size("source", in.size(), bytes, matrix);
  const std::size_t prefix_bytes = static_cast<std::size_t>(PyBytes_GET_SIZE(prefix.ptr()));
  auto message = py::reinterpret_steal<py::bytes>(
      PyBytes_FromStringAndSize(nullptr, static_cast<py::ssize_t>(prefix_bytes + bytes)));
  if (!message) throw py::error_already_set();
  char* const data = PyBytes_AS_STRING(message.ptr());
  std::memcpy(data, PyBytes_AS_STRING(prefix.ptr()), prefix_bytes);
  const double seconds = compute(context, in.data(), data + prefix_bytes, matrix, zero_masked_rows, variant, bytes);
  return {std::move(message), seconds};
}

}  // namespace

PYBIND11_MODULE(_native, m) {
  m.doc() = "The device core of softmaxd; import it as softmaxd_native.";
  py::register_exception<InvalidArgument>(m, "InvalidArgument", PyExc_ValueError);
  py::register_exception<softmaxd::Unsupported>(m, "Unsupported", PyExc_RuntimeError);

  py::class_<CpuContext>(m, "CpuContext", "Softmax on the CPU: threads, workspaces and instruction set, made once.")
      .def(py::init([](std::size_t threads, const std::string& target) {
             return std::make_unique<CpuContext>(threads, target);
           }),
           py::arg("threads") = 0, py::arg("target") = "")
      .def_property_readonly("threads", &CpuContext::threads)
      .def_property_readonly("target", &CpuContext::target)
      .def_property_readonly("variants",
                             [](const CpuContext& context) {
                               py::list rows;
                               for (const auto& v : context.variants()) rows.append(py::make_tuple(v.name, v.note));
                               return rows;
                             })
      .def_property_readonly(
          "pools",
          [](const CpuContext& context) {
            const auto use = context.workspace_use();
            py::list rows;
            rows.append(py::make_tuple(use.name, use.used_bytes, use.reserved_bytes, use.allocations));
            return rows;
          })
      .def(
          "plan",
          [](const CpuContext& context, std::size_t rows, std::size_t cols, const std::string& dtype,
             const std::string& variant) {
            const Plan plan = context.plan({rows, cols, softmaxd::dtype_from_name(dtype)}, variant);
            return py::make_tuple(plan.variant, plan.tile_columns, plan.tile_count);
          },
          py::arg("rows"), py::arg("cols"), py::arg("dtype"), py::arg("variant") = "")
      .def("softmax", &softmax, py::arg("source"), py::arg("destination"), py::arg("rows"), py::arg("cols"),
           py::arg("dtype"), py::kw_only(), py::arg("zero_masked_rows") = false, py::arg("variant") = "")
      .def("softmax_message", &softmax_message, py::arg("prefix"), py::arg("source"), py::arg("rows"), py::arg("cols"),
           py::arg("dtype"), py::kw_only(), py::arg("zero_masked_rows") = false, py::arg("variant") = "");

  m.def("targets", &softmaxd::cpu_targets, "The instruction sets that can be had here, best first.");
}
