// One row of a job, cut into leaves.
#pragma once

#include <algorithm>
#include <cstddef>

#include "cpu/outlet.h"
#include "cpu/row_stats.h"
#include "cpu/variants.h"

namespace softmaxd::cpu {

class RowLeaves {
 public:
  RowLeaves(const Job& job, std::size_t row)
      : job_(job), source_(job.source + row * job.row_bytes()), destination_(job.destination + row * job.row_bytes()) {}

  std::size_t count() const { return leaf_count(job_.matrix.cols); }

  LeafStats measure(std::size_t leaf, Outlet& outlet) const {
    return job_.kernels.measure(source(leaf), columns(leaf), outlet.outflow());
  }

  // exponentials: the row's, not the leaf's.
  LeafStats exponentiate(std::size_t leaf, float* exponentials, Outlet& outlet) const {
    return job_.kernels.exponentiate(source(leaf), columns(leaf), exponentials + leaf * kLeafColumns, outlet.outflow());
  }

  void write_scaled(std::size_t leaf, const float* exponentials, LeafStats stats, const RowStats& row,
                    Outlet& outlet) const {
    const float factor = leaf_factor(stats.max, row, job_.options.zero_masked_rows);
    outlet.write(destination(leaf), columns(leaf) * job_.kernels.item_size, [&](std::byte* out) {
      job_.kernels.scale(exponentials + leaf * kLeafColumns, columns(leaf), factor, out);
    });
  }

  void write_reread(std::size_t leaf, LeafStats stats, const RowStats& row, Outlet& outlet) const {
    const float factor = leaf_factor(stats.max, row, job_.options.zero_masked_rows);
    outlet.write(destination(leaf), columns(leaf) * job_.kernels.item_size, [&](std::byte* out) {
      job_.kernels.exponentiate_scale(source(leaf), columns(leaf), stats.max, factor, out, outlet.outflow());
    });
  }

  // Whether a leaf's result has room for its exponentials, and stays in a cache until they are scaled.
  bool has_room(std::size_t leaf) const {
    return !job_.stream && job_.kernels.item_size == sizeof(float) && columns(leaf) == kLeafColumns;
  }

  LeafStats exponentiate_into_result(std::size_t leaf, Outlet& outlet) const {
    return job_.kernels.exponentiate(source(leaf), kLeafColumns, result_floats(leaf), outlet.outflow());
  }

  void scale_result(std::size_t leaf, LeafStats stats, const RowStats& row) const {
    float* result = result_floats(leaf);
    job_.kernels.scale(result, kLeafColumns, leaf_factor(stats.max, row, job_.options.zero_masked_rows), result);
  }

 private:
  std::size_t leaf_bytes() const { return kLeafColumns * job_.kernels.item_size; }
  std::size_t columns(std::size_t leaf) const { return std::min(kLeafColumns, job_.matrix.cols - leaf * kLeafColumns); }
  const std::byte* source(std::size_t leaf) const { return source_ + leaf * leaf_bytes(); }

  std::byte* destination(std::size_t leaf) const { return destination_ + leaf * leaf_bytes(); }

  // At any alignment: only LeafKernels may read and write there.
  float* result_floats(std::size_t leaf) const { return reinterpret_cast<float*>(destination(leaf)); }

  const Job& job_;
  const std::byte* source_;
  std::byte* destination_;
};

}  // namespace softmaxd::cpu
