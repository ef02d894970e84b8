// Runs the blocks of a launch on the CPU, one after the other or all by turns, a fibre for each thread. simt.h gives it
// a kernel's names.
//
// A wave that has its turn keeps it, through its shuffles, until it is at a barrier; in random order mostly. So waves
// drift apart as far as barriers let them, which is what shows a value that is overwritten before it was read. A block
// that runs beside others keeps its turn until all of it is at a barrier, in random order for longer; or until a thread
// pauses.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <limits>
#include <mutex>
#include <numeric>
#include <random>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "thread.h"

namespace simt {

inline constexpr std::size_t kMaxBlocksTogether = 32;
// What a block can have on an NVIDIA H200. AMD gives 64 KiB.
inline constexpr std::size_t kMaxSharedBytes = 227 * 1024;

struct Wave {
  Thread* lanes;
  unsigned size;              // less than kWaveLanes in the last wave of a small block
  Thread* turns[kWaveLanes];  // the lanes as they come to run
  unsigned pausing = 0;       // lanes; the others wait for them
};

// Where a block runs, and another one after it.
struct Slot {
  Block block;
  std::vector<unsigned char> shared;
  std::vector<Wave> waves;
  std::vector<Wave*> ready;  // those that are not at a barrier yet; none of a block that has ended
};

inline Slot slots[kMaxBlocksTogether];

// The order of blocks, waves and lanes: random where SIMT_SEED is set, else by their numbers.
class Order {
 public:
  explicit Order(unsigned launch) {
    const char* const seed = std::getenv("SIMT_SEED");
    is_random_ = seed != nullptr && *seed != '\0';
    if (is_random_) random_.seed(static_cast<unsigned>(std::strtoul(seed, nullptr, 10)) + launch);
  }

  std::size_t pick(std::size_t size) { return is_random_ ? random_() % size : 0; }
  bool ends_wave() { return is_random_ && random_() % 8 == 0; }
  bool ends_block(bool has_met) { return is_random_ ? random_() % 32 == 0 : has_met; }

  template <class Item>
  void arrange(Item* items, std::size_t size) {
    if (is_random_) std::shuffle(items, items + size, random_);
  }

 private:
  bool is_random_;
  std::mt19937 random_;
};

// Counts threads by their places, to tell of them.
class Census {
 public:
  void add(const Thread* first, unsigned size) {
    for (const Thread* thread = first; thread != first + size; ++thread) add(thread->place);
  }

  std::string text() const {
    static constexpr const char* kVerbs[] = {"have not run", "wait at a barrier", "wait at a shuffle", "pause",
                                             "have returned"};
    std::ostringstream text;
    const char* separator = "";
    for (const auto& [place, count] : counts_) {
      text << separator << count << ' ' << kVerbs[place.kind];
      if (place.line != 0) text << " (" << place.file << ':' << place.line << ')';
      separator = ", ";
    }
    return text.str();
  }

 private:
  void add(const Place& place) {
    const auto is_here = [&](const auto& count) { return count.first == place; };
    const auto found = std::find_if(counts_.begin(), counts_.end(), is_here);
    if (found == counts_.end()) {
      counts_.emplace_back(place, 1);
    } else {
      ++found->second;
    }
  }

