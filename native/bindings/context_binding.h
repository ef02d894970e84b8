// What every context has in Python: properties, plan() and softmax() on buffers.
#pragma once

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstring>
#include <limits>
#include <string>
#include <tuple>
#include <utility>

#include "softmaxd/error.h"
#include "softmaxd/softmax.h"

namespace softmaxd::bindings {

namespace py = pybind11;

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

inline std::size_t size_of(const Matrix& matrix) {
  const std::size_t item = item_size(matrix.dtype);
  const std::size_t largest = static_cast<std::size_t>(std::numeric_limits<std::ptrdiff_t>::max()) / item;
  if (matrix.cols != 0 && matrix.rows > largest / matrix.cols) {
    throw InvalidArgument(std::to_string(matrix.rows) + " x " + std::to_string(matrix.cols) +
                          " elements are more than memory can hold");
  }
  return matrix.rows * matrix.cols * item;
}

inline void check_size(const char* name, std::size_t got, std::size_t wanted, const Matrix& matrix) {
  if (got == wanted) return;
  throw InvalidArgument(std::string(name) + " has " + std::to_string(got) + " bytes; " + std::to_string(matrix.rows) +
                        " x " + std::to_string(matrix.cols) + " elements need " + std::to_string(wanted));
}

template <class Context, auto compute>
auto softmax(Context& context, const py::object& source, const py::object& destination, std::size_t rows,
             std::size_t cols, const std::string& dtype, bool zero_masked_rows, const std::string& variant) {
  const Matrix matrix{rows, cols, dtype_from_name(dtype)};
  const Bytes in(source, 0);
  const Bytes out(destination, PyBUF_WRITABLE);
  const std::size_t bytes = size_of(matrix);
  check_size("source", in.size(), bytes, matrix);
  check_size("destination", out.size(), bytes, matrix);
  return compute(context, in.data(), out.data(), matrix, zero_masked_rows, variant);
}

// The result is computed into a bytes object that nobody else has seen yet: one allocation and no copy.
template <class Context, auto compute>
auto softmax_message(Context& context, const py::bytes& prefix, const py::object& source, std::size_t rows,
                     std::size_t cols, const std::string& dtype, bool zero_masked_rows, const std::string& variant) {
  const Matrix matrix{rows, cols, dtype_from_name(dtype)};
  const Bytes in(source, 0);
  const std::size_t bytes = size_of(matrix);
  check_size("source", in.size(), bytes, matrix);
  const std::size_t prefix_bytes = static_cast<std::size_t>(PyBytes_GET_SIZE(prefix.ptr()));
  auto message = py::reinterpret_steal<py::bytes>(
      PyBytes_FromStringAndSize(nullptr, static_cast<py::ssize_t>(prefix_bytes + bytes)));
  if (!message) throw py::error_already_set();
  char* const data = PyBytes_AS_STRING(message.ptr());
  std::memcpy(data, PyBytes_AS_STRING(prefix.ptr()), prefix_bytes);
  auto seconds = compute(context, in.data(), data + prefix_bytes, matrix, zero_masked_rows, variant);
  return std::make_tuple(std::move(message), seconds);
}

template <class Context>
py::tuple plan_tuple(const Context& context, std::size_t rows, std::size_t cols, const std::string& dtype,
                     const std::string& variant) {
  const Plan plan = context.plan({rows, cols, dtype_from_name(dtype)}, variant);
  return py::make_tuple(plan.variant, plan.tile_columns, plan.tile_count);
}

template <class Context>
py::list variants(const Context& context) {
  py::list rows;
  for (const auto& variant : context.variants()) rows.append(py::make_tuple(variant.name, variant.note));
  return rows;
}

template <class Context>
py::list pools(const Context& context) {
  py::list rows;
  for (const auto& use : context.pools()) {
    rows.append(py::make_tuple(use.name, use.used_bytes, use.reserved_bytes, use.allocations));
  }
  return rows;
}

// Adds what every context has.
// compute(context, source, destination, matrix, zero_masked_rows, variant) lets go of the GIL, computes, and returns
// what Python is told of it.
template <auto compute, class Context>
void define_context(py::class_<Context>& type) {
  type.def_property_readonly("threads", &Context::threads)
      .def_property_readonly("variants", &variants<Context>)
      .def_property_readonly("pools", &pools<Context>)
      .def("plan", &plan_tuple<Context>, py::arg("rows"), py::arg("cols"), py::arg("dtype"), py::arg("variant") = "")
      .def("softmax", &softmax<Context, compute>, py::arg("source"), py::arg("destination"), py::arg("rows"),
           py::arg("cols"), py::arg("dtype"), py::kw_only(), py::arg("zero_masked_rows") = false,
           py::arg("variant") = "")
      .def("softmax_message", &softmax_message<Context, compute>, py::arg("prefix"), py::arg("source"), py::arg("rows"),
           py::arg("cols"), py::arg("dtype"), py::kw_only(), py::arg("zero_masked_rows") = false,
           py::arg("variant") = "");
}

}  // namespace softmaxd::bindings
