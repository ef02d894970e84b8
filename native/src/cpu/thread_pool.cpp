#include "cpu/thread_pool.h"

#include <algorithm>

namespace softmaxd::cpu {

ThreadPool::ThreadPool(std::size_t helpers) {
  threads_.reserve(helpers);
  for (std::size_t i = 0; i < helpers; ++i) threads_.emplace_back([this] { help(); });
}

ThreadPool::~ThreadPool() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  invited_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadPool::run(SharedWork& work, std::size_t helpers) {
  helpers = std::min(helpers, threads_.size());
  if (helpers == 0) return work.participate();

  Invitation invitation{&work, helpers, 0};
  {
    const std::lock_guard lock(mutex_);
    invitations_.push_back(&invitation);
  }
  for (std::size_t i = 0; i < helpers; ++i) invited_.notify_one();

  work.participate();

  std::unique_lock lock(mutex_);
  std::erase(invitations_, &invitation);  // nobody new may come: the work ends with this call
  left_.wait(lock, [&] { return invitation.inside == 0; });
}

void ThreadPool::help() {
  std::unique_lock lock(mutex_);
  while (true) {
    invited_.wait(lock, [this] { return stopping_ || !invitations_.empty(); });
    if (stopping_) return;
    Invitation& invitation = *invitations_.front();
    ++invitation.inside;
    if (--invitation.open == 0) invitations_.pop_front();
    lock.unlock();
    invitation.work->participate();
    lock.lock();
    if (--invitation.inside == 0) left_.notify_all();
  }
}

}  // namespace softmaxd::cpu
