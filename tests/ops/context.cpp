#include "ops/context.h"

#include <cstdint>

#ifdef __x86_64__
asm(R"(
  .pushsection .text
  .p2align 4
  .globl fathom_emulator_switch
  .hidden fathom_emulator_switch
  .type fathom_emulator_switch, @function
fathom_emulator_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
  .size fathom_emulator_switch, . - fathom_emulator_switch
  .popsection
)");
#endif

namespace fathom::ops::device::emulator {

#ifdef __x86_64__
void start_context(Context& context, char* stack, size_t bytes, void (*entry)()) {
  auto** const end = reinterpret_cast<void**>(reinterpret_cast<uintptr_t>(stack + bytes) / 16 * 16);
  void** const top = end - 8;
  for (int i = 0; i < 6; ++i) top[i] = nullptr;  // six registers
  top[6] = reinterpret_cast<void*>(entry);       // where the first switch returns to
  top[7] = nullptr;                              // where entry would: debuggers end here
  context.top = top;
}
#else
void start_context(Context& context, char* stack, size_t bytes, void (*entry)()) {
  getcontext(&context);
  context.uc_stack.ss_sp = stack, context.uc_stack.ss_size = bytes;
  context.uc_link = nullptr;
  makecontext(&context, entry, 0);
}
#endif

}  // namespace fathom::ops::device::emulator
