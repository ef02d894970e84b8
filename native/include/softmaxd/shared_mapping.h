// A file that another process shares with this one, as memory.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace softmaxd {

// How many mappings there can be at once in a process.
inline constexpr std::size_t kMaxSharedMappings = 4096;

// Maps a file, so that what either process writes is seen by the other. That process can take the file's pages away at
// any time, by truncating it; an access to such a page would end this process by SIGBUS. Here it does not: from then on
// the mapping is private memory that starts as zeros, and says that it is not intact.
//
// For that the first mapping of a process takes over SIGBUS, once, and passes on what comes from other addresses. Who
// takes SIGBUS over later must pass on what is not theirs. A system call that is given such a page fails with EFAULT,
// and registering it with a device fails too. A device that has registered the pages before keeps them.
//
// is_intact() may be called from any thread at any time; nothing may access the memory during or after close().
class SharedMapping {
 public:
  // Maps the first `byte_size` bytes of the file behind `fd`, which is open for reading and writing and may be closed
  // afterwards. Throws InvalidArgument for 0 bytes, more bytes than the file has, or a file that cannot be mapped;
  // OutOfMemory where there is no room for it or there are kMaxSharedMappings already.
  SharedMapping(int fd, std::size_t byte_size);
  ~SharedMapping();
  SharedMapping(const SharedMapping&) = delete;
  SharedMapping& operator=(const SharedMapping&) = delete;

  // Aligned to a page; null once it is closed.
  void* data() const { return data_; }
  std::size_t byte_size() const { return byte_size_; }

  // False once an access met a page that the file had no more, or for which its file system had no room. What was read
  // and written since then means nothing.
  bool is_intact() const { return is_intact_; }

  // Unmaps it. A second call does nothing.
  void close();

 private:
  void* data_ = nullptr;
  const std::size_t byte_size_;
  std::atomic<bool> is_intact_{true};
};

}  // namespace softmaxd
