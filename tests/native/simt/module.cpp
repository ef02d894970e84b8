// The Python module softmaxd_simt: softmaxd_native's GPU part on the simulated device. For tests.
#include "gpu_binding.h"

PYBIND11_MODULE(softmaxd_simt, m) {
  softmaxd::bindings::define_errors(m);
  softmaxd::bindings::define_gpu(m);
}
