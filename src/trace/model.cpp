#include "trace/model.h"

namespace fathom::trace {

NameTable::NameTable() {
  intern("");
}

NameId NameTable::intern(std::string_view text) {
  if (const auto found = ids_.find(text); found != ids_.end()) return found->second;
  const auto id = static_cast<NameId>(texts_.size());
  ids_.emplace(texts_.emplace_back(text), id);
  return id;
}

std::string_view producer_name(Producer producer) {
  switch (producer) {
    case Producer::torch:
      return "PyTorch profiler";
    case Producer::jax_gpu:
      return "JAX or TensorFlow (GPU)";
    case Producer::jax_tpu:
      return "JAX (TPU)";
    case Producer::nsys_json:
      return "nsys2json";
    case Producer::nsys_sqlite:
      return "Nsight Systems";
    case Producer::fathom:
      return "fathom";
    case Producer::unknown:
      break;
  }
  return "unknown producer";
}

std::string_view device_word(const Trace& trace) {
  if (trace.cpu_work) return "CPU";
  return trace.producer == Producer::jax_tpu ? "TPU" : "GPU";
}

std::string_view work_word(const Trace& trace) {
  return device_word(trace) == "GPU" ? "kernel" : "operation";
}

}  // namespace fathom::trace
