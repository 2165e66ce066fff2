// The lab's GPU side in a build without CUDA: there is none, and it says so.
#include "lab/gpu.h"

#ifndef FATHOM_HAVE_CUDA

namespace fathom::lab::gpu {

namespace {
[[noreturn]] void refuse() {
  fail("no GPU: {}", unavailable());
}
}  // namespace

std::string unavailable() {
  return "this build has no CUDA kernels (configure with -DFATHOM_CUDA=ON where nvcc is installed)";
}
Device current() {
  refuse();
}
int count() {
  return 0;
}
Device describe(int) {
  refuse();
}
Memory::Memory(size_t) {
  refuse();
}
Memory::~Memory() = default;
Memory::Memory(Memory&&) noexcept = default;
Memory& Memory::operator=(Memory&&) noexcept = default;
void upload(void*, const void*, size_t) {
  refuse();
}
void download(void*, const void*, size_t) {
  refuse();
}
void copy(void*, const void*, size_t) {
  refuse();
}
void copy_on(void*, void*, const void*, size_t) {
  refuse();
}
void fill(void*, int, size_t) {
  refuse();
}
void synchronize(const std::string&) {
  refuse();
}
size_t free_memory() {
  refuse();
}
Graph::Graph(const std::function<void(void*)>&) {
  refuse();
}
Graph::~Graph() = default;
double Graph::replay() {
  refuse();
}
void run_on_stream(const std::function<void(void*)>&) {
  refuse();
}
Rates measure_rates() {
  refuse();
}

}  // namespace fathom::lab::gpu

#endif
