#include "gpu/variants.h"

namespace softmaxd::gpu {

const std::array<Variant, kVariantCount>& variants() {
  static const auto no_workspace = [](const Matrix&) { return std::size_t{0}; };
  static const std::array<Variant, kVariantCount> table{{
      {"basic", "A block a row, three reads and a write.", false, kAnyColumns, 0, no_workspace, run_basic},
      {"five_pass", "Many blocks a row in five kernels: maxima of tiles, of rows, sums of tiles, of rows, the result.",
       false, kAnyColumns, kFivePassTileColumns, five_pass_workspace_bytes, run_five_pass},
      {"warp_row", "32 lanes a row or fewer, one read and one write: short rows.", true, kLeafColumns, kLeafColumns,
       no_workspace, run_warp_row},
      {"block_row", "A block a row in registers, one read and one write: rows that a block can hold.", true,
       block_row_max_columns(), kLeafColumns, no_workspace, run_block_row},
      {"cluster_row",
       "A cluster of blocks a row, which meet once, one read and one write: long rows, on devices with clusters.", true,
       cluster_row_max_columns(), kLeafColumns, reread_row_workspace_bytes, run_cluster_row},
      {"pipelined_row",
       "Many blocks a row, which stay and read their next tile before they meet, one read and one write: many long "
       "rows.",
       true, pipelined_row_max_columns(), kLeafColumns, pipelined_row_workspace_bytes, run_pipelined_row},
      {"split_row", "Many blocks a row that meet once in one launch, mostly one read and one write: few long rows.",
       true, kAnyColumns, kLeafColumns, split_row_workspace_bytes, run_split_row},
      {"reread_row", "Many blocks a row in two kernels and more, two reads and one write: any row, on any device.",
       true, kAnyColumns, kLeafColumns, reread_row_workspace_bytes, run_reread_row},
  }};
  return table;
}

Plan plan_of(const Matrix& matrix, const Variant& variant) {
  if (variant.max_tile_columns == 0 || matrix.cols <= variant.max_tile_columns) {
    return {variant.name.data(), matrix.cols, 1};
  }
  return {variant.name.data(), variant.max_tile_columns, groups_of(matrix.cols, variant.max_tile_columns)};
}

}  // namespace softmaxd::gpu
