// A row's leaves: what every variant but the plain schemes reduces a row by, so that a row's bits do not depend on
// which of them ran, on how many blocks shared the row, or on what else was computed.
//
// A leaf is 1024 columns, the work of 32 lanes. Each reads 16 bytes at a time, keeps its elements in registers, and
// makes their exponentials to the leaf's own maximum, once. What a row needs to be put together, a maximum and a sum of
// each leaf, is joined 32 at a time: leaves to groups, groups to groups of groups. The order of all additions is fixed
// by the columns alone. Lanes and leaves beyond the row hold -inf and 0, which change no bit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "gpu/element.h"
#include "gpu/exponential.h"
#include "gpu/gpu_runtime.h"
#include "gpu/reduce.h"
#include "gpu/variants.h"

namespace softmaxd::gpu {

inline constexpr unsigned kLeafLanes = 32;
// Leaves, or groups, that are joined at once.
inline constexpr std::size_t kGroupSize = 32;

__host__ __device__ constexpr std::size_t leaf_count(std::size_t cols) { return groups_of(cols, kLeafColumns); }

// Reduces over the 2, 4, ... 32 lanes whose numbers differ in the low bits alone; each of them gets the result, with
// the same bits.
template <class Operation, unsigned kLanes = kLeafLanes>
__device__ float reduce_lanes(float value) {
#pragma unroll
  for (unsigned mask = kLanes / 2; mask > 0; mask /= 2) {
    value = Operation::join(value, shuffle_xor(value, static_cast<int>(mask)));
  }
  return value;
}

// Of a leaf, of a group or of a row: the maximum, and the sum of the exponentials to it.
struct Stats {
  float max;
  float sum;
};

// For what is not there.
__device__ inline Stats no_stats() { return {-INFINITY, 0.0F}; }

// Joins the stats of 32 lanes; each of them gets the result.
__device__ inline Stats join_lanes(const Stats& own) {
  const float max = reduce_lanes<Max>(own.max);
  const float ratio = Exponential(own.max).ratio_to(Exponential(max));
  return {max, reduce_lanes<Sum>(own.sum * ratio)};
}

// Joins a row's parts, up to 32 groups of 32; every thread of the block gets the result. All of them call it.
// parts: (count), which this thread can see. of_groups: room for 32 in the block's shared memory.
__device__ inline Stats join_parts(const Stats* parts, unsigned count, Stats* of_groups) {
  // Groups of one warp whose parts are on their way at the same time: 4 on NVIDIA, 2 on AMD, for want of registers.
  constexpr unsigned kRounds = kMaxBlockThreads / 256;
  const unsigned lane = threadIdx.x % kLeafLanes;
  if (count <= kGroupSize) return join_lanes(lane < count ? parts[lane] : no_stats());
  const unsigned warps = blockDim.x / kLeafLanes;
  const auto groups = static_cast<unsigned>(groups_of(count, kGroupSize));
  // All lanes come to every round: 32 of them may be half a wave.
  for (unsigned first = 0; first < groups; first += kRounds * warps) {
    const unsigned own = first + threadIdx.x / kLeafLanes;
    Stats read[kRounds];
#pragma unroll
    for (unsigned round = 0; round < kRounds; ++round) {
      const unsigned part = (own + round * warps) * static_cast<unsigned>(kGroupSize) + lane;
      read[round] = part < count ? parts[part] : no_stats();
    }
#pragma unroll
    for (unsigned round = 0; round < kRounds; ++round) {
      if (first + round * warps >= groups) break;
      const Stats joined = join_lanes(read[round]);
      if (lane == 0 && own + round * warps < groups) of_groups[own + round * warps] = joined;
    }
  }
  __syncthreads();
  return join_lanes(lane < groups ? of_groups[lane] : no_stats());
}

// What the exponentials of a leaf are multiplied by, to be the row's softmax.
__device__ inline float leaf_factor(float leaf_max, const Stats& row, bool zero_masked_rows) {
  const float ratio = Exponential(leaf_max).ratio_to(Exponential(row.max));
  return ratio * factor_of(row.sum, zero_masked_rows);
}

// Four words of 32 bits: what is read and written at once.
struct Words {
  std::uint32_t at[4];
};

// What the caches do with what is read or written.
enum class Caching { kUsual, kOnce };

template <Caching kCaching = Caching::kUsual>
__device__ Words read_words(const void* from) {
  const uint4 bytes = kCaching == Caching::kOnce ? read_16_bytes_once(from) : *static_cast<const uint4*>(from);
  return {{bytes.x, bytes.y, bytes.z, bytes.w}};
}

template <Caching kCaching = Caching::kUsual>
__device__ void write_words(void* to, const Words& words) {
  const uint4 bytes{words.at[0], words.at[1], words.at[2], words.at[3]};
  if constexpr (kCaching == Caching::kOnce) {
    write_16_bytes_once(to, bytes);
  } else {
    write_16_bytes(to, bytes);
  }
}

// Returns the 16 bytes that begin `bytes` after the first of `low`, of which `high` is the continuation; a multiple of
// kUnit, up to 16. No index that is found while it runs: that would put the words into memory.
template <unsigned kUnit>
__device__ Words cut_words(const Words& low, const Words& high, unsigned bytes) {
  std::uint32_t words[9] = {low.at[0],  low.at[1],  low.at[2],  low.at[3], high.at[0],
                            high.at[1], high.at[2], high.at[3], 0};
#pragma unroll
  for (unsigned step = 4; step >= 1; step /= 2) {
    const bool is_moved = (bytes & step * 4) != 0;
#pragma unroll
    for (unsigned i = 0; i + step < 9; ++i) words[i] = is_moved ? words[i + step] : words[i];
  }
  if constexpr (kUnit == 2) {
    const bool is_moved = (bytes & 2) != 0;
#pragma unroll
    for (unsigned i = 0; i < 4; ++i) words[i] = is_moved ? words[i] >> 16 | words[i + 1] << 16 : words[i];
  }
  return {{words[0], words[1], words[2], words[3]}};
}

// One lane's elements of a leaf: kVectors times 16 bytes. kLanes lanes share the leaf.
template <class Element, unsigned kVectors, unsigned kLanes = kLeafLanes>
class LeafPart {
 public:
  using Item = typename Element::Item;
  static constexpr unsigned kVectorItems = 16 / sizeof(Item);

