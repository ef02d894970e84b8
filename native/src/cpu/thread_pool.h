// A fixed set of threads that help whoever calls.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

#include "cpu/topology.h"

namespace softmaxd::cpu {

// Work that any number of threads can share.
class SharedWork {
 public:
  virtual ~SharedWork() = default;

  // Takes pieces of the work until none is left that nobody else has taken, then returns. Must not throw.
  // Called by the thread that asked and by every helper that is free, at the same time.
  virtual void participate() = 0;
};

// Returns `asked`, or for 0 what the machine grants, `most` at most. Throws InvalidArgument for more than 1024.
std::size_t thread_count(std::size_t asked, std::size_t most = SIZE_MAX);

class ThreadPool {
 public:
  // helpers: threads besides the calling ones; may be 0.
  explicit ThreadPool(std::size_t helpers);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  // Calls work.participate() here and on up to `helpers` free threads; returns when no thread is in it any more.
  // Thread-safe. Helpers that are busy with another caller's work are not waited for.
  void run(SharedWork& work, std::size_t helpers);

  std::size_t helpers() const { return helpers_.size(); }

 private:
  struct Helper {
    std::atomic<int> cpu{-1};  // where it last ran
    std::thread thread;
  };

  struct Invitation {
    SharedWork* work;
    std::size_t open;                 // helpers that may still come
    std::atomic<std::size_t> inside;  // helpers in participate() now; it changes under the mutex
  };

  void help(Helper& self);
  void keep_helpers_away(int cpu);

  std::mutex mutex_;
  std::condition_variable invited_;
  std::condition_variable left_;
  std::deque<Invitation*> invitations_;
  std::atomic<bool> has_invitations_{false};  // changes with them, under the mutex
  bool stopping_ = false;
  const cpu_set_t allowed_cpus_;
  std::vector<Helper> helpers_;
};

}  // namespace softmaxd::cpu
