#include "base/recorder.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <iterator>

namespace fathom {

Recorder::Recorder(size_t limit) : limit_(limit), origin_ns_(now()), chunks_((limit + kChunk - 1) / kChunk) {}

Recorder::~Recorder() {
  for (auto& chunk : chunks_) delete[] chunk.load(std::memory_order_relaxed);
}

int64_t Recorder::now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

int32_t Recorder::this_thread() {
  static thread_local const auto id = static_cast<int32_t>(::syscall(SYS_gettid));
  return id;
}

Recorder::Slot* Recorder::slot(size_t index) {
  std::atomic<Slot*>& chunk = chunks_[index / kChunk];
  Slot* slots = chunk.load(std::memory_order_acquire);
  if (!slots) {
    const std::lock_guard lock(mutex_);
    slots = chunk.load(std::memory_order_relaxed);
    if (!slots) {
      slots = new Slot[kChunk];
      chunk.store(slots, std::memory_order_release);
    }
  }
  return slots + index % kChunk;
}

void Recorder::add(const SpanRecord& record) {
  const size_t index = next_.fetch_add(1, std::memory_order_relaxed);
  if (index >= limit_) return;  // dropped() is what next_ counted past the limit
  Slot* at = slot(index);
  at->record = record;
  at->ready.store(true, std::memory_order_release);
}

int32_t Recorder::begin_step() {
  const int32_t number = steps_.fetch_add(1, std::memory_order_relaxed) + 1;
  current_step_.store(number, std::memory_order_relaxed);
  return number;
}

void Recorder::name_thread(std::string name) {
  const int32_t id = this_thread();
  const std::lock_guard lock(mutex_);
  for (auto& entry : thread_names_) {
    if (entry.first == id) {
      entry.second = std::move(name);
      return;
    }
  }
  thread_names_.emplace_back(id, std::move(name));
}

std::vector<std::pair<int32_t, std::string>> Recorder::thread_names() const {
  const std::lock_guard lock(mutex_);
  return thread_names_;
}

void Recorder::for_each(const std::function<void(const SpanRecord&)>& visit) const {
  const size_t count = stored();
  for (size_t i = 0; i < count; ++i) {
    const Slot* slots = chunks_[i / kChunk].load(std::memory_order_acquire);
    if (!slots) continue;  // its owner is about to create it
    const Slot& at = slots[i % kChunk];
    if (at.ready.load(std::memory_order_acquire)) visit(at.record);
  }
}

void Recorder::add_device_spans(std::vector<DeviceSpan> spans) {
  const std::lock_guard lock(mutex_);
  const size_t room = limit_ - std::min(limit_, device_spans_.size());
  if (spans.size() > room) device_dropped_ += spans.size() - room, spans.resize(room);
  device_spans_.insert(device_spans_.end(), std::make_move_iterator(spans.begin()),
                       std::make_move_iterator(spans.end()));
}

void Recorder::describe_device(DeviceFacts facts) {
  const std::lock_guard lock(mutex_);
  device_facts_ = std::move(facts);
}

size_t Recorder::stored() const {
  return std::min(next_.load(std::memory_order_relaxed), limit_);
}

size_t Recorder::dropped() const {
  const size_t seen = next_.load(std::memory_order_relaxed);
  const std::lock_guard lock(mutex_);
  return (seen > limit_ ? seen - limit_ : 0) + device_dropped_;
}

void Span::finish() {
  record_.end_ns = Recorder::now();
  record_.step = recorder_->current_step();
  record_.thread = Recorder::this_thread();
  recorder_->add(record_);
}

StepSpan::StepSpan(Recorder* recorder, int64_t prefill_tokens, int64_t decode_sequences) : recorder_(recorder) {
  if (!recorder_) return;
  record_.name = "step";
  record_.category = kStepCategory;
  record_.shape = {prefill_tokens, decode_sequences};
  record_.step = recorder_->begin_step();
  record_.start_ns = Recorder::now();
}

StepSpan::~StepSpan() {
  if (!recorder_) return;
  record_.end_ns = Recorder::now();
  record_.thread = Recorder::this_thread();
  recorder_->add(record_);
  recorder_->end_step();
}

}  // namespace fathom
