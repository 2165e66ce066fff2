// Stacks that the emulator changes between, some million times in a test. swapcontext asks the kernel for the mask of
// signals each time, and AddressSanitizer's clears what it knows of the whole stack.
//
// Only what a function must keep is switched, not the control words of SSE and x87: no kernel changes them. A processor
// that enforces shadow stacks would refuse the switch, whose return goes to where nothing called.
// An exception that leaves `entry` has nobody to go to: std::terminate, which shows its text (of a misaligned copy, of
// a trap). One caught on the same stack, before anything is switched, is as everywhere.
#pragma once

#include <cstddef>

#ifndef __x86_64__
#include <ucontext.h>
#endif

namespace fathom::ops::device::emulator {

#ifdef __x86_64__
struct Context {
  void* top = nullptr;  // of the stack, where what a function must keep was pushed
};
extern "C" void fathom_emulator_switch(void** top, void* other_top);
/// Goes on in `to`; returns when something goes on in `from`.
inline void switch_context(Context& from, Context& to) {
  fathom_emulator_switch(&from.top, to.top);
}
#else
using Context = ucontext_t;
inline void switch_context(Context& from, Context& to) {
  swapcontext(&from, &to);
}
#endif

/// `entry` will run on the stack; it never returns.
void start_context(Context& context, char* stack, size_t bytes, void (*entry)());

}  // namespace fathom::ops::device::emulator
