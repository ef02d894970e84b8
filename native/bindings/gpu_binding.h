// GpuContext, gpu_devices() and gpu_runtime in Python.
#pragma once

#include <pybind11/pybind11.h>

namespace softmaxd::bindings {

// Adds the errors and all about GPUs to a module.
void define_errors(pybind11::module_& m);
void define_gpu(pybind11::module_& m);

}  // namespace softmaxd::bindings
