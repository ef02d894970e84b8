// Runs the blocks of a launch on the CPU, wave after wave, a fibre for each thread. simt.h gives it a kernel's names.
//
// A wave that has its turn keeps it, through its shuffles, until it is at a barrier; in random order mostly. So waves
// drift apart as far as barriers let them, which is what shows a value that is overwritten before it was read.
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

struct Wave {
  Thread* lanes;
  unsigned size;              // less than kWaveLanes in the last wave of a small block
  Thread* turns[kWaveLanes];  // the lanes as they come to run
};

// The order of blocks, waves and lanes: random where SIMT_SEED is set, else by their numbers.
class Order {
 public:
  explicit Order(unsigned launch) {
    const char* const seed = std::getenv("SIMT_SEED");
    is_random_ = seed != nullptr && *seed != '\0';
    if (is_random_) random_.seed(static_cast<unsigned>(std::strtoul(seed, nullptr, 10)) + launch);
  }

  std::size_t pick(std::size_t size) { return is_random_ ? random_() % size : 0; }
  bool ends_turn() { return is_random_ && random_() % 8 == 0; }

  template <class Item>
  void arrange(Item* items, std::size_t size) {
    if (is_random_) std::shuffle(items, items + size, random_);
  }

 private:
  bool is_random_;
  std::mt19937 random_;
};

// Ends the program: of these threads some wait for others that are elsewhere.
[[noreturn]] inline void abort_diverged(const std::string& whose, const Thread* first, unsigned size) {
  static constexpr const char* kVerbs[] = {"have not run", "wait at a barrier", "wait at a shuffle", "have returned"};
  std::vector<std::pair<Place, unsigned>> counts;
  for (const Thread* thread = first; thread != first + size; ++thread) {
    const auto is_here = [&](const auto& count) { return count.first == thread->place; };
    const auto found = std::find_if(counts.begin(), counts.end(), is_here);
    if (found == counts.end()) {
      counts.emplace_back(thread->place, 1);
    } else {
      ++found->second;
    }
  }
  std::ostringstream message;
  message << "simt: block " << block_index.x << ": the threads " << whose << "do not meet:";
  const char* separator = " ";
  for (const auto& [place, count] : counts) {
    message << separator << count << ' ' << kVerbs[place.kind];
    if (place.line != 0) message << " (" << place.file << ':' << place.line << ')';
    separator = ", ";
  }
  message << '\n';
  std::fputs(message.str().c_str(), stderr);
  std::abort();
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
    std::ostringstream whose;
    whose << "of wave " << (wave.lanes - threads) / kWaveLanes << ' ';
    abort_diverged(whose.str(), wave.lanes, wave.size);
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

// Runs each lane to where it has to wait; returns where that is.
SIMT_UNWATCHED inline Place advance(Wave& wave, Order& order) {
  order.arrange(wave.turns, wave.size);
  for (unsigned turn = 0; turn < wave.size; ++turn) {
    Thread* const lane = wave.turns[turn];
    if (lane->place.kind == Place::kReturned) continue;
    current = lane;
    thread_index.x = static_cast<unsigned>(lane - threads);
    lane->fibre.enter(run_thread);
  }
  const Place place = place_of(wave);
  if (place.kind == Place::kShuffle) exchange(wave);
  return place;
}

// Runs each wave to its next barrier or its end.
inline void advance_to_barrier(std::vector<Wave>& waves, Order& order) {
  std::vector<Wave*> ready;
  for (Wave& wave : waves) ready.push_back(&wave);
  while (!ready.empty()) {
    const auto turn = ready.begin() + static_cast<std::ptrdiff_t>(order.pick(ready.size()));
    Place place = advance(**turn, order);
    while (place.kind == Place::kShuffle && !order.ends_turn()) place = advance(**turn, order);
    if (place.kind != Place::kShuffle) ready.erase(turn);
  }
}

SIMT_UNWATCHED inline void run_block(std::vector<Wave>& waves, Order& order) {
  for (Thread* thread = threads; thread != threads + block_size.x; ++thread) {
    thread->place = {};
    thread->barriers = 0;
  }
  come(0);
  do {
    advance_to_barrier(waves, order);
    for (const Wave& wave : waves) {
      if (!(wave.lanes->place == threads->place)) abort_diverged("", threads, block_size.x);
    }
  } while (threads->place.kind == Place::kBarrier);
  go(0);
  go(1);
}

inline std::vector<Wave> waves_of(unsigned size) {
  std::vector<Wave> waves((size + kWaveLanes - 1) / kWaveLanes);
  for (unsigned i = 0; i < waves.size(); ++i) {
    waves[i].lanes = threads + i * kWaveLanes;
    waves[i].size = std::min(kWaveLanes, size - i * kWaveLanes);
    std::iota(waves[i].turns, waves[i].turns + waves[i].size, waves[i].lanes);
  }
  return waves;
}

// Runs every block of a launch; 0, or 1 for a launch that no device takes. Any host thread may call it: they wait for
// each other, which also hides from the thread sanitizer a race of one launch with another.
inline int run(std::size_t blocks, unsigned size, const std::function<void()>& body) {
  if (blocks == 0 || size == 0 || size > kMaxThreads) return 1;
  static std::mutex launching;
  static unsigned launches = 0;
  const std::lock_guard lock(launching);
  Order order(launches++);
  std::vector<Wave> waves = waves_of(size);
  std::vector<unsigned> turns(blocks);
  std::iota(turns.begin(), turns.end(), 0U);
  order.arrange(turns.data(), turns.size());
  kernel = &body;
  block_size.x = size;
  for (const unsigned block : turns) {
    block_index.x = block;
    run_block(waves, order);
  }
  return 0;
}

}  // namespace simt
