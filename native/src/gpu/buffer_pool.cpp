#include "gpu/buffer_pool.h"

#include <algorithm>

#include "gpu/runtime_error.h"

namespace softmaxd::gpu {
namespace {

constexpr std::size_t kSmallestClass = 64 * 1024;

// Four classes to a doubling: at most a quarter of a buffer is unused.
std::size_t class_bytes_for(std::size_t bytes) {
  std::size_t octave = kSmallestClass;
  while (octave * 2 <= bytes && octave * 2 > octave) octave *= 2;
  const std::size_t step = octave / 4;
  return std::max(kSmallestClass, (bytes + step - 1) / step * step);
}

}  // namespace

BufferPool::BufferPool(std::string name, Source source, std::size_t limit_bytes)
    : name_(std::move(name)), source_(source), limit_bytes_(limit_bytes) {}

BufferPool::~BufferPool() { trim(); }

BufferPool::Loan BufferPool::borrow(std::size_t bytes) {
  const std::size_t class_bytes = class_bytes_for(bytes);
  const std::lock_guard lock(mutex_);
  SizeClass& size_class = classes_[class_bytes];
  if (size_class.idle.empty()) size_class.idle.push_back(allocate(class_bytes, size_class));
  void* const data = size_class.idle.back();
  size_class.idle.pop_back();
  used_bytes_ += class_bytes;
  return {*this, class_bytes, data};
}

void BufferPool::reserve(std::size_t bytes, std::size_t count) {
  const std::size_t class_bytes = class_bytes_for(bytes);
  const std::lock_guard lock(mutex_);
  SizeClass& size_class = classes_[class_bytes];
  for (std::size_t i = 0; i < count; ++i) size_class.idle.push_back(allocate(class_bytes, size_class));
}

void BufferPool::trim() {
  const std::lock_guard lock(mutex_);
  release_idle();
}

PoolUse BufferPool::use() const {
  const std::lock_guard lock(mutex_);
  return {name_, used_bytes_, reserved_bytes_, allocations_};
}

void* BufferPool::allocate(std::size_t bytes, SizeClass& size_class) {
  if (!has_room(bytes)) release_idle();
  if (!has_room(bytes)) {
    throw OutOfMemory("the pool " + name_ + " has no room for " + std::to_string(bytes) + " bytes: " +
                      std::to_string(used_bytes_) + " of at most " + std::to_string(limit_bytes_) + " are in use");
  }
  size_class.idle.reserve(size_class.held + 1);  // so that giving back cannot throw
  void* data = nullptr;
  Error error = source_.allocate(&data, bytes);
  if (error == kOutOfMemory) {
    forget_last_error();
    release_idle();
    error = source_.allocate(&data, bytes);
  }
  if (error != kSuccess) {
    forget_last_error();
    check(error, ("allocating " + std::to_string(bytes) + " bytes for the pool " + name_).c_str());
  }
  ++size_class.held;
  reserved_bytes_ += bytes;
  ++allocations_;
  return data;
}

void BufferPool::release_idle() {
  for (auto& [class_bytes, size_class] : classes_) {
    for (void* const data : size_class.idle) disregard(source_.release(data));
    reserved_bytes_ -= class_bytes * size_class.idle.size();
    size_class.held -= size_class.idle.size();
    size_class.idle.clear();
  }
}

void BufferPool::give_back(std::size_t class_bytes, void* data) {
  const std::lock_guard lock(mutex_);
  used_bytes_ -= class_bytes;
  classes_[class_bytes].idle.push_back(data);
}

}  // namespace softmaxd::gpu
