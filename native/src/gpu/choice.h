// The choice of a variant by rules, of which the first that fits a matrix decides.
//
// A row's bits must not depend on how many rows are computed with it. So the type and the columns alone decide where
// variants give other bits; the number of rows decides only between those that reduce a row by leaves.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "gpu/variants.h"
#include "softmaxd/gpu_context.h"

namespace softmaxd::gpu {

// What a device can hold, as far as the built-in rules follow from it.
struct Capacity {
  std::size_t multiprocessors;     // compute units on AMD
  std::size_t block_shared_bytes;  // shared memory, or LDS, that a block can have
  bool has_clusters;               // of blocks that see each other's shared memory
  bool promises_launches;          // whether all blocks of a launch are held at once on demand, so that they may wait
};

// What each of two devices can hold.
Capacity least_of(const Capacity& a, const Capacity& b);

// The rules of a device for which there is no tuning table.
std::vector<Choice> default_choices(const Capacity& capacity);

// Returns the variant called `name`. Throws InvalidArgument where there is none.
const Variant& variant_named(std::string_view name);

class Choices {
 public:
  // Throws InvalidArgument as check_choices() says.
  explicit Choices(const std::vector<Choice>& choices);

  // Returns what computes a launch.
  const Variant& variant_for(const Matrix& launched) const;

  // Returns the most bytes of workspace that one row takes, by whichever variant the number of rows decides for.
  std::size_t row_workspace_bytes(DType dtype, std::size_t cols) const;

 private:
  struct Rule {
    std::optional<DType> dtype;
    std::size_t max_rows;
    std::size_t max_cols;  // of which the variant takes as many
    const Variant* variant;

    bool fits(DType other, std::size_t cols) const { return (!dtype || *dtype == other) && cols <= max_cols; }
  };

  // Calls act(variant) with each variant that some number of rows of this kind gets.
  template <class Act>
  void for_each_candidate(DType dtype, std::size_t cols, Act act) const;
  void check_candidates(DType dtype, std::size_t cols) const;

  std::vector<Rule> rules_;  // the last one fits every matrix
};

}  // namespace softmaxd::gpu
