#include "softmaxd/shared_mapping.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <string>
#include <thread>

#include "softmaxd/error.h"

namespace softmaxd {
namespace {

// A mapping as the handler sees it: `start` is 0 where there is none.
struct Entry {
  std::atomic<std::uintptr_t> start;
  std::atomic<std::size_t> byte_size;
  std::atomic<std::atomic<bool>*> is_intact;
};

// All that the handler touches is lock-free, as a handler's must be, and there before the first one comes.
static_assert(std::atomic<std::uintptr_t>::is_always_lock_free && std::atomic<std::atomic<bool>*>::is_always_lock_free);
constinit std::array<Entry, kMaxSharedMappings> entries{};
constinit std::atomic<std::size_t> handlers_inside{0};
struct sigaction previous;  // written before the handler is installed

std::mutex entries_mutex;  // who changes entries holds it; the handler does not

// Puts private zeros in the place of the mapping that `address` is in. All of it: pages one by one would be a mapping
// of the kernel's each, of which a process can have 65530, and huge pages cannot be replaced in part.
bool replace_mapping_at(std::uintptr_t address) {
  for (const Entry& entry : entries) {
    const std::uintptr_t start = entry.start;
    if (start == 0 || address < start) continue;
    const std::size_t byte_size = entry.byte_size;
    if (address - start >= byte_size) continue;
    entry.is_intact.load()->store(false);
    void* const replaced = mmap(reinterpret_cast<void*>(start), byte_size, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
    return replaced != MAP_FAILED;
  }
  return false;
}

void pass_on(int signal, siginfo_t* info, void* context) {
  if ((previous.sa_flags & SA_SIGINFO) != 0) return previous.sa_sigaction(signal, info, context);
  const bool is_of_an_access = info->si_code > 0;  // and not another process's or thread's message
  if (previous.sa_handler == SIG_IGN && !is_of_an_access) return;
  if (previous.sa_handler != SIG_IGN && previous.sa_handler != SIG_DFL) return previous.sa_handler(signal);
  struct sigaction end{};
  end.sa_handler = SIG_DFL;
  sigaction(signal, &end, nullptr);
  raise(signal);  // comes when the handler returns
}

void handle(int signal, siginfo_t* info, void* context) {
  const int error = errno;
  bool is_replaced = false;
  if (info->si_code == BUS_ADRERR) {
    ++handlers_inside;
    is_replaced = replace_mapping_at(reinterpret_cast<std::uintptr_t>(info->si_addr));
    --handlers_inside;
  }
  errno = error;
  if (!is_replaced) pass_on(signal, info, context);
}

void install_handler() {
  static std::once_flag installed;
  std::call_once(installed, [] {
    sigaction(SIGBUS, nullptr, &previous);
    struct sigaction own{};
    own.sa_sigaction = handle;
    own.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigemptyset(&own.sa_mask);
    sigaction(SIGBUS, &own, nullptr);
  });
}

// Returns the entry of a mapping, or for null one that is free; null where there is none.
Entry* entry_of(const void* data) {
  const auto found = std::find_if(entries.begin(), entries.end(), [=](const Entry& entry) {
    return entry.start == reinterpret_cast<std::uintptr_t>(data);
  });
  return found == entries.end() ? nullptr : &*found;
}

void enter(void* data, std::size_t byte_size, std::atomic<bool>& is_intact) {
  const std::lock_guard lock(entries_mutex);
  Entry* const entry = entry_of(nullptr);
  if (entry == nullptr) {
    throw OutOfMemory("there are " + std::to_string(kMaxSharedMappings) + " shared mappings already; close one first");
  }
  entry->byte_size = byte_size;
  entry->is_intact = &is_intact;
  entry->start = reinterpret_cast<std::uintptr_t>(data);
}

// Once it returns no handler knows of the mapping any more: none can put zeros where something else lies by then.
void leave(void* data) {
  const std::lock_guard lock(entries_mutex);
  entry_of(data)->start = 0;
  while (handlers_inside != 0) std::this_thread::yield();
}

void check_file(int fd, std::size_t byte_size) {
  if (byte_size == 0) throw InvalidArgument("byte_size is 0; a shared mapping has 1 byte or more");
  struct stat file{};
  if (fstat(fd, &file) != 0) {
    throw InvalidArgument("file descriptor " + std::to_string(fd) + " cannot be mapped: " + std::strerror(errno));
  }
  if (file.st_size < 0 || static_cast<std::size_t>(file.st_size) < byte_size) {
    throw InvalidArgument("byte_size is " + std::to_string(byte_size) + ", but the file has " +
                          std::to_string(file.st_size) + " bytes");
  }
}

void* map(int fd, std::size_t byte_size) {
  void* const data = mmap(nullptr, byte_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (data != MAP_FAILED) return data;
  const std::string message = std::to_string(byte_size) + " bytes of file descriptor " + std::to_string(fd) +
                              " cannot be mapped: " + std::strerror(errno);
  if (errno == ENOMEM) throw OutOfMemory(message);
  throw InvalidArgument(message);
}

}  // namespace

SharedMapping::SharedMapping(int fd, std::size_t byte_size) : byte_size_(byte_size) {
  check_file(fd, byte_size);
  install_handler();
  data_ = map(fd, byte_size);
  try {
    enter(data_, byte_size, is_intact_);
  } catch (...) {
    munmap(data_, byte_size);
    throw;
  }
}

SharedMapping::~SharedMapping() { close(); }

void SharedMapping::close() {
  if (data_ == nullptr) return;
  leave(data_);
  munmap(data_, byte_size_);
  data_ = nullptr;
}

}  // namespace softmaxd
