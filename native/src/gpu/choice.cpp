#include "gpu/choice.h"

#include <algorithm>
#include <string>

#include "softmaxd/error.h"

namespace softmaxd::gpu {
namespace {

// Computes what no rule fits: it takes any matrix, and its blocks wait for nothing.
constexpr VariantIndex kFallback = kRereadRow;

// Shared memory that split_row has for a leaf at most, in its smallest blocks.
constexpr std::size_t kLeafSharedBytes = 128;

// Leaves that split_row keeps on the chip at once, at least: a multiprocessor holds one of its largest blocks, since
// their launch bounds say so, and on most devices more.
std::size_t leaves_held(const Capacity& capacity) {
  if (!capacity.promises_launches) return 0;
  const std::size_t block_leaves = block_row_max_columns() / kLeafColumns;
  return capacity.multiprocessors * std::min(block_leaves, capacity.block_shared_bytes / kLeafSharedBytes);
}

// The names of the variants of which `is_meant` holds.
template <class Predicate>
std::string names_of(Predicate is_meant) {
  std::string names;
  for (const Variant& variant : variants()) {
    if (is_meant(variant)) names.append(names.empty() ? "" : ", ").append(variant.name);
  }
  return names;
}

}  // namespace

Capacity least_of(const Capacity& a, const Capacity& b) {
  return {std::min(a.multiprocessors, b.multiprocessors), std::min(a.block_shared_bytes, b.block_shared_bytes),
          a.has_clusters && b.has_clusters, a.promises_launches && b.promises_launches};
}

std::vector<Choice> default_choices(const Capacity& capacity) {
  std::vector<Choice> choices{
      {{}, kNoLimit, kLeafColumns, "warp_row"},
      {{}, kNoLimit, block_row_max_columns(), "block_row"},
  };
  // Few rows whose leaves are all held at once: one read.
  const std::size_t held = leaves_held(capacity);
  for (std::size_t rows = 1; held / rows * kLeafColumns > block_row_max_columns(); rows *= 2) {
    choices.push_back({{}, rows, held / rows * kLeafColumns, "split_row"});
  }
  // Many of them, on devices like those that it was measured on: a multiprocessor holds one tile at least.
  if (capacity.has_clusters && capacity.promises_launches) {
    const std::size_t columns = capacity.multiprocessors * pipelined_row_tile_columns();
    choices.push_back({{}, kNoLimit, std::min(columns, pipelined_row_max_columns()), "pipelined_row"});
  }
  if (capacity.has_clusters) choices.push_back({{}, kNoLimit, cluster_row_max_columns(), "cluster_row"});
  choices.push_back({{}, kNoLimit, kNoLimit, "reread_row"});
  return choices;
}

const Variant& variant_named(std::string_view name) {
  const auto& table = variants();
  const auto found =
      std::find_if(table.begin(), table.end(), [&](const Variant& variant) { return variant.name == name; });
  if (found != table.end()) return *found;
  throw InvalidArgument("there is no variant '" + std::string(name) +
                        "'; there are: " + names_of([](const Variant&) { return true; }));
}

Choices::Choices(const std::vector<Choice>& choices) {
  for (const Choice& choice : choices) {
    const Variant& variant = variant_named(choice.variant);
    if (choice.max_rows == 0 || choice.max_cols == 0) {
      throw InvalidArgument("a rule for " + choice.variant + " has max_rows " + std::to_string(choice.max_rows) +
                            " and max_cols " + std::to_string(choice.max_cols) + "; both must be 1 or more");
    }
    rules_.push_back({choice.dtype, choice.max_rows, std::min(choice.max_cols, variant.max_columns), &variant});
  }
  rules_.push_back({{}, kNoLimit, kNoLimit, &variants()[kFallback]});
  // From one rule's last column to the next one's, the same rules fit.
  for (const Rule& rule : rules_) {
    for (std::size_t dtype = 0; dtype < kDTypeCount; ++dtype) {
      check_candidates(static_cast<DType>(dtype), rule.max_cols);
    }
  }
}

const Variant& Choices::variant_for(const Matrix& launched) const {
  return *std::find_if(rules_.begin(), rules_.end(), [&](const Rule& rule) {
            return rule.fits(launched.dtype, launched.cols) && launched.rows <= rule.max_rows;
          })->variant;
}

std::size_t Choices::row_workspace_bytes(DType dtype, std::size_t cols) const {
  std::size_t most = 0;
  for_each_candidate(dtype, cols,
                     [&](const Variant& variant) { most = std::max(most, variant.workspace_bytes({1, cols, dtype})); });
  return most;
}

template <class Act>
void Choices::for_each_candidate(DType dtype, std::size_t cols, Act act) const {
  std::size_t decided_rows = 0;
  for (const Rule& rule : rules_) {
    if (!rule.fits(dtype, cols) || rule.max_rows <= decided_rows) continue;
    act(*rule.variant);
    decided_rows = rule.max_rows;
  }
}

void Choices::check_candidates(DType dtype, std::size_t cols) const {
  const Variant* first = nullptr;
  for_each_candidate(dtype, cols, [&](const Variant& variant) {
    if (first == nullptr) first = &variant;
    if (&variant == first || (variant.is_by_leaves && first->is_by_leaves)) return;
    const std::string columns = cols == kNoLimit ? "any number of" : std::to_string(cols);
    throw InvalidArgument(
        "rows of " + std::string(name_of(dtype)) + " with " + columns + " columns would be computed by " +
        std::string(first->name) + " or by " + std::string(variant.name) +
        ", as there are few or many of them, and a row's bits would depend on its neighbours: give one of the two "
        "all " +
        "rows (no max_rows), or let rows decide between " + names_of([](const Variant& v) { return v.is_by_leaves; }) +
        " alone; what no rule fits goes to " + std::string(variants()[kFallback].name));
  });
}

}  // namespace softmaxd::gpu

namespace softmaxd {

void check_choices(const std::vector<Choice>& choices) { gpu::Choices{choices}; }

}  // namespace softmaxd