  // Reads what is there of `cols` columns. kAligned: `leaf` and `cols` are multiples of 16 bytes; what is not aligned
  // has neighbours in its vectors, and is cached as usual.
  template <bool kAligned, Caching kCaching = Caching::kUsual>
  __device__ void read(const Item* leaf, unsigned lane, unsigned cols) {
#pragma unroll
    for (unsigned vector = 0; vector < kVectors; ++vector) {
      const unsigned column = column_of(vector, lane);
      if constexpr (kAligned) {
        Words words{{Element::kNothing, Element::kNothing, Element::kNothing, Element::kNothing}};
        if (column < cols) words = read_words<kCaching>(leaf + column);
        unpack(vector, words);
      } else {
        read_unaligned(leaf, vector, column, cols);
      }
    }
  }

  // Makes exponentials of the elements; returns the leaf's maximum and their sum, to each of its lanes.
  __device__ Stats exponentiate() {
    float max = values_[0];
#pragma unroll
    for (const float value : values_) max = Max::join(max, value);
    max = reduce_lanes<Max, kLanes>(max);
    const Exponential exponential(max);
    // Four sums at a time: shorter chains of additions, and of their rounding.
    float sums[4] = {};
#pragma unroll
    for (unsigned i = 0; i < kItems; ++i) {
      values_[i] = exponential(values_[i]);
      sums[i % 4] += values_[i];
    }
    return {max, reduce_lanes<Sum, kLanes>((sums[0] + sums[1]) + (sums[2] + sums[3]))};
  }

  // Writes the exponentials times `factor`. All lanes that share the leaf come here.
  template <bool kAligned, Caching kCaching = Caching::kUsual>
  __device__ void write(Item* leaf, unsigned lane, unsigned cols, float factor) const {
    if constexpr (kAligned) {
#pragma unroll
      for (unsigned vector = 0; vector < kVectors; ++vector) {
        const unsigned column = column_of(vector, lane);
        const Words words = pack(vector, factor);
        if (column < cols) write_words<kCaching>(leaf + column, words);
      }
    } else {
      write_unaligned(leaf, lane, cols, factor);
    }
  }

 private:
  static constexpr unsigned kItems = kVectors * kVectorItems;
  static constexpr unsigned kWordItems = 4 / sizeof(Item);

  __device__ static unsigned column_of(unsigned vector, unsigned lane) {
    return (vector * kLanes + lane) * kVectorItems;
  }

  // Items from the last multiple of 16 bytes to `leaf`.
  __device__ static unsigned shift_of(const Item* leaf) {
    return static_cast<unsigned>(reinterpret_cast<std::uintptr_t>(leaf) % 16 / sizeof(Item));
  }

  __device__ void unpack(unsigned vector, const Words& words) {
#pragma unroll
    for (unsigned word = 0; word < 4; ++word) {
      float items[kWordItems];
      Element::unpack(words.at[word], items);
#pragma unroll
      for (unsigned i = 0; i < kWordItems; ++i) values_[vector * kVectorItems + word * kWordItems + i] = items[i];
    }
  }

