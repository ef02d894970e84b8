#include "cpu/thread_pool.h"

#include <algorithm>
#include <chrono>
#include <string>

#include "softmaxd/error.h"

namespace softmaxd::cpu {
namespace {

constexpr std::size_t kMaxThreads = 1024;

// For so long a thread looks out before it sleeps, a caller for its helpers' last pieces, a helper for the next call: a
// piece takes 5 to 20 us, and to be woken takes 30 us and more on a virtual machine.
constexpr std::chrono::microseconds kPatience{50};

template <class Condition>
void look_out(Condition holds) {
  const auto end = std::chrono::steady_clock::now() + kPatience;
  while (!holds() && std::chrono::steady_clock::now() < end) std::this_thread::yield();
}

}  // namespace

std::size_t thread_count(std::size_t asked, std::size_t most) {
  if (asked > kMaxThreads) {
    throw InvalidArgument("threads is " + std::to_string(asked) + "; at most " + std::to_string(kMaxThreads) +
                          " are allowed, and 0 takes what the machine grants");
  }
  return asked == 0 ? std::min(most, usable_threads()) : asked;
}

ThreadPool::ThreadPool(std::size_t helpers) : allowed_cpus_(allowed_cpus()), helpers_(helpers) {
  for (Helper& helper : helpers_) helper.thread = std::thread([this, &helper] { help(helper); });
}

ThreadPool::~ThreadPool() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  invited_.notify_all();
  for (Helper& helper : helpers_) helper.thread.join();
}

void ThreadPool::run(SharedWork& work, std::size_t helpers) {
  helpers = std::min(helpers, helpers_.size());
  if (helpers == 0) return work.participate();
  keep_helpers_away(current_cpu());

  Invitation invitation{&work, helpers, 0};
  {
    const std::lock_guard lock(mutex_);
    invitations_.push_back(&invitation);
    has_invitations_ = true;
  }
  for (std::size_t i = 0; i < helpers; ++i) invited_.notify_one();

  work.participate();

  {
    const std::lock_guard lock(mutex_);
    std::erase(invitations_, &invitation);  // nobody new may come: the work ends with this call
    has_invitations_ = !invitations_.empty();
  }
  look_out([&] { return invitation.inside == 0; });
  std::unique_lock lock(mutex_);
  left_.wait(lock, [&] { return invitation.inside == 0; });
}

// The scheduler likes to wake a thread where it last ran. On the caller's CPU it would wait for the caller, who does
// all the work meanwhile, and so it stays: 1 x 1048576 then takes 610 us instead of 400, for seconds on end (2-core
// Xeon).
void ThreadPool::keep_helpers_away(int cpu) {
  for (Helper& helper : helpers_) {
    if (helper.cpu.load(std::memory_order_relaxed) == cpu) {
      keep_away(helper.thread.native_handle(), cpu, allowed_cpus_);
    }
  }
}

void ThreadPool::help(Helper& self) {
  std::unique_lock lock(mutex_);
  while (true) {
    invited_.wait(lock, [this] { return stopping_ || !invitations_.empty(); });
    if (stopping_) return;
    Invitation& invitation = *invitations_.front();
    ++invitation.inside;
    if (--invitation.open == 0) invitations_.pop_front();
    has_invitations_ = !invitations_.empty();
    lock.unlock();
    invitation.work->participate();
    self.cpu.store(current_cpu(), std::memory_order_relaxed);
    lock.lock();
    if (--invitation.inside == 0) left_.notify_all();
    lock.unlock();
    look_out([this] { return has_invitations_.load(); });
    lock.lock();
  }
}

}  // namespace softmaxd::cpu
