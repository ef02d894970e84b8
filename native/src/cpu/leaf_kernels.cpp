#include "cpu/leaf_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/leaf_kernels.cpp"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>

#include "cpu/leaf_math-inl.h"
#include "cpu/row_stats.h"

HWY_BEFORE_NAMESPACE();
namespace softmaxd::cpu {
namespace HWY_NAMESPACE {

constexpr float kNegativeInfinity = -std::numeric_limits<float>::infinity();

// The up to kLanes - 1 elements behind the last full step, made a full one by elements that weigh nothing.
template <class T>
struct Tail {
  typename T::Item items[kLanes];

  Tail() = default;
  HWY_INLINE Tail(const typename T::Item* x, std::size_t count) { fill(x, count); }

  HWY_INLINE void fill(const typename T::Item* x, std::size_t count) {
    static constexpr std::uint16_t kBits = std::is_same_v<T, Float16> ? 0xFC00 : 0xFF80;
    if constexpr (std::is_same_v<T, Float32>) {
      std::fill_n(items, kLanes, kNegativeInfinity);
    } else {
      std::fill_n(items, kLanes, kBits);
    }
    std::memcpy(items, x, count * sizeof(items[0]));
  }
};

// Calls step(p, i) for each kLanes elements: p points at them, i is their index.
template <class T, class Step>
HWY_INLINE void for_each_step(const typename T::Item* x, std::size_t n, Step step) {
  const std::size_t full = n & ~(kLanes - 1);
  for (std::size_t i = 0; i < full; i += kLanes) step(x + i, i);
  if (full < n) {
    const Tail<T> tail(x + full, n - full);
    step(tail.items, full);
  }
}

// As for_each_step, with a place to write to: the last step's result is copied to y as far as n goes.
template <class T, class Step>
HWY_INLINE void map_each_step(std::size_t n, typename T::Item* y, Step step) {
  const std::size_t full = n & ~(kLanes - 1);
  for (std::size_t i = 0; i < full; i += kLanes) step(i, y + i);
  if (full < n) {
    typename T::Item last[kLanes];
    step(full, last);
    std::memcpy(y + full, last, (n - full) * sizeof(last[0]));
  }
}

template <class T>
HWY_INLINE float maximum(const typename T::Item* x, std::size_t n) {
  const DF d;
  constexpr std::size_t width = hn::MaxLanes(d);
  VF partial[kVectors];
  for (std::size_t v = 0; v < kVectors; ++v) partial[v] = hn::Set(d, kNegativeInfinity);
  for_each_step<T>(x, n, [&](const typename T::Item* p, std::size_t) HWY_ATTR {
    for (std::size_t v = 0; v < kVectors; ++v) partial[v] = hn::Max(partial[v], T::load(p + v * width));
  });
  for (std::size_t v = 1; v < kVectors; ++v) partial[0] = hn::Max(partial[0], partial[v]);
  return hn::GetLane(hn::MaxOfLanes(d, partial[0]));
}

// Adds 32 partial sums up pairwise, in an order that the vector's width does not change.
HWY_INLINE float total(const VF* partial) {
  const DF d;
  constexpr std::size_t width = hn::MaxLanes(d);
  HWY_ALIGN float sums[kLanes];
  for (std::size_t v = 0; v < kVectors; ++v) hn::Store(partial[v], d, sums + v * width);
  for (std::size_t half = kLanes / 2; half >= width; half /= 2) {
    for (std::size_t i = 0; i < half; i += width) {
      hn::Store(hn::Add(hn::Load(d, sums + i), hn::Load(d, sums + i + half)), d, sums + i);
    }
  }
  for (std::size_t half = width / 2; half > 0; half /= 2) {
    for (std::size_t i = 0; i < half; ++i) sums[i] += sums[i + half];
  }
  return sums[0];
}

// Calls use(e, i, v) with the exponentials of the vector at i and its number in its step, and returns the statistics.
template <class T, class Use>
HWY_INLINE LeafStats exponentials(const typename T::Item* x, std::size_t n, Use use) {
  const DF d;
  constexpr std::size_t width = hn::MaxLanes(d);
  const float max = maximum<T>(x, n);
  // With -inf for a maximum, -inf - 0 keeps what -inf - -inf would make NaN.
  const VF subtrahend = hn::Set(d, max == kNegativeInfinity ? 0.0f : max);
  VF partial[kVectors];
  for (std::size_t v = 0; v < kVectors; ++v) partial[v] = hn::Zero(d);
  for_each_step<T>(x, n, [&](const typename T::Item* p, std::size_t i) HWY_ATTR {
    for (std::size_t v = 0; v < kVectors; ++v) {
      const VF e = exp_difference<T::kExactDifference>(T::load(p + v * width), subtrahend);
      partial[v] = hn::Add(partial[v], e);
      use(e, i + v * width);
    }
  });
  return {max, total(partial)};
}

// Asks the cache for the leaf behind this one while this one computes: without, the memory waits during the arithmetic
// (measured: 0.74 against 0.93 of a copy at 4096 x 4096). An address, not a pointer, as it may lie behind the tensor's
// end, where a prefetch does nothing.
template <class T>
class NextLeaf {
 public:
  HWY_INLINE NextLeaf(const void* x, std::size_t n)
      : address_(reinterpret_cast<std::uintptr_t>(x) + n * sizeof(typename T::Item)) {}

