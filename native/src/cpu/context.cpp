#include <algorithm>
#include <string>

#include "cpu/leaf_kernels.h"
#include "cpu/thread_pool.h"
#include "cpu/topology.h"
#include "cpu/variants.h"
#include "cpu/workspace_pool.h"
#include "softmaxd/cpu_context.h"
#include "softmaxd/error.h"

namespace softmaxd {
namespace {

constexpr std::size_t kMaxThreads = 1024;
constexpr std::string_view kDTypeNames[kDTypeCount] = {"float32", "float16", "bfloat16"};

std::size_t thread_count(std::size_t asked) {
  if (asked > kMaxThreads) {
    throw InvalidArgument("threads is " + std::to_string(asked) + "; at most " + std::to_string(kMaxThreads) +
                          " are allowed, and 0 takes what the machine grants");
  }
  return asked == 0 ? cpu::usable_threads() : asked;
}

std::string target_name(std::string_view asked) {
  const std::vector<std::string> targets = cpu::leaf_kernel_targets();
  if (asked.empty()) return targets.front();
  if (std::find(targets.begin(), targets.end(), asked) != targets.end()) return std::string(asked);
  std::string message = "the instruction set " + std::string(asked) + " cannot be had here; there are:";
  for (const std::string& target : targets) message += " " + target;
  throw Unsupported(message);
}

// Half of the second-level cache for the exponentials of two rows, the other half for what flows past them.
std::size_t cached_columns() {
  const std::size_t columns = cpu::level2_cache_bytes() / 4 / sizeof(float);
  return std::clamp(columns / cpu::kLeafColumns, std::size_t{1}, cpu::kMaxCachedLeaves) * cpu::kLeafColumns;
}

}  // namespace

DType dtype_from_name(std::string_view name) {
  for (std::size_t i = 0; i < kDTypeCount; ++i) {
    if (kDTypeNames[i] == name) return static_cast<DType>(i);
  }
  throw InvalidArgument("the dtype is '" + std::string(name) + "'; allowed are float32, float16, bfloat16");
}

std::vector<std::string> cpu_targets() { return cpu::leaf_kernel_targets(); }

struct CpuContext::Impl {
  Impl(std::size_t asked_threads, std::string_view asked_target)
      : target(target_name(asked_target)),
        limits{thread_count(asked_threads), cached_columns()},
        pool(limits.threads - 1),
        workspaces(cpu::workspace_bytes(limits.cached_columns)) {}

  const cpu::Variant& choose(const Matrix& matrix, std::string_view name) const {
    for (const cpu::Variant& variant : cpu::kVariants) {
      if (name.empty() ? variant.supports(matrix, limits) : variant.name == name) {
        if (name.empty() || variant.supports(matrix, limits)) return variant;
        throw InvalidArgument("variant " + std::string(name) + " does not take " + std::to_string(matrix.rows) + " x " +
                              std::to_string(matrix.cols) + " here");
      }
    }
    std::string message = "the variant is '" + std::string(name) + "'; there are:";
    for (const cpu::Variant& variant : cpu::kVariants) message += " " + std::string(variant.name);
    throw InvalidArgument(message);
  }

  const std::string target;
  const cpu::Limits limits;
  cpu::ThreadPool pool;
  cpu::WorkspacePool workspaces;
};

CpuContext::CpuContext(std::size_t threads, std::string_view target) : impl_(std::make_unique<Impl>(threads, target)) {}
CpuContext::~CpuContext() = default;

Plan CpuContext::plan(const Matrix& matrix, std::string_view variant) const {
  return {impl_->choose(matrix, variant).name.data(), std::min(matrix.cols, cpu::kLeafColumns),
          cpu::leaf_count(matrix.cols)};
}

Plan CpuContext::softmax(const void* source, void* destination, const Matrix& matrix, Options options,
                         std::string_view variant) {
  const cpu::Variant& chosen = impl_->choose(matrix, variant);
  if (matrix.rows != 0 && matrix.cols != 0) {
    chosen.run({static_cast<const std::byte*>(source), static_cast<std::byte*>(destination), matrix, options,
                cpu::leaf_kernels(impl_->target, matrix.dtype), impl_->pool, impl_->workspaces,
                cpu::passes_caches(matrix)});
  }
  return plan(matrix, variant);
}

std::size_t CpuContext::threads() const { return impl_->limits.threads; }
const std::string& CpuContext::target() const { return impl_->target; }

std::vector<VariantNote> CpuContext::variants() const {
  std::vector<VariantNote> notes;
  for (const cpu::Variant& variant : cpu::kVariants)
    notes.push_back({std::string(variant.name), std::string(variant.note)});
  return notes;
}

PoolUse CpuContext::workspace_use() const { return impl_->workspaces.use(); }

}  // namespace softmaxd
