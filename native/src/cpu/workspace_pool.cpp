#include "cpu/workspace_pool.h"

#include <new>
#include <utility>

namespace softmaxd::cpu {
namespace {
constexpr std::align_val_t kAlignment{64};
}

void WorkspacePool::Free::operator()(std::byte* memory) const { ::operator delete(memory, kAlignment); }

WorkspacePool::Loan WorkspacePool::borrow() {
  {
    const std::lock_guard lock(mutex_);
    if (!idle_.empty()) {
      Memory memory = std::move(idle_.back());
      idle_.pop_back();
      return {*this, std::move(memory)};
    }
    ++allocations_;
    idle_.reserve(allocations_);  // so that giving back cannot throw
  }
  return {*this, Memory(static_cast<std::byte*>(::operator new(bytes_, kAlignment)))};
}

void WorkspacePool::give_back(Memory memory) {
  const std::lock_guard lock(mutex_);
  idle_.push_back(std::move(memory));
}

PoolUse WorkspacePool::use() const {
  const std::lock_guard lock(mutex_);
  return {"workspace", (allocations_ - idle_.size()) * bytes_, allocations_ * bytes_, allocations_};
}

}  // namespace softmaxd::cpu
