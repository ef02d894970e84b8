// Memory that is kept: in a steady state no call allocates.
#pragma once

#include <cstddef>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "gpu/gpu_runtime.h"
#include "softmaxd/softmax.h"

namespace softmaxd::gpu {

// A pool of one kind of memory, by size class. Thread-safe.
class BufferPool {
 public:
  // How one kind of memory is had from the runtime.
  struct Source {
    Error (*allocate)(void** data, std::size_t bytes);
    Error (*release)(void* data);
  };

  // A buffer on loan; it goes back when the loan ends. The borrower sees to it that the device is done with it by then.
  class Loan {
   public:
    Loan() = default;
    Loan(BufferPool& pool, std::size_t class_bytes, void* data)
        : pool_(&pool), class_bytes_(class_bytes), data_(data) {}
    ~Loan() { end(); }
    Loan(Loan&& other) noexcept { *this = std::move(other); }
    Loan& operator=(Loan&& other) noexcept {
      std::swap(pool_, other.pool_);
      std::swap(class_bytes_, other.class_bytes_);
      std::swap(data_, other.data_);
      return *this;
    }

    std::byte* data() const { return static_cast<std::byte*>(data_); }
    void end() {
      if (data_ != nullptr) pool_->give_back(class_bytes_, std::exchange(data_, nullptr));
    }

   private:
    BufferPool* pool_ = nullptr;
    std::size_t class_bytes_ = 0;
    void* data_ = nullptr;
  };

  // name: for messages and metrics. limit_bytes: what the pool holds at most, on loan or idle.
  BufferPool(std::string name, Source source, std::size_t limit_bytes);
  // No loan may be open.
  ~BufferPool();
  BufferPool(const BufferPool&) = delete;
  BufferPool& operator=(const BufferPool&) = delete;

  // Lends a buffer of at least `bytes` >= 1. If there is no room, what is idle is given back to the runtime and it is
  // tried once more. Allocates on the calling thread's device. Throws OutOfMemory, DeviceError.
  Loan borrow(std::size_t bytes);

  // Allocates `count` idle buffers for `bytes`. Throws as borrow() does.
  void reserve(std::size_t bytes, std::size_t count);

  // Gives all idle buffers back to the runtime.
  void trim();

  PoolUse use() const;

 private:
  struct SizeClass {
    std::vector<void*> idle;
    std::size_t held = 0;  // on loan or idle
  };

  void* allocate(std::size_t bytes, SizeClass& size_class);
  bool has_room(std::size_t bytes) const { return bytes <= limit_bytes_ && reserved_bytes_ <= limit_bytes_ - bytes; }
  void release_idle();
  void give_back(std::size_t class_bytes, void* data);

  const std::string name_;
  const Source source_;
  const std::size_t limit_bytes_;
  mutable std::mutex mutex_;
  std::map<std::size_t, SizeClass> classes_;  // by the bytes of their buffers
  std::size_t used_bytes_ = 0;
  std::size_t reserved_bytes_ = 0;
  std::size_t allocations_ = 0;
};

}  // namespace softmaxd::gpu