  HWY_INLINE void prefetch(std::size_t i) const {
    hwy::Prefetch(reinterpret_cast<const char*>(address_ + i * sizeof(typename T::Item)));
  }

 private:
  const std::uintptr_t address_;
};

template <class T>
LeafStats measure(const void* x, std::size_t n) {
  const NextLeaf<T> next(x, n);
  return exponentials<T>(static_cast<const typename T::Item*>(x), n,
                         [next](VF, std::size_t i) HWY_ATTR { next.prefetch(i); });
}

template <class T>
LeafStats exponentiate(const void* x, std::size_t n, float* e) {
  const NextLeaf<T> next(x, n);
  return exponentials<T>(static_cast<const typename T::Item*>(x), n, [next, e](VF v, std::size_t i) HWY_ATTR {
    next.prefetch(i);
    hn::StoreU(v, DF(), e + i);
  });
}

template <class T>
void scale(const float* e, std::size_t n, float factor, void* y) {
  const DF d;
  constexpr std::size_t width = hn::MaxLanes(d);
  const VF factors = hn::Set(d, factor);
  map_each_step<T>(n, static_cast<typename T::Item*>(y), [&](std::size_t i, typename T::Item* out) HWY_ATTR {
    for (std::size_t v = 0; v < kVectors; ++v) {
      T::store(hn::Mul(hn::LoadU(d, e + i + v * width), factors), out + v * width);
    }
  });
}

template <class T>
void exponentiate_scale(const void* x, std::size_t n, float max, float factor, void* y) {
  const DF d;
  constexpr std::size_t width = hn::MaxLanes(d);
  const VF subtrahend = hn::Set(d, max == kNegativeInfinity ? 0.0f : max);
  const VF factors = hn::Set(d, factor);
  const NextLeaf<T> next(x, n);
  auto* out = static_cast<typename T::Item*>(y);
  for_each_step<T>(static_cast<const typename T::Item*>(x), n, [&](const typename T::Item* p, std::size_t i) HWY_ATTR {
    typename T::Item step[kLanes];
    const bool whole = i + kLanes <= n;
    typename T::Item* to = whole ? out + i : step;
    for (std::size_t v = 0; v < kVectors; ++v) {
      next.prefetch(i + v * width);
      const VF e = exp_difference<T::kExactDifference>(T::load(p + v * width), subtrahend);
      T::store(hn::Mul(e, factors), to + v * width);
    }
    if (!whole) std::memcpy(out + i, step, (n - i) * sizeof(step[0]));
  });
}

// Rows that are computed side by side where they are short: a row's reductions are chains in which each step waits for
// the one before, and the processor has room for the chains of several. As many as there are registers for.
constexpr std::size_t kRowsTogether = hn::MaxLanes(DF()) >= 16 ? 4 : 2;
constexpr std::size_t kTogetherColumns = 512;
// Columns as they lie in a workspace.
constexpr std::size_t padded(std::size_t cols) { return (cols + kLanes - 1) & ~(kLanes - 1); }

// Calls step(r, p, i) for each kLanes elements of each of kRowsTogether rows, as for_each_step does for one.
// tails: of the rows, if their length is no multiple of kLanes.
template <class T, class Step>
HWY_INLINE void for_each_step_together(const typename T::Item* x, std::size_t cols, const Tail<T>* tails, Step step) {
  const std::size_t full = cols & ~(kLanes - 1);
  for (std::size_t i = 0; i < full; i += kLanes) {
    for (std::size_t r = 0; r < kRowsTogether; ++r) step(r, x + r * cols + i, i);
  }
  if (full == cols) return;
  for (std::size_t r = 0; r < kRowsTogether; ++r) step(r, tails[r].items, full);
}

// (kRowsTogether, cols): the same operations on each row as exponentiate() and scale(), in the same order.
template <class T>
void leaf_rows_together(const typename T::Item* x, typename T::Item* y, std::size_t cols, float* e,
                        bool zero_masked_rows) {
  const DF d;
  constexpr std::size_t width = hn::MaxLanes(d);
  Tail<T> tails[kRowsTogether];
  if (const std::size_t count = cols % kLanes; count != 0) {
    for (std::size_t r = 0; r < kRowsTogether; ++r) tails[r].fill(x + (r + 1) * cols - count, count);
  }
  VF partial[kRowsTogether][kVectors];
  for (auto& of_row : partial) std::fill_n(of_row, kVectors, hn::Set(d, kNegativeInfinity));
  for_each_step_together<T>(x, cols, tails, [&](std::size_t r, const typename T::Item* p, std::size_t) HWY_ATTR {
    for (std::size_t v = 0; v < kVectors; ++v) partial[r][v] = hn::Max(partial[r][v], T::load(p + v * width));
  });
  LeafStats stats[kRowsTogether];
  VF subtrahends[kRowsTogether];
  for (std::size_t r = 0; r < kRowsTogether; ++r) {
    for (std::size_t v = 1; v < kVectors; ++v) partial[r][0] = hn::Max(partial[r][0], partial[r][v]);
    stats[r].max = hn::GetLane(hn::MaxOfLanes(d, partial[r][0]));
    subtrahends[r] = hn::Set(d, stats[r].max == kNegativeInfinity ? 0.0f : stats[r].max);
    std::fill_n(partial[r], kVectors, hn::Zero(d));
  }
  const NextLeaf<T> next(x, kRowsTogether * cols);
  for_each_step_together<T>(x, cols, tails, [&](std::size_t r, const typename T::Item* p, std::size_t i) HWY_ATTR {
    for (std::size_t v = 0; v < kVectors; ++v) {
      next.prefetch(r * cols + i + v * width);
      const VF exponential = exp_difference<T::kExactDifference>(T::load(p + v * width), subtrahends[r]);
      partial[r][v] = hn::Add(partial[r][v], exponential);
      hn::StoreU(exponential, d, e + r * padded(cols) + i + v * width);
    }
  });
  for (std::size_t r = 0; r < kRowsTogether; ++r) {
    stats[r].sum = total(partial[r]);
    const float factor = leaf_factor(stats[r].max, combine(&stats[r], 1), zero_masked_rows);
    scale<T>(e + r * padded(cols), cols, factor, y + r * cols);
  }
}

template <class T>
void leaf_rows(const void* x, void* y, std::size_t rows, std::size_t cols, float* e, bool zero_masked_rows) {
  const auto* in = static_cast<const typename T::Item*>(x);
  auto* out = static_cast<typename T::Item*>(y);
  std::size_t row = 0;
  for (; cols <= kTogetherColumns && row + kRowsTogether <= rows; row += kRowsTogether) {
    leaf_rows_together<T>(in + row * cols, out + row * cols, cols, e, zero_masked_rows);
  }
  for (; row < rows; ++row) {
    const LeafStats leaf = exponentiate<T>(in + row * cols, cols, e);
    scale<T>(e, cols, leaf_factor(leaf.max, combine(&leaf, 1), zero_masked_rows), out + row * cols);
  }
}

void stream(void* destination, const void* source, std::size_t bytes) {
  const hn::CappedTag<std::uint8_t, 64> d;
  constexpr std::size_t width = hn::MaxLanes(d);
  auto* to = static_cast<std::uint8_t*>(destination);
  const auto* from = static_cast<const std::uint8_t*>(source);
  const std::size_t head = std::min(bytes, (0 - reinterpret_cast<std::uintptr_t>(to)) % width);
  std::memcpy(to, from, head);
  std::size_t i = head;
  for (; i + width <= bytes; i += width) hn::Stream(hn::LoadU(d, from + i), d, to + i);
  std::memcpy(to + i, from + i, bytes - i);
}

void fence() { hwy::FlushStream(); }

template <class T>
constexpr LeafKernels table_for() {
  return {sizeof(typename T::Item), measure<T>,   exponentiate<T>, scale<T>,
          exponentiate_scale<T>,    leaf_rows<T>, stream,          fence};
}

// In the order of DType.
const LeafKernels* tables() {
  static constexpr LeafKernels kTables[kDTypeCount] = {table_for<Float32>(), table_for<Float16>(),
                                                       table_for<BFloat16>()};
  return kTables;
}

}  // namespace HWY_NAMESPACE
}  // namespace softmaxd::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace softmaxd::cpu {
namespace {

HWY_EXPORT(tables);

struct Target {
  std::string name;
  const LeafKernels* tables;
};

// Resolves the tables of every instruction set at once: Highway's choice is a global, and must not change later under
// a thread that computes.
std::vector<Target> resolve_targets() {
  std::vector<Target> targets;
  for (std::int64_t supported = hwy::SupportedTargets(); supported != 0; supported &= supported - 1) {
    const std::int64_t target = supported & -supported;  // the lowest bit is the best instruction set
    if ((target & HWY_TARGETS) == 0) continue;
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    targets.push_back({hwy::TargetName(target), HWY_DYNAMIC_DISPATCH(tables)()});
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  return targets;
}

const std::vector<Target>& resolved_targets() {
  static const std::vector<Target> targets = resolve_targets();
  return targets;
}

}  // namespace

std::vector<std::string> leaf_kernel_targets() {
  std::vector<std::string> names;
  for (const Target& target : resolved_targets()) names.push_back(target.name);
  return names;
}

const LeafKernels& leaf_kernels(std::string_view target, DType dtype) {
  const auto& targets = resolved_targets();
  const auto found =
      std::find_if(targets.begin(), targets.end(), [&](const Target& candidate) { return candidate.name == target; });
  return found->tables[static_cast<std::size_t>(dtype)];
}

}  // namespace softmaxd::cpu
#endif
