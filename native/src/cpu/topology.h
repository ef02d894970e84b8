// What the machine grants this process.
#pragma once

#include <pthread.h>
#include <sched.h>

#include <cstddef>

namespace softmaxd::cpu {

// Threads that can really run at once: the affinity mask, cut to the cgroup's CPU quota (rounded up); at least 1.
std::size_t usable_threads();

// The CPUs that the calling thread may run on; empty where the system does not say.
cpu_set_t allowed_cpus();

// The CPU that the calling thread runs on; -1 where the system does not say.
int current_cpu();

// Moves a thread to the CPUs of `allowed` but `cpu`; does nothing if there is no other.
void keep_away(pthread_t thread, int cpu, cpu_set_t allowed);

// Bytes of second-level cache a core; 1 MiB where the system does not say.
std::size_t level2_cache_bytes();

}  // namespace softmaxd::cpu
