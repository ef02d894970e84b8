// A matrix's way from the host's memory through a device and back.
#pragma once

#include <cstddef>

#include "cpu/thread_pool.h"
#include "gpu/device_context.h"
#include "gpu/variants.h"
#include "softmaxd/gpu_context.h"

namespace softmaxd::gpu {

// What is to be computed of one call; source and destination are the host's, pageable.
struct Request {
  const std::byte* source;
  std::byte* destination;
  Matrix matrix;  // rows and cols >= 1
  Options options;
};

// How a matrix is cut for its way: a launch computes a block of so many rows, but the last one fewer.
struct Blocks {
  std::size_t rows;  // no more than the matrix has
  bool fit_slots;    // whether a block goes through a slot; else all threads bring one block after the other
};

// Says how `matrix` is cut.
// row_workspace_bytes: of one row, by whichever variant will compute it. threads: that copy, the calling one included.
Blocks blocks_of(const Matrix& matrix, std::size_t row_workspace_bytes, std::size_t threads);

// Computes the request; returns when all is written.
//
// A matrix whose rows fit into a piece goes in blocks of rows: each thread has two of them under way, and copies one
// between pageable and pinned memory while the device uploads, computes or downloads another. A longer row is uploaded
// piece by piece by all threads, computed, and downloaded likewise.
//
// blocks: from blocks_of(), for a workspace that is at least the variant's.
// Throws OutOfMemory or DeviceError; the device has then let go of all memory.
Phases run_pipeline(DeviceContext& device, cpu::ThreadPool& threads, const Variant& variant, const Blocks& blocks,
                    const Request& request);

}  // namespace softmaxd::gpu
