// SharedMapping in Python.
#pragma once

#include <pybind11/pybind11.h>

namespace softmaxd::bindings {

void define_shared_mapping(pybind11::module_& m);

}  // namespace softmaxd::bindings
