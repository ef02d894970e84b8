// A fixed number of things that threads borrow one at a time.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

namespace softmaxd::gpu {

template <class Thing>
class Shelf {
 public:
  // A thing on loan; it goes back when the loan ends.
  class Loan {
   public:
    explicit Loan(Shelf& shelf) : shelf_(shelf), thing_(shelf.take()) {}
    ~Loan() { shelf_.put_back(thing_); }
    Loan(const Loan&) = delete;
    Loan& operator=(const Loan&) = delete;

    Thing& operator*() const { return *thing_; }
    Thing* operator->() const { return thing_; }

   private:
    Shelf& shelf_;
    Thing* thing_;
  };

  // Makes `count` >= 1 things; throws what their constructor throws.
  explicit Shelf(std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) things_.push_back(std::make_unique<Thing>());
    for (const auto& thing : things_) idle_.push_back(thing.get());
  }

  // Waits until one is there. A thread that holds one must not borrow another one.
  Loan borrow() { return Loan(*this); }

 private:
  // The one that was used last: what it keeps is warm in the caches.
  Thing* take() {
    std::unique_lock lock(mutex_);
    returned_.wait(lock, [this] { return !idle_.empty(); });
    Thing* const thing = idle_.back();
    idle_.pop_back();
    return thing;
  }

  void put_back(Thing* thing) {
    {
      const std::lock_guard lock(mutex_);
      idle_.push_back(thing);
    }
    returned_.notify_one();
  }

  std::mutex mutex_;
  std::condition_variable returned_;
  std::vector<std::unique_ptr<Thing>> things_;
  std::vector<Thing*> idle_;
};

}  // namespace softmaxd::gpu
