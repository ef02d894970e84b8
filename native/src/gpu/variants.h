// The ways in which a GPU computes a matrix: one file each.
#pragma once

#include <cstddef>

#include "gpu/gpu_runtime.h"
#include "softmaxd/softmax.h"

namespace softmaxd::gpu {

// What a variant computes and with what. All pointers are the device's.
struct Job {
  const void* source;
  void* destination;  // the source itself, or no part of it
  Matrix matrix;      // rows and cols >= 1
  Options options;
  float* workspace;  // as large as the variant says
  Stream stream;
};

// Each returns once its kernels are in the stream, with the first launch's error.

// A block a row, three reads and one write: any matrix; made for rows that are short.
Error run_basic(const Job& job);

// Five kernels: the maxima of tiles, of rows, the sums of tiles, of rows, the result. Made for few long rows.
Error run_five_pass(const Job& job);
std::size_t five_pass_workspace_bytes(const Matrix& matrix);

}  // namespace softmaxd::gpu
