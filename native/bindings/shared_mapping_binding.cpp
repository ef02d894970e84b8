#include "shared_mapping_binding.h"

#include <memory>
#include <string>
#include <utility>

#include "softmaxd/error.h"
#include "softmaxd/shared_mapping.h"

namespace softmaxd::bindings {
namespace {

namespace py = pybind11;

// A mapping, and how many buffers Python has of it. pybind11's own buffers are not counted, so that nothing would keep
// memory that a memoryview refers to from being unmapped. The GIL guards all but the mapping's pages.
class ExportedMapping {
 public:
  ExportedMapping(int fd, std::size_t byte_size)
      : mapping_(std::make_unique<SharedMapping>(fd, byte_size)), byte_size_(byte_size) {}

  std::size_t byte_size() const { return byte_size_; }
  bool is_intact() const { return mapping_ ? mapping_->is_intact() : was_intact_; }

  void close() {
    if (buffers_ != 0) {
      throw InvalidArgument("the mapping cannot be closed while Python has buffers of it (" + std::to_string(buffers_) +
                            "): release its memoryviews first");
    }
    if (!mapping_) return;
    was_intact_ = mapping_->is_intact();
    const auto mapping = std::move(mapping_);
    const py::gil_scoped_release release;  // large mappings take a while
    mapping->close();
  }

  // The two slots of the buffer protocol.
  static int get_buffer(PyObject* object, Py_buffer* view, int flags) {
    auto& self = py::cast<ExportedMapping&>(py::handle(object));
    if (!self.mapping_) {
      view->obj = nullptr;
      PyErr_SetString(PyExc_ValueError, "the mapping is closed");
      return -1;
    }
    const int status = PyBuffer_FillInfo(view, object, self.mapping_->data(), static_cast<py::ssize_t>(self.byte_size_),
                                         /*readonly=*/0, flags);
    if (status == 0) ++self.buffers_;
    return status;
  }
  static void release_buffer(PyObject* object, Py_buffer*) {
    --py::cast<ExportedMapping&>(py::handle(object)).buffers_;
  }

 private:
  std::unique_ptr<SharedMapping> mapping_;  // null once it is closed
  const std::size_t byte_size_;
  bool was_intact_ = true;
  std::size_t buffers_ = 0;
};

void set_up_buffers(PyHeapTypeObject* type) {
  type->as_buffer.bf_getbuffer = &ExportedMapping::get_buffer;
  type->as_buffer.bf_releasebuffer = &ExportedMapping::release_buffer;
  type->ht_type.tp_as_buffer = &type->as_buffer;
}

}  // namespace

void define_shared_mapping(py::module_& m) {
  py::class_<ExportedMapping>(m, "SharedMapping", py::custom_type_setup(set_up_buffers),
                              "A file that another process shares with this one, as a writable buffer of bytes.")
      .def(py::init<int, std::size_t>(), py::arg("fd"), py::arg("byte_size"))
      .def_property_readonly("byte_size", &ExportedMapping::byte_size)
      .def_property_readonly("is_intact", &ExportedMapping::is_intact,
                             "Whether no access has met a page that the file had no more.")
      .def("close", &ExportedMapping::close, "Unmap it; raises InvalidArgument while there are buffers of it.");
}

}  // namespace softmaxd::bindings