  std::vector<std::pair<Place, unsigned>> counts_;
};

// Ends the program.
[[noreturn]] inline void abort_with(const std::string& what, const Census& census) {
  std::fprintf(stderr, "simt: %s: %s\n", what.c_str(), census.text().c_str());
  std::abort();
}

// Of these threads some wait for others that are elsewhere.
[[noreturn]] inline void abort_diverged(const std::string& whose, const Thread* first, unsigned size) {
  Census census;
  census.add(first, size);
  abort_with("block " + std::to_string(block_index.x) + ": the threads " + whose + "do not meet", census);
}

[[noreturn]] inline void abort_waiting(const std::vector<Slot*>& running) {
  Census census;
  for (const Slot* slot : running) census.add(slot->waves.front().lanes, block_size.x);
  abort_with(std::to_string(running.size()) + " blocks wait for each other for ever", census);
}

// Returns where the lanes are; those that have returned may be missing at a shuffle.
SIMT_UNWATCHED inline Place place_of(const Wave& wave) {
  const Thread* const end = wave.lanes + wave.size;
  const Thread* live = wave.lanes;
  while (live != end && live->place.kind == Place::kReturned) ++live;
  if (live == end) return wave.lanes->place;
  for (const Thread* lane = wave.lanes; lane != end; ++lane) {
    if (lane->place == live->place) continue;
    if (lane->place.kind == Place::kReturned && live->place.kind == Place::kShuffle) continue;
    abort_diverged("of wave " + std::to_string(wave.lanes->index / kWaveLanes) + ' ', wave.lanes, wave.size);
  }
  return live->place;
}

// What a lane gets from a partner that is not there is undefined on a device. Infinity spoils a maximum and a sum
// alike, where fmaxf would pass over a NaN. A partner beyond the wave gives the lane's own value (HIP,
// amd_warp_functions.h).
SIMT_UNWATCHED inline void exchange(const Wave& wave) {
  for (Thread* lane = wave.lanes; lane != wave.lanes + wave.size; ++lane) {
    if (lane->partner >= kWaveLanes) {
      lane->taken = lane->given;
    } else if (lane->partner >= wave.size || wave.lanes[lane->partner].place.kind == Place::kReturned) {
      lane->taken = std::numeric_limits<float>::infinity();
    } else {
      lane->taken = wave.lanes[lane->partner].given;
    }
  }
}

SIMT_UNWATCHED inline bool can_run(const Thread& lane, const Wave& wave) {
  return wave.pausing == 0 ? lane.place.kind != Place::kReturned : lane.place.kind == Place::kPause;
}

// Runs each lane to where it has to wait, or those that pause for as long as there are any; returns where that is.
SIMT_UNWATCHED inline Place advance(Wave& wave, Order& order) {
  order.arrange(wave.turns, wave.size);
  unsigned pausing = 0;
  for (unsigned turn = 0; turn < wave.size; ++turn) {
    Thread* const lane = wave.turns[turn];
    if (!can_run(*lane, wave)) continue;
    current = lane;
    thread_index.x = lane->index;
    lane->fibre.enter(run_thread);
    if (lane->place.kind == Place::kPause) ++pausing;
  }
  wave.pausing = pausing;
  if (pausing != 0) return {Place::kPause};
  const Place place = place_of(wave);
  if (place.kind == Place::kShuffle) exchange(wave);
  return place;
}

inline Place take_turn(Wave& wave, Order& order) {
  Place place = advance(wave, order);
  while (place.kind == Place::kShuffle && !order.ends_wave()) place = advance(wave, order);
  return place;
}

inline void make_ready(Slot& slot) {
  for (Wave& wave : slot.waves) slot.ready.push_back(&wave);
}

// Of a block all of whose waves are at a barrier or have returned.
SIMT_UNWATCHED inline void meet(Slot& slot) {
  const Place& place = slot.waves.front().lanes->place;
  for (const Wave& wave : slot.waves) {
    if (!(wave.lanes->place == place)) abort_diverged("", slot.waves.front().lanes, block_size.x);
  }
  if (place.kind == Place::kBarrier) make_ready(slot);
}

template <class Item>
void put_last(std::vector<Item>& items, typename std::vector<Item>::iterator item) {
  std::rotate(item, item + 1, items.end());
}

// Returns whether a thread came on, beyond the next look at what it waits for.
inline bool take_turn(Slot& slot, Order& order) {
  bool has_moved = false;
  bool has_met = false;
  do {
    const auto turn = slot.ready.begin() + static_cast<std::ptrdiff_t>(order.pick(slot.ready.size()));
    Wave& wave = **turn;
    const unsigned paused = wave.pausing;
    const Place place = take_turn(wave, order);
    if (place.kind == Place::kPause) {
      put_last(slot.ready, turn);
      return has_moved || wave.pausing != paused;
    }
    has_moved = true;
    if (place.kind != Place::kShuffle) slot.ready.erase(turn);
    has_met = slot.ready.empty();
    if (has_met) meet(slot);
  } while (!slot.ready.empty() && !order.ends_block(has_met));
  return has_moved;
}

// Makes it the block that runs.
SIMT_UNWATCHED inline void enter(Slot& slot) {
  block = &slot.block;
  block_index.x = block->index;
}

SIMT_UNWATCHED inline void start(Slot& slot, unsigned index) {
  slot.block.index = index;
  enter(slot);
  for (const Wave& wave : slot.waves) {
    for (Thread* lane = wave.lanes; lane != wave.lanes + wave.size; ++lane) {
      lane->place = {};
      lane->barriers = 0;
    }
  }
  make_ready(slot);
  come(0);
}

// Runs blocks that have been started to their ends.
inline void finish(std::vector<Slot*> running, Order& order) {
  // Far more than a block that can come on needs until its turn, in any order.
  constexpr std::size_t kIdleRounds = 10000;
  std::size_t idle_turns = 0;
  while (!running.empty()) {
    const auto turn = running.begin() + static_cast<std::ptrdiff_t>(order.pick(running.size()));
    Slot& slot = **turn;
    enter(slot);
    idle_turns = take_turn(slot, order) ? 0 : idle_turns + 1;
    if (idle_turns > kIdleRounds * running.size()) abort_waiting(running);
    if (slot.ready.empty()) {
      go(0);
      go(1);
      running.erase(turn);
    } else {
      put_last(running, turn);
    }
  }
}

inline std::vector<Wave> waves_of(Thread* first, unsigned size) {
  std::vector<Wave> waves((size + kWaveLanes - 1) / kWaveLanes);
  for (unsigned i = 0; i < waves.size(); ++i) {
    waves[i].lanes = first + i * kWaveLanes;
    waves[i].size = std::min(kWaveLanes, size - i * kWaveLanes);
    std::iota(waves[i].turns, waves[i].turns + waves[i].size, waves[i].lanes);
  }
  return waves;
}

inline void prepare(Slot& slot, Thread* first, unsigned size, std::size_t shared_bytes) {
  for (unsigned i = 0; i < size; ++i) first[i].index = i;
  slot.waves = waves_of(first, size);
  slot.shared = std::vector<unsigned char>(shared_bytes, 0xFF);  // no byte more, for the address sanitizer
  slot.block.shared = slot.shared.data();
}

// Returns the numbers of `blocks` blocks in the order in which they run: clusters one after the other, and in a cluster
// by their numbers.
inline std::vector<unsigned> turns_of(std::size_t blocks, std::size_t cluster_blocks, Order& order) {
  std::vector<std::size_t> clusters(blocks / cluster_blocks);
  std::iota(clusters.begin(), clusters.end(), 0U);
  order.arrange(clusters.data(), clusters.size());
  std::vector<unsigned> turns;
  for (const std::size_t cluster : clusters) {
    for (std::size_t i = 0; i < cluster_blocks; ++i) {
      turns.push_back(static_cast<unsigned>(cluster * cluster_blocks + i));
    }
  }
  return turns;
}

// Runs `blocks` blocks, in clusters of `cluster_blocks`, `together` of which are resident at once. Any host thread may
// call it: they wait for each other, which also hides from the thread sanitizer a race of one launch with another.
inline void run_resident(std::size_t blocks, std::size_t cluster_blocks, std::size_t together, unsigned size,
                         std::size_t shared_bytes, const std::function<void()>& body) {
  static std::mutex launching;
  static unsigned launches = 0;
  const std::lock_guard lock(launching);
  Order order(launches++);
  cluster_threads = static_cast<unsigned>(together) * size;
  cluster_arrivals = 0;
  const std::vector<unsigned> turns = turns_of(blocks, cluster_blocks, order);
  std::vector<Slot*> resident;
  for (std::size_t i = 0; i < together; ++i) {
    prepare(slots[i], threads + i * size, size, shared_bytes);
    resident.push_back(&slots[i]);
  }
  kernel = &body;
  block_size.x = size;
  for (auto first = turns.begin(); first != turns.end(); first += static_cast<std::ptrdiff_t>(together)) {
    for (std::size_t i = 0; i < together; ++i) start(slots[i], first[static_cast<std::ptrdiff_t>(i)]);
    finish(resident, order);
  }
}

inline bool can_launch(std::size_t blocks, unsigned size) { return blocks != 0 && size != 0 && size <= kMaxThreads; }

// Returns how many blocks of a kind are resident at once.
inline std::size_t max_blocks_together(unsigned size, std::size_t shared_bytes) {
  if (!can_launch(1, size) || shared_bytes > kMaxSharedBytes) return 0;
  return std::min<std::size_t>(kMaxBlocksTogether, kMaxThreadsTogether / size);
}

inline bool can_launch_together(std::size_t blocks, unsigned size, std::size_t shared_bytes) {
  return blocks != 0 && blocks <= max_blocks_together(size, shared_bytes);
}

// Runs every block of a launch, one after the other; 0, or 1 for a launch that no device takes.
inline int run(std::size_t blocks, unsigned size, const std::function<void()>& body) {
  if (!can_launch(blocks, size)) return 1;
  run_resident(blocks, 1, 1, size, 0, body);
  return 0;
}

// The same, all blocks at once: they may wait for each other.
inline int run_together(std::size_t blocks, unsigned size, std::size_t shared_bytes,
                        const std::function<void()>& body) {
  if (!can_launch_together(blocks, size, shared_bytes)) return 1;
  run_resident(blocks, 1, blocks, size, shared_bytes, body);
  return 0;
}

// The same, by clusters of blocks, one cluster after the other.
inline int run_clusters(std::size_t clusters, unsigned cluster_blocks, unsigned size, std::size_t shared_bytes,
                        const std::function<void()>& body) {
  if (clusters == 0 || !can_launch_together(cluster_blocks, size, shared_bytes)) return 1;
  run_resident(clusters * cluster_blocks, cluster_blocks, cluster_blocks, size, shared_bytes, body);
  return 0;
}

// What another block of the cluster has where this one has `own` in its shared memory.
SIMT_UNWATCHED inline unsigned char* shared_of_cluster(unsigned char* own, unsigned other) {
  return slots[other].shared.data() + (own - block->shared);
}

}  // namespace simt
