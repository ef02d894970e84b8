#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "cpu/leaf_kernels.h"
#include "cpu/thread_pool.h"
#include "cpu/topology.h"
#include "cpu/variants.h"
#include "cpu/workspace_pool.h"
#include "softmaxd/cpu_context.h"
#include "softmaxd/error.h"

namespace softmaxd {
namespace {

// Up to here AVX2 is used where there is AVX-512: for 2 us of work the wide registers win 0.4 us, but on a server whose
// next work is a network stack they cost 4 us a request (bench/README.md). The bits are the same.
constexpr std::size_t kNarrowBytes = 16 * 1024;

std::string target_name(std::string_view asked) {
  const std::vector<std::string> targets = cpu::leaf_kernel_targets();
  if (asked.empty()) return targets.front();
  if (std::find(targets.begin(), targets.end(), asked) != targets.end()) return std::string(asked);
  std::string message = "the instruction set " + std::string(asked) + " cannot be had here; there are:";
  for (const std::string& target : targets) message.append(" ").append(target);
  throw Unsupported(message);
}

// The target for small work.
std::string narrow_target(const std::string& target) {
  const std::vector<std::string> targets = cpu::leaf_kernel_targets();
  const bool is_wide = target.rfind("AVX3", 0) == 0;
  return is_wide && std::find(targets.begin(), targets.end(), "AVX2") != targets.end() ? "AVX2" : target;
}

using KernelTable = std::array<const cpu::LeafKernels*, kDTypeCount>;

KernelTable kernel_table(const std::string& target) {
  KernelTable table;
  for (std::size_t i = 0; i < kDTypeCount; ++i) table[i] = &cpu::leaf_kernels(target, static_cast<DType>(i));
  return table;
}

// Half of the second-level cache for the exponentials of two rows, the other half for what flows past them.
std::size_t cached_columns() {
  const std::size_t columns = cpu::level2_cache_bytes() / 4 / sizeof(float);
  return std::clamp(columns / cpu::kLeafColumns, std::size_t{1}, cpu::kMaxCachedLeaves) * cpu::kLeafColumns;
}

Plan plan_of(const Matrix& matrix, const cpu::Variant& variant) {
  return {variant.name.data(), std::min(matrix.cols, cpu::kLeafColumns), cpu::leaf_count(matrix.cols)};
}

}  // namespace

std::vector<std::string> cpu_targets() { return cpu::leaf_kernel_targets(); }

struct CpuContext::Impl {
  Impl(std::size_t asked_threads, std::string_view asked_target)
      : target(target_name(asked_target)),
        kernels(kernel_table(target)),
        narrow_kernels(kernel_table(asked_target.empty() ? narrow_target(target) : target)),
        limits{cpu::thread_count(asked_threads), cached_columns()},
        pool(limits.threads - 1),
        workspaces(cpu::workspace_bytes(limits.cached_columns)) {}

  const cpu::Variant& choose(const Matrix& matrix, std::string_view name) const {
    if (!name.empty()) return named_variant(matrix, name);
    return *std::find_if(std::begin(cpu::kVariants), std::end(cpu::kVariants),
                         [&](const cpu::Variant& variant) { return variant.supports(matrix, limits); });
  }

  const cpu::LeafKernels& kernels_for(const Matrix& matrix) const {
    const bool is_small = matrix.rows * matrix.cols * item_size(matrix.dtype) <= kNarrowBytes;
    return *(is_small ? narrow_kernels : kernels)[static_cast<std::size_t>(matrix.dtype)];
  }

  const cpu::Variant& named_variant(const Matrix& matrix, std::string_view name) const {
    std::string names;
    for (const cpu::Variant& variant : cpu::kVariants) {
      names.append(" ").append(variant.name);
      if (variant.name != name) continue;
      if (variant.supports(matrix, limits)) return variant;
      throw InvalidArgument("the variant " + std::string(name) + " does not take " + std::to_string(matrix.rows) +
                            " x " + std::to_string(matrix.cols) + " with " + std::to_string(limits.threads) +
                            " threads");
    }
    throw InvalidArgument("there is no variant '" + std::string(name) + "'; there are:" + names);
  }

  const std::string target;
  const KernelTable kernels;
  const KernelTable narrow_kernels;
  const cpu::Limits limits;
  cpu::ThreadPool pool;
  cpu::WorkspacePool workspaces;
};

CpuContext::CpuContext(std::size_t threads, std::string_view target) : impl_(std::make_unique<Impl>(threads, target)) {}
CpuContext::~CpuContext() = default;

Plan CpuContext::plan(const Matrix& matrix, std::string_view variant) const {
  return plan_of(matrix, impl_->choose(matrix, variant));
}

void CpuContext::softmax(const void* source, void* destination, const Matrix& matrix, Options options,
                         std::string_view variant) {
  const cpu::Variant& chosen = impl_->choose(matrix, variant);
  if (matrix.rows == 0 || matrix.cols == 0) return;
  chosen.run({static_cast<const std::byte*>(source), static_cast<std::byte*>(destination), matrix, options,
              impl_->kernels_for(matrix), impl_->pool, impl_->workspaces, cpu::passes_caches(matrix)});
}

std::size_t CpuContext::threads() const { return impl_->limits.threads; }
const std::string& CpuContext::target() const { return impl_->target; }

std::vector<VariantNote> CpuContext::variants() const {
  std::vector<VariantNote> notes;
  for (const cpu::Variant& variant : cpu::kVariants)
    notes.push_back({std::string(variant.name), std::string(variant.note)});
  return notes;
}

std::vector<PoolUse> CpuContext::pools() const { return {impl_->workspaces.use()}; }

}  // namespace softmaxd
