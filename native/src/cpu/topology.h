// What the machine grants this process.
#pragma once

#include <cstddef>

namespace softmaxd::cpu {

// Threads that can really run at once: the affinity mask, cut to the cgroup's CPU quota (rounded up); at least 1.
std::size_t usable_threads();

// Bytes of second-level cache a core; 1 MiB where the system does not say.
std::size_t level2_cache_bytes();

}  // namespace softmaxd::cpu
