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

// Elements in whole steps.
constexpr std::size_t padded(std::size_t n) { return (n + kLanes - 1) & ~(kLanes - 1); }

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

// As many chains of maxima as hide an instruction's latency: their order does not show in the result.
constexpr std::size_t kMaxVectors = std::max<std::size_t>(kVectors, 8);

template <class T>
HWY_INLINE float maximum(const typename T::Item* x, std::size_t n) {
  const DF d;
  constexpr std::size_t width = hn::MaxLanes(d);
  VF partial[kMaxVectors];
  std::fill_n(partial, kMaxVectors, hn::Set(d, kNegativeInfinity));
  std::size_t i = 0;
  if (n >= kMaxVectors * width) {
    // Values may be seen twice, and so all vectors but the first can lie in one cache line each.
    partial[0] = T::load(x);
    i = (0 - reinterpret_cast<std::uintptr_t>(x)) % kLineBytes / sizeof(*x) % width;
  }
  for (; i + kMaxVectors * width <= n; i += kMaxVectors * width) {
    for (std::size_t v = 0; v < kMaxVectors; ++v) partial[v] = hn::Max(partial[v], T::load(x + i + v * width));
  }
  for_each_step<T>(x + i, n - i, [&](const typename T::Item* p, std::size_t) HWY_ATTR {
    for (std::size_t v = 0; v < kVectors; ++v) partial[v] = hn::Max(partial[v], T::load(p + v * width));
  });
  for (std::size_t v = 1; v < kMaxVectors; ++v) partial[0] = hn::Max(partial[0], partial[v]);
  return hn::GetLane(hn::MaxOfLanes(d, partial[0]));
}

// Adds up a vector's lanes pairwise: its halves, theirs, and so on.
template <class D>
HWY_INLINE float sum_of_halves([[maybe_unused]] D d, hn::Vec<D> v) {
#if HWY_TARGET != HWY_SCALAR
  if constexpr (hn::MaxLanes(D()) > 1) {
    const hn::Half<D> half;
    return sum_of_halves(half, hn::Add(hn::LowerHalf(half, v), hn::UpperHalf(half, v)));
  }
#endif
  return hn::GetLane(v);
}

// Adds 32 partial sums up pairwise, in an order that the vector's width does not change.
HWY_INLINE float total(const VF* partial) {
  VF sums[kVectors];
  std::copy_n(partial, kVectors, sums);
  for (std::size_t half = kVectors / 2; half > 0; half /= 2) {
    for (std::size_t v = 0; v < half; ++v) sums[v] = hn::Add(sums[v], sums[v + half]);
  }
  return sum_of_halves(DF(), sums[0]);
}

// Moves the line at `offset`.
HWY_INLINE void stream_line(const Outflow& outflow, std::size_t offset) {
  const hn::CappedTag<std::uint8_t, kLineBytes> d;
  const auto* from = reinterpret_cast<const std::uint8_t*>(outflow.from) + offset;
  auto* to = reinterpret_cast<std::uint8_t*>(outflow.to) + offset;
  for (std::size_t v = 0; v < kLineBytes; v += hn::MaxLanes(d)) hn::Stream(hn::LoadU(d, from + v), d, to + v);
}

HWY_INLINE void advance(Outflow& outflow, std::size_t bytes) {
  outflow = {outflow.from + bytes, outflow.to + bytes, outflow.bytes - bytes};
}

// What the memory does while this thread computes, step by step: it brings what lies behind the (n) elements at x, and
// takes what flows out. Without, the memory waits during the arithmetic, and the arithmetic for the memory.
template <class T>
class Traffic {
 public:
  HWY_INLINE Traffic(const void* x, std::size_t n, Outflow& outflow)
      // An address, not a pointer, as it may lie behind the tensor's end, where a prefetch does nothing.
      : next_(reinterpret_cast<std::uintptr_t>(x) + n * sizeof(typename T::Item)),
        outflow_(outflow),
        leaving_(outflow) {}

  // i: a multiple of kLanes.
  HWY_INLINE void step(std::size_t i) const {
    for (std::size_t line = 0; line < kStepBytes; line += kLineBytes) {
      const std::size_t offset = i * sizeof(typename T::Item) + line;
      hwy::Prefetch(reinterpret_cast<const char*>(next_ + offset));
      if (offset + kLineBytes <= leaving_.bytes) stream_line(leaving_, offset);
    }
  }

  // n: elements, a multiple of kLanes, for which step() was called.
  HWY_INLINE void finish(std::size_t n) const {
    advance(outflow_, std::min(n * sizeof(typename T::Item), leaving_.bytes / kLineBytes * kLineBytes));
  }

 private:
  static constexpr std::size_t kStepBytes = kLanes * sizeof(typename T::Item);

  const std::uintptr_t next_;
  Outflow& outflow_;
  const Outflow leaving_;  // a copy, for registers
};

// Calls use(e, i) with the exponentials of the vector at i, and returns the statistics.
template <class T, class Use>
HWY_INLINE LeafStats exponentials(const typename T::Item* x, std::size_t n, Outflow& outflow, Use use) {
  const DF d;
  constexpr std::size_t width = hn::MaxLanes(d);
  const float max = maximum<T>(x, n);
  const VectorReference reference = vectors_of(reference_of(max));
  const Traffic<T> traffic(x, n, outflow);
  VF partial[kVectors];
  for (std::size_t v = 0; v < kVectors; ++v) partial[v] = hn::Zero(d);
  for_each_step<T>(x, n, [&](const typename T::Item* p, std::size_t i) HWY_ATTR {
    traffic.step(i);
    for (std::size_t v = 0; v < kVectors; ++v) {
      const VF e = exponential<T::kIs16Bit>(T::load(p + v * width), reference);
      partial[v] = hn::Add(partial[v], e);
      use(e, i + v * width);
    }
  });
  traffic.finish(padded(n));
  return {max, total(partial)};
}

