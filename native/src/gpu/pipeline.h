// A matrix's way from the host's memory through a device and back.
#pragma once

#include <cstddef>

#include "cpu/thread_pool.h"
#include "gpu/device_context.h"
#include "gpu/variants.h"
#include "softmaxd/gpu_context.h"

namespace softmaxd::gpu {

// What is to be computed of one call; source and destination are the host's: registered with the runtime, so that the
// device moves them by itself, or pageable.
struct Request {
  const std::byte* source;
  std::byte* destination;
  Matrix matrix;  // rows and cols >= 1
  Options options;
  bool is_source_registered = false;
  bool is_destination_registered = false;
};

// How many threads, the calling one included, bring pieces on their way, and how large these are.
struct Traffic {
  std::size_t threads;
  std::size_t smallest_piece_bytes;  // where there would be too few pieces for all threads
  std::size_t piece_bytes;
};

// threads: that there are. is_direct: both sides are registered, so that no thread copies.
Traffic traffic_of(std::size_t threads, bool is_direct);

// How a matrix is cut for its way: a launch computes a block of so many rows, but the last one fewer.
struct Blocks {
  std::size_t rows;  // no more than the matrix has
  bool fit_slots;    // whether a block goes through a slot; else all threads bring one block after the other
};

// Says how `matrix` is cut.
// row_workspace_bytes: of one row, by whichever variant will compute it.
Blocks blocks_of(const Matrix& matrix, std::size_t row_workspace_bytes, const Traffic& traffic);

// Says how a matrix that is on the device already is cut: where all rows at once would take a large workspace.
Blocks blocks_on_device(const Matrix& matrix, std::size_t row_workspace_bytes);

// Computes the request; returns when all is written.
//
// A matrix whose rows fit into a piece goes in blocks of rows: each thread has two of them under way, and copies one
// between pageable and pinned memory while the device uploads, computes or downloads another. A longer row is uploaded
// piece by piece by all threads, computed, and downloaded likewise. To and from registered memory nothing is copied on
// the host: the device does it all.
//
// traffic, blocks: from traffic_of() and blocks_of(), for a workspace that is at least the variant's.
// Throws OutOfMemory or DeviceError; the device has then let go of all memory.
Phases run_pipeline(DeviceContext& device, cpu::ThreadPool& threads, const Variant& variant, const Traffic& traffic,
                    const Blocks& blocks, const Request& request);

// Computes from the device's memory to the device's memory, whose places are the same or do not overlap; returns the
// seconds that it took there when all is written.
//
// blocks: from blocks_on_device(). Throws as run_pipeline() does.
double run_on_device(DeviceContext& device, const Variant& variant, const Blocks& blocks, const std::byte* source,
                     std::byte* destination, const Matrix& matrix, const Options& options);

}  // namespace softmaxd::gpu
