#include "gpu/variants.h"

namespace softmaxd::gpu {

const std::array<Variant, kVariantCount>& variants() {
  static const std::array<Variant, kVariantCount> table{{
      {"basic", "A block a row, three reads and a write: rows of up to --max-basic-columns.", 0,
       [](const Matrix&) { return std::size_t{0}; }, run_basic},
      {"five_pass",
       "Many blocks a row in five kernels: maxima of tiles, of rows, sums of tiles, of rows, the result: longer rows.",
       kFivePassTileColumns, five_pass_workspace_bytes, run_five_pass},
  }};
  return table;
}

Plan plan_of(const Matrix& matrix, const Variant& variant) {
  if (variant.max_tile_columns == 0 || matrix.cols <= variant.max_tile_columns) {
    return {variant.name.data(), matrix.cols, 1};
  }
  const std::size_t tiles = (matrix.cols + variant.max_tile_columns - 1) / variant.max_tile_columns;
  return {variant.name.data(), variant.max_tile_columns, tiles};
}

}  // namespace softmaxd::gpu
