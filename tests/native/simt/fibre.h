// Fibres: threads that the program switches by itself, each on a stack of its own, in a way that the sanitizers follow.
//
// One fibre runs at a time, on the host thread that entered it, until it leaves. Another host thread may enter it the
// next time; the callers see to it that only one does.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

// swapcontext asks the kernel for the signal mask: a visit to a fibre takes 358 ns by it and 6 ns without (Xeon, AMX).
#if !defined(__x86_64__) && !defined(SIMT_UCONTEXT)
#define SIMT_UCONTEXT
#endif
#if defined(SIMT_UCONTEXT)
#include <ucontext.h>
#endif
// Clang's way to say what GCC defines.
#if defined(__has_feature)
#if __has_feature(address_sanitizer) && !defined(__SANITIZE_ADDRESS__)
#define __SANITIZE_ADDRESS__ 1
#endif
#if __has_feature(thread_sanitizer) && !defined(__SANITIZE_THREAD__)
#define __SANITIZE_THREAD__ 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

// The sanitizers are to watch the kernels and not us: the thread sanitizer would take our book-keeping for races, and
// neither expects a function in the middle of which the stack is another one.
#define SIMT_UNWATCHED __attribute__((no_sanitize("address", "thread")))

namespace simt {

#if defined(SIMT_UCONTEXT)
using Context = ucontext_t;

inline void make_context(Context& context, char* stack, std::size_t bytes, void (*start)()) {
  getcontext(&context);
  context.uc_stack.ss_sp = stack;
  context.uc_stack.ss_size = bytes;
  context.uc_link = nullptr;
  makecontext(&context, start, 0);
}

SIMT_UNWATCHED inline void switch_context(Context* from, Context* to) { swapcontext(from, to); }
#else
// A stack pointer. What a caller of switch_context relies on lies there: six registers, and where it goes on.
using Context = std::uintptr_t*;

inline void make_context(Context& context, char* stack, std::size_t bytes, void (*start)()) {
  const auto end = reinterpret_cast<std::uintptr_t>(stack) + bytes;
  context = reinterpret_cast<Context>(end & ~std::uintptr_t{15});
  // start's return address: back traces end at it, and by it the stack is as far from a multiple of 16 as after a call.
  *--context = 0;
  *--context = reinterpret_cast<std::uintptr_t>(start);
  for (int saved = 0; saved < 6; ++saved) *--context = 0;
}

// GCC is not to look into it, or it takes the registers that are not named for untouched.
#if defined(__clang__)
#define SIMT_NAKED __attribute__((naked, noinline))
#else
#define SIMT_NAKED __attribute__((naked, noipa))
#endif

// Leaves the modes of floating-point arithmetic as they are: no kernel sets them. Its last jump is not a return, since
// the processor would foretell one to the caller on the other stack.
SIMT_NAKED SIMT_UNWATCHED inline void switch_context(Context* /*from*/, Context* /*to*/) {
  asm(R"(
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq (%rsi), %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    popq %rcx
    jmp *%rcx
  )");
}
#endif

// What to go back to when a fibre leaves.
struct Host {
  Context context;
  const void* stack = nullptr;
  std::size_t stack_bytes = 0;
  void* address_state = nullptr;
  void* thread_state = nullptr;
};

inline Host host;

class Fibre {
 public:
  // Runs `body` until it leaves; goes on with it where it has left; starts it anew where it has ended.
  SIMT_UNWATCHED void enter(void (*body)()) {
    body_ = body;
    if (stack_ == nullptr) make();
    current_ = this;
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(&host.address_state, stack_.get(), kStackBytes);
#endif
#if defined(__SANITIZE_THREAD__)
    host.thread_state = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(thread_state_, __tsan_switch_to_fiber_no_sync);
#endif
    switch_context(&host.context, &context_);
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(host.address_state, nullptr, nullptr);
#endif
  }

  // Goes back from the fibre that runs to who entered it.
  SIMT_UNWATCHED static void leave() {
    Fibre& self = *current_;
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(&self.address_state_, host.stack, host.stack_bytes);
#endif
#if defined(__SANITIZE_THREAD__)
    __tsan_switch_to_fiber(host.thread_state, __tsan_switch_to_fiber_no_sync);
#endif
    switch_context(&self.context_, &host.context);
    self.has_entered();
  }

 private:
  static constexpr std::size_t kStackBytes = 256 * 1024;  // a sanitizer's frames are large, and it reports from here

  void make() {
    stack_.reset(new char[kStackBytes]);
    make_context(context_, stack_.get(), kStackBytes, run);
#if defined(__SANITIZE_THREAD__)
    thread_state_ = __tsan_create_fiber(0);
#endif
  }

  SIMT_UNWATCHED static void run() {
    Fibre& self = *current_;
    self.has_entered();
    while (true) {
      self.body_();
      leave();
    }
  }

  // Each time, since the host thread may be another one.
  SIMT_UNWATCHED void has_entered() {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(address_state_, &host.stack, &host.stack_bytes);
#endif
  }

  static inline Fibre* current_ = nullptr;

  std::unique_ptr<char[]> stack_;
  Context context_{};
  void (*body_)() = nullptr;
  void* address_state_ = nullptr;
  void* thread_state_ = nullptr;
};

}  // namespace simt