template <class T>
LeafStats measure(const void* x, std::size_t n, Outflow& outflow) {
  return exponentials<T>(static_cast<const typename T::Item*>(x), n, outflow, [](VF, std::size_t) HWY_ATTR {});
}

template <class T>
LeafStats exponentiate(const void* x, std::size_t n, float* e, Outflow& outflow) {
  return exponentials<T>(static_cast<const typename T::Item*>(x), n, outflow,
                         [e](VF v, std::size_t i) HWY_ATTR { hn::StoreU(v, DF(), e + i); });
}

template <class T>
void scale(const float* e, std::size_t n, float factor, void* y) {
  const DF d;
  constexpr std::size_t width = hn::MaxLanes(d);
  const VF factors = hn::Set(d, factor);
  map_each_step<T>(n, static_cast<typename T::Item*>(y), [&](std::size_t i, typename T::Item* out) HWY_ATTR {
    for (std::size_t v = 0; v < kVectors; ++v) {
      T::store(probability(hn::LoadU(d, e + i + v * width), factors), out + v * width);
    }
  });
}

template <class T>
void exponentiate_scale(const void* x, std::size_t n, float max, float factor, void* y, Outflow& outflow) {
  const DF d;
  constexpr std::size_t width = hn::MaxLanes(d);
  const VectorReference reference = vectors_of(reference_of(max));
  const VF factors = hn::Set(d, factor);
  const Traffic<T> traffic(x, n, outflow);
  auto* out = static_cast<typename T::Item*>(y);
  for_each_step<T>(static_cast<const typename T::Item*>(x), n, [&](const typename T::Item* p, std::size_t i) HWY_ATTR {
    traffic.step(i);
    typename T::Item step[kLanes];
    const bool whole = i + kLanes <= n;
    typename T::Item* to = whole ? out + i : step;
    for (std::size_t v = 0; v < kVectors; ++v) {
      const VF e = exponential<T::kIs16Bit>(T::load(p + v * width), reference);
      T::store(probability(e, factors), to + v * width);
    }
    if (!whole) std::memcpy(out + i, step, (n - i) * sizeof(step[0]));
  });
  traffic.finish(padded(n));
}

// Rows that are computed side by side where they are short: a row's reductions are chains in which each step waits for
// the one before, and the processor has room for the chains of several. As many as there are registers for.
constexpr std::size_t kRowsTogether = hn::MaxLanes(DF()) >= 16 ? 4 : 2;
constexpr std::size_t kTogetherBytes = 2048;  // of a row: longer rows do not stay in the first-level cache together

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
                        bool zero_masked_rows, Outflow& outflow) {
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
  VectorReference references[kRowsTogether];
  for (std::size_t r = 0; r < kRowsTogether; ++r) {
    for (std::size_t v = 1; v < kVectors; ++v) partial[r][0] = hn::Max(partial[r][0], partial[r][v]);
    stats[r].max = hn::GetLane(hn::MaxOfLanes(d, partial[r][0]));
    references[r] = vectors_of(reference_of(stats[r].max));
    std::fill_n(partial[r], kVectors, hn::Zero(d));
  }
  const Traffic<T> traffic(x, kRowsTogether * cols, outflow);
  for_each_step_together<T>(x, cols, tails, [&](std::size_t r, const typename T::Item* p, std::size_t i) HWY_ATTR {
    traffic.step(i * kRowsTogether + r * kLanes);
    for (std::size_t v = 0; v < kVectors; ++v) {
      const VF weight = exponential<T::kIs16Bit>(T::load(p + v * width), references[r]);
      partial[r][v] = hn::Add(partial[r][v], weight);
      hn::StoreU(weight, d, e + r * padded(cols) + i + v * width);
    }
  });
  traffic.finish(kRowsTogether * padded(cols));
  for (std::size_t r = 0; r < kRowsTogether; ++r) {
    stats[r].sum = total(partial[r]);
    const float factor = leaf_factor(stats[r].max, combine(&stats[r], 1), zero_masked_rows);
    scale<T>(e + r * padded(cols), cols, factor, y + r * cols);
  }
}

template <class T>
void leaf_rows(const void* x, void* y, std::size_t rows, std::size_t cols, float* e, bool zero_masked_rows,
               Outflow& outflow) {
  const auto* in = static_cast<const typename T::Item*>(x);
  auto* out = static_cast<typename T::Item*>(y);
  std::size_t row = 0;
  for (; cols * sizeof(*in) <= kTogetherBytes && row + kRowsTogether <= rows; row += kRowsTogether) {
    leaf_rows_together<T>(in + row * cols, out + row * cols, cols, e, zero_masked_rows, outflow);
  }
  for (; row < rows; ++row) {
    const LeafStats leaf = exponentiate<T>(in + row * cols, cols, e, outflow);
    scale<T>(e, cols, leaf_factor(leaf.max, combine(&leaf, 1), zero_masked_rows), out + row * cols);
  }
}

void stream(Outflow& outflow) {
  std::size_t i = 0;
  for (; i + kLineBytes <= outflow.bytes; i += kLineBytes) stream_line(outflow, i);
  advance(outflow, i);
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
