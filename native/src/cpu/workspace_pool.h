// Scratch memory that is kept: in a steady state no call allocates.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

#include "softmaxd/cpu_context.h"

namespace softmaxd::cpu {

class WorkspacePool {
 public:
  struct Free {
    void operator()(std::byte* memory) const;
  };
  using Memory = std::unique_ptr<std::byte, Free>;

  // A workspace on loan; it goes back when the loan ends.
  class Loan {
   public:
    Loan(WorkspacePool& pool, Memory memory) : pool_(pool), memory_(std::move(memory)) {}
    ~Loan() { pool_.give_back(std::move(memory_)); }
    Loan(const Loan&) = delete;
    Loan& operator=(const Loan&) = delete;

    std::byte* data() const { return memory_.get(); }

   private:
    WorkspacePool& pool_;
    Memory memory_;
  };

  // bytes: the size of each workspace; aligned to 64 bytes.
  explicit WorkspacePool(std::size_t bytes) : bytes_(bytes) {}

  // Thread-safe. Throws std::bad_alloc where a new workspace is needed and there is no memory.
  Loan borrow();

  PoolUse use() const;

 private:
  void give_back(Memory memory);

  const std::size_t bytes_;
  mutable std::mutex mutex_;
  std::vector<Memory> idle_;
  std::size_t allocations_ = 0;
};

}  // namespace softmaxd::cpu