  __device__ Words pack(unsigned vector, float factor) const {
    Words words;
#pragma unroll
    for (unsigned word = 0; word < 4; ++word) {
      float items[kWordItems];
#pragma unroll
      for (unsigned i = 0; i < kWordItems; ++i) {
        items[i] = values_[vector * kVectorItems + word * kWordItems + i] * factor;
      }
      words.at[word] = Element::pack(items);
    }
    return words;
  }

  // By the two aligned vectors that a vector lies in, if they lie in the leaf themselves; else item by item.
  __device__ void read_unaligned(const Item* leaf, unsigned vector, unsigned column, unsigned cols) {
    const unsigned shift = shift_of(leaf);
    if (column >= shift && column - shift + 2 * kVectorItems <= cols) {
      const Item* const low = leaf + column - shift;
      unpack(vector, cut_words<sizeof(Item)>(read_words(low), read_words(low + kVectorItems),
                                             shift * static_cast<unsigned>(sizeof(Item))));
      return;
    }
    const unsigned there = column < cols ? cols - column : 0;
#pragma unroll
    for (unsigned i = 0; i < kVectorItems; ++i) {
      values_[vector * kVectorItems + i] = i < there ? Element::load(leaf[column + i]) : -INFINITY;
    }
  }

  // Each lane writes an aligned vector: the end of what the lane before it has, and the beginning of its own; item by
  // item, where not all of it is the leaf's.
  __device__ void write_unaligned(Item* leaf, unsigned lane, unsigned cols, float factor) const {
    synchronize_lanes();  // in place, what is written here is another lane's, which it has read
    const unsigned shift = shift_of(leaf);
    Words before{};  // of lane 0: what the last lane had of the vector before
#pragma unroll
    for (unsigned vector = 0; vector <= kVectors; ++vector) {
      const Words own = vector < kVectors ? pack(vector, factor) : Words{};
      Words turned;
#pragma unroll
      for (unsigned i = 0; i < 4; ++i) turned.at[i] = shuffle_from(own.at[i], (lane + kLanes - 1) % kLanes, kLanes);
      Words low = turned;
#pragma unroll
      for (unsigned i = 0; i < 4; ++i) low.at[i] = lane == 0 ? before.at[i] : turned.at[i];
      before = turned;
      const Words words = cut_words<sizeof(Item)>(low, own, 16 - shift * static_cast<unsigned>(sizeof(Item)));
      const unsigned column = column_of(vector, lane);
      if (column >= shift && column - shift + kVectorItems <= cols && vector < kVectors) {
        write_words(leaf + column - shift, words);
      } else if (vector < kVectors || lane == 0) {
        write_items(leaf, column, shift, cols, words);
      }
    }
  }

  // Writes those items of a vector that begins `shift` before `column` that the leaf has.
  __device__ static void write_items(Item* leaf, unsigned column, unsigned shift, unsigned cols, const Words& words) {
#pragma unroll
    for (unsigned i = 0; i < kVectorItems; ++i) {
      const unsigned own = column + i - shift;  // beyond `cols`, too, where it is before the leaf
      if (own < cols) leaf[own] = Element::item(words.at[i / kWordItems], i % kWordItems);
    }
  }

  float values_[kItems];
};

// Where a leaf of a matrix lies.
struct LeafPlace {
  std::size_t start;  // its first element; the row's, where there is nothing of the leaf
  unsigned cols;      // what there is of it

  __device__ LeafPlace(std::size_t row, std::size_t row_cols, std::size_t leaf) {
    const std::size_t column = leaf * kLeafColumns;
    const std::size_t left = column < row_cols ? row_cols - column : 0;
    cols = static_cast<unsigned>(left < kLeafColumns ? left : kLeafColumns);
    start = row * row_cols + (left == 0 ? 0 : column);
  }
};

// A whole leaf in the registers of 32 lanes.
template <class Element>
using WholeLeaf = LeafPart<Element, kLeafColumns * sizeof(typename Element::Item) / 16 / kLeafLanes>;

// Whether all rows of a job's matrices start and end at multiples of 16 bytes.
inline bool is_aligned(const Job& job) {
  const auto addresses =
      reinterpret_cast<std::uintptr_t>(job.source) | reinterpret_cast<std::uintptr_t>(job.destination);
  return (addresses | job.matrix.cols * item_size(job.matrix.dtype)) % 16 == 0;
}

// Calls act(element, aligned) with the job's element type, and with std::true_type or std::false_type as is_aligned().
template <class Act>
Error with_element_and_alignment(const Job& job, Act act) {
  return with_element(job.matrix.dtype, [&](auto element) {
    return is_aligned(job) ? act(element, std::true_type{}) : act(element, std::false_type{});
  });
}

}  // namespace softmaxd::gpu
