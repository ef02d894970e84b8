// Rows cut into tiles of 1024 columns, a block a tile. Blocks cannot wait for each other across a launch, so each
// meeting is one: maxima of the tiles, of the rows, sums of the tiles, of the rows, the result.
#include "gpu/element.h"
#include "gpu/exponential.h"
#include "gpu/reduce.h"
#include "gpu/variants.h"

namespace softmaxd::gpu {
namespace {

constexpr unsigned kThreads = 256;
constexpr unsigned kItems = 4;
constexpr std::size_t kTileColumns = kThreads * kItems;
static_assert(kTileColumns == kFivePassTileColumns);

__host__ __device__ constexpr std::size_t tile_count(std::size_t cols) { return groups_of(cols, kTileColumns); }

// One tile of one row, by the block's number.
struct Tile {
  std::size_t index;  // over all rows
  std::size_t row;
  std::size_t start;  // its first element
  std::size_t cols;

  __device__ Tile(std::size_t first_tile, std::size_t row_cols)
      : index(first_tile + blockIdx.x), row(quotient(index, tile_count(row_cols))) {
    const std::size_t column = (index - row * tile_count(row_cols)) * kTileColumns;
    start = row * row_cols + column;
    cols = row_cols - column < kTileColumns ? row_cols - column : kTileColumns;
  }

  // Reads this thread's elements, all before any is used, so that they are on their way at once; -inf beyond the tile.
  template <class Element>
  __device__ void read(const typename Element::Item* x, float (&values)[kItems]) const {
#pragma unroll
    for (unsigned item = 0; item < kItems; ++item) {
      const unsigned i = threadIdx.x + item * kThreads;
      values[item] = i < cols ? Element::load(x[start + i]) : -INFINITY;
    }
  }

  // Writes what read() has read, changed.
  template <class Element>
  __device__ void write(const float (&values)[kItems], typename Element::Item* y) const {
#pragma unroll
    for (unsigned item = 0; item < kItems; ++item) {
      const unsigned i = threadIdx.x + item * kThreads;
      if (i < cols) y[start + i] = Element::store(values[item]);
    }
  }

 private:
  // A division of 64 bits takes some 70 instructions, and few matrices need it.
  __device__ static std::size_t quotient(std::size_t a, std::size_t b) {
    return (a | b) >> 32 == 0 ? static_cast<std::uint32_t>(a) / static_cast<std::uint32_t>(b) : a / b;
  }
};

template <class Element>
__global__ void __launch_bounds__(kThreads)
    tile_maxima(const typename Element::Item* x, std::size_t cols, std::size_t first_tile, float* maxima) {
  __shared__ float shared[kThreads];
  const Tile tile(first_tile, cols);
  float values[kItems];
  tile.template read<Element>(x, values);
  float max = -INFINITY;
  for (const float value : values) max = Max::join(max, value);
  max = reduce_block<Max>(max, shared);
  if (threadIdx.x == 0) maxima[tile.index] = max;
}

template <class Element>
__global__ void __launch_bounds__(kThreads) tile_sums(const typename Element::Item* x, std::size_t cols,
                                                      std::size_t first_tile, const float* row_maxima, float* sums) {
  __shared__ float shared[kThreads];
  const Tile tile(first_tile, cols);
  const Exponential exponential(row_maxima[tile.row]);
  float values[kItems];
  tile.template read<Element>(x, values);
  float sum = 0.0F;
  for (const float value : values) sum += exponential(value);
  sum = reduce_block<Sum>(sum, shared);
  if (threadIdx.x == 0) sums[tile.index] = sum;
}

// A block a row: reduces the row's tiles.
__global__ void __launch_bounds__(kThreads)
    row_maxima_of(const float* tiles, std::size_t count, std::size_t first_row, float* rows) {
  __shared__ float shared[kThreads];
  const std::size_t row = first_row + blockIdx.x;
  float max = -INFINITY;
  for (std::size_t i = threadIdx.x; i < count; i += kThreads) max = Max::join(max, tiles[row * count + i]);
  max = reduce_block<Max>(max, shared);
  if (threadIdx.x == 0) rows[row] = max;
}

__global__ void __launch_bounds__(kThreads)
    row_sums_of(const float* tiles, std::size_t count, std::size_t first_row, float* rows) {
  __shared__ float shared[kThreads];
  const std::size_t row = first_row + blockIdx.x;
  CompensatedSum sum;
  for (std::size_t i = threadIdx.x; i < count; i += kThreads) sum.add(tiles[row * count + i]);
  const float total = reduce_block<Sum>(sum.value(), shared);
  if (threadIdx.x == 0) rows[row] = total;
}

template <class Element>
__global__ void __launch_bounds__(kThreads)
    write_tiles(const typename Element::Item* x, typename Element::Item* y, std::size_t cols, std::size_t first_tile,
                const float* row_maxima, const float* row_sums, bool zero_masked_rows) {
  const Tile tile(first_tile, cols);
  const Exponential exponential(row_maxima[tile.row]);
  const float factor = factor_of(row_sums[tile.row], zero_masked_rows);
  float values[kItems];
  tile.template read<Element>(x, values);
  for (float& value : values) value = exponential(value) * factor;
  tile.template write<Element>(values, y);
}

template <class Element>
Error run(const Job& job) {
  const auto* x = static_cast<const typename Element::Item*>(job.source);
  auto* y = static_cast<typename Element::Item*>(job.destination);
  const std::size_t rows = job.matrix.rows;
  const std::size_t cols = job.matrix.cols;
  const std::size_t count = tile_count(cols);
  const std::size_t tiles = rows * count;
  float* const row_maxima = job.workspace;
  float* const row_sums = row_maxima + rows;
  float* const of_tiles = row_sums + rows;  // maxima first, then sums

  Error error = for_each_launch(tiles, [&](std::size_t first, std::size_t blocks) {
    return launch(tile_maxima<Element>, blocks, kThreads, job.stream, x, cols, first, of_tiles);
  });
  if (error != kSuccess) return error;
  error = for_each_launch(rows, [&](std::size_t first, std::size_t blocks) {
    return launch(row_maxima_of, blocks, kThreads, job.stream, of_tiles, count, first, row_maxima);
  });
  if (error != kSuccess) return error;
  error = for_each_launch(tiles, [&](std::size_t first, std::size_t blocks) {
    return launch(tile_sums<Element>, blocks, kThreads, job.stream, x, cols, first, row_maxima, of_tiles);
  });
  if (error != kSuccess) return error;
  error = for_each_launch(rows, [&](std::size_t first, std::size_t blocks) {
    return launch(row_sums_of, blocks, kThreads, job.stream, of_tiles, count, first, row_sums);
  });
  if (error != kSuccess) return error;
  return for_each_launch(tiles, [&](std::size_t first, std::size_t blocks) {
    return launch(write_tiles<Element>, blocks, kThreads, job.stream, x, y, cols, first, row_maxima, row_sums,
                  job.options.zero_masked_rows);
  });
}

}  // namespace

std::size_t five_pass_workspace_bytes(const Matrix& matrix) {
  return (2 + tile_count(matrix.cols)) * matrix.rows * sizeof(float);
}

Error run_five_pass(const Job& job) {
  return with_element(job.matrix.dtype, [&](auto element) { return run<decltype(element)>(job); });
}

}  // namespace softmaxd::gpu
