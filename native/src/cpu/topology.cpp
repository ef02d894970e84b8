#include "cpu/topology.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <optional>
#include <string>

namespace softmaxd::cpu {
namespace {

std::size_t affinity_threads() {
  const cpu_set_t allowed = allowed_cpus();
  const int count = CPU_COUNT(&allowed);
  return static_cast<std::size_t>(count > 0 ? count : std::max(1L, sysconf(_SC_NPROCESSORS_ONLN)));
}

template <class... Values>
bool read_values(const std::string& path, Values&... values) {
  std::ifstream file(path);
  return static_cast<bool>((file >> ... >> values));
}

// The CPUs' worth of time that the cgroup grants, from version 2's cpu.max or version 1's cpu.cfs_*_us.
std::optional<double> quota_threads() {
  std::string quota;
  double period = 0;
  if (read_values("/sys/fs/cgroup/cpu.max", quota, period)) {
    if (quota == "max" || period <= 0) return std::nullopt;
    return std::stod(quota) / period;
  }
  double microseconds = 0;
  if (read_values("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", microseconds) &&
      read_values("/sys/fs/cgroup/cpu/cpu.cfs_period_us", period) && microseconds > 0 && period > 0) {
    return microseconds / period;
  }
  return std::nullopt;
}

}  // namespace

std::size_t usable_threads() {
  const std::size_t allowed = affinity_threads();
  const std::optional<double> quota = quota_threads();
  if (!quota) return allowed;
  return std::clamp<std::size_t>(static_cast<std::size_t>(std::ceil(*quota)), 1, allowed);
}

cpu_set_t allowed_cpus() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  // It fails on machines with more CPUs than the type has room for.
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) CPU_ZERO(&allowed);
  return allowed;
}

int current_cpu() { return sched_getcpu(); }

void keep_away(pthread_t thread, int cpu, cpu_set_t allowed) {
  if (cpu < 0 || cpu >= CPU_SETSIZE || CPU_COUNT(&allowed) < 2) return;
  CPU_CLR(cpu, &allowed);
  pthread_setaffinity_np(thread, sizeof allowed, &allowed);  // a wish: work is right without it
}

std::size_t level2_cache_bytes() {
#ifdef _SC_LEVEL2_CACHE_SIZE
  const long bytes = sysconf(_SC_LEVEL2_CACHE_SIZE);
  if (bytes > 0) return static_cast<std::size_t>(bytes);
#endif
  return std::size_t{1} << 20;
}

}  // namespace softmaxd::cpu
