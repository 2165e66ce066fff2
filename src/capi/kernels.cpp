// The C interface of include/fathom/kernels.h over the op registry.
#include "fathom/kernels.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "base/error.h"
#include "lab/gpu.h"
#include "ops/sparse_attention/sparse_attention.h"

namespace {

using fathom::bf16;
using fathom::e4m3;
using fathom::e8m0;
using fathom::View;
using fathom::ops::Backend;
using fathom::ops::DeviceInfo;
using fathom::ops::SparseAttentionArgs;

/// A failure on its way to the caller.
struct Failure {
  fathom_status status;
  std::string text;
};

template <typename... Args>
[[noreturn]] void refuse(fathom_status status, fmt::format_string<Args...> text, Args&&... args) {
  throw Failure{status, fmt::format(text, std::forward<Args>(args)...)};
}

std::string& last_error() {
  static thread_local std::string text;
  return text;
}

/// Runs the body of an API function: no exception leaves the library.
template <typename Body>
fathom_status guarded(Body body) noexcept {
  try {
    last_error().clear();
    body();
    return FATHOM_OK;
  } catch (const Failure& f) {
    last_error() = f.text;
    return f.status;
  } catch (const fathom::Error& e) {  // what the kernels and the CUDA layer throw
    last_error() = e.what();
    return FATHOM_CUDA_ERROR;
  } catch (const std::exception& e) {
    last_error() = e.what();
    return FATHOM_INTERNAL_ERROR;
  } catch (...) {
    return FATHOM_INTERNAL_ERROR;
  }
}

/// The caller's struct in the layout this library knows. `first` is the size of the struct's first version.
template <typename T>
T taken(const T* from, const char* name, size_t first) {
  if (!from) refuse(FATHOM_BAD_ARGUMENT, "{} is null", name);
  if (from->size < first)
    refuse(FATHOM_BAD_ARGUMENT, "{}: size is {}, the smallest known is {}; set it to sizeof(*{})", name, from->size,
           first, name);
  const auto* bytes = reinterpret_cast<const unsigned char*>(from);
  if (from->size > 65536) refuse(FATHOM_BAD_ARGUMENT, "{}: size is {}; it was not set", name, from->size);
  for (size_t i = sizeof(T); i < from->size; ++i)
    if (bytes[i] != 0)
      refuse(FATHOM_UNSUPPORTED, "{} uses fields that this library does not know: it is older than the header", name);
  T copy{};
  std::memcpy(&copy, from, std::min(from->size, sizeof(T)));
  copy.size = sizeof(T);
  return copy;
}

DeviceInfo device_of(const fathom_device* from) {
  const fathom_device d = taken(from, "device", sizeof(fathom_device));
  DeviceInfo info;
  info.backend = d.ordinal == FATHOM_CPU ? Backend::cpu : Backend::cuda;
  info.compute_capability = d.compute_capability;
  info.sm_count = d.sm_count;
  info.shared_bytes = d.shared_bytes;
  info.l2_bytes = d.l2_bytes;
  if (info.backend == Backend::cuda && (d.sm_count < 1 || d.compute_capability < 10 || d.shared_bytes < 1))
    refuse(FATHOM_BAD_ARGUMENT, "device is empty: fill it with fathom_device_info()");
  return info;
}

fathom::ops::RowSet rows_of(const fathom_row_set& from, const char* name, fathom::ops::RowFormat format,
                            int64_t tokens) {
  fathom::ops::RowSet rows;
  if (!from.index) {
    if (from.pool || from.length || from.most_rows != 0)
      refuse(FATHOM_BAD_ARGUMENT, "{}: index is null but other fields are not", name);
    return rows;
  }
  if (from.most_rows < 0 || from.most_rows > 1 << 24)
    refuse(FATHOM_BAD_ARGUMENT, "{}: most_rows is {}", name, from.most_rows);
  if (tokens > 1 && from.index_stride < from.most_rows)
    refuse(FATHOM_BAD_ARGUMENT, "{}: index_stride {} is less than most_rows {}", name, from.index_stride,
           from.most_rows);
  if (!from.pool) refuse(FATHOM_BAD_ARGUMENT, "{}: pool is null", name);
  if (from.page_rows < 1) refuse(FATHOM_BAD_ARGUMENT, "{}: page_rows is {}", name, from.page_rows);
  const int64_t row = format == fathom::ops::RowFormat::bf16 ? 2 * fathom::ops::kHeadDim
                                                             : fathom::ops::kV4DataBytes + fathom::ops::kV4ScaleBytes;
  if (from.page_stride < row * from.page_rows)
    refuse(FATHOM_BAD_ARGUMENT, "{}: page_stride is {} bytes, {} rows need {}", name, from.page_stride, from.page_rows,
           row * from.page_rows);
  rows.pool = {static_cast<std::byte*>(const_cast<void*>(from.pool)), from.page_stride, from.page_rows};
  rows.index = View<const int32_t, 2>(from.index, tokens, from.most_rows);
  rows.index.stride[0] = from.index_stride;
  if (from.length) rows.length = View<const int32_t, 1>(from.length, tokens);
  return rows;
}

template <typename T>
View<T, 3> heads_view(T* data, const fathom_sparse_attention_args& a, int64_t token_stride, int64_t head_stride,
                      const char* name) {
  View<T, 3> view(data, a.tokens, a.heads, int64_t{fathom::ops::kHeadDim});
  if (a.heads > 1 && head_stride < fathom::ops::kHeadDim)
    refuse(FATHOM_BAD_ARGUMENT, "{}_head_stride is {}, at least {} is needed", name, head_stride,
           fathom::ops::kHeadDim);
  if (a.tokens > 1 && token_stride < fathom::ops::kHeadDim)
    refuse(FATHOM_BAD_ARGUMENT, "{}_token_stride is {}, at least {} is needed", name, token_stride,
           fathom::ops::kHeadDim);
  view.stride[0] = token_stride;
  view.stride[1] = head_stride;
  return view;
}

SparseAttentionArgs attention_of(const fathom_sparse_attention_args& a) {
  if (a.tokens < 0 || a.tokens > 1 << 24) refuse(FATHOM_BAD_ARGUMENT, "tokens is {}", a.tokens);
  if (a.heads < 1 || a.heads > 4096) refuse(FATHOM_BAD_ARGUMENT, "heads is {}", a.heads);
  if (a.row_format != FATHOM_ROWS_V4 && a.row_format != FATHOM_ROWS_BF16)
    refuse(FATHOM_BAD_ARGUMENT, "row_format is {}", a.row_format);
  if (a.tokens > 0 && !a.q) refuse(FATHOM_BAD_ARGUMENT, "q is null");
  if (!a.out && !a.out_codes) refuse(FATHOM_BAD_ARGUMENT, "out and out_codes are both null");
  if (!a.out_codes != !a.out_scale)
    refuse(FATHOM_BAD_ARGUMENT, "out_codes and out_scale go together: one of them is null");
  if (!a.position != !a.rope_freq)
    refuse(FATHOM_BAD_ARGUMENT, "position and rope_freq go together: one of them is null");
  if (!(a.scale > 0)) refuse(FATHOM_BAD_ARGUMENT, "scale is {}; DeepSeek-V4 uses 512^-0.5", a.scale);
  if (a.lse && a.tokens > 1 && a.lse_token_stride < a.heads)
    refuse(FATHOM_BAD_ARGUMENT, "lse_token_stride is {}, at least {} is needed", a.lse_token_stride, a.heads);
  if (a.queries_per_request < 0) refuse(FATHOM_BAD_ARGUMENT, "queries_per_request is {}", a.queries_per_request);
  SparseAttentionArgs args;
  args.q = heads_view(static_cast<const bf16*>(a.q), a, a.q_token_stride, a.q_head_stride, "q");
  args.format = a.row_format == FATHOM_ROWS_V4 ? fathom::ops::RowFormat::v4 : fathom::ops::RowFormat::bf16;
  args.window = rows_of(a.window, "window", args.format, a.tokens);
  args.extra = rows_of(a.extra, "extra", args.format, a.tokens);
  if (a.sink) args.sink = View<const float, 1>(a.sink, a.heads);
  args.scale = a.scale;
  args.queries_per_request = std::max(1, a.queries_per_request);
  if (a.position) {
    args.position = View<const int32_t, 1>(a.position, a.tokens);
    args.rope_freq = View<const float, 1>(a.rope_freq, 32);
  }
  if (a.out) args.out = heads_view(static_cast<bf16*>(a.out), a, a.out_token_stride, a.out_head_stride, "out");
  if (a.lse) {
    args.lse = View<float, 2>(a.lse, a.tokens, a.heads);
    args.lse.stride[0] = a.lse_token_stride;
  }
  if (a.out_codes) {
    args.out_codes =
        View<e4m3, 3>(reinterpret_cast<e4m3*>(a.out_codes), a.tokens, a.heads, int64_t{fathom::ops::kHeadDim});
    args.out_scale = View<e8m0, 3>(reinterpret_cast<e8m0*>(a.out_scale), a.tokens, a.heads, int64_t{4});
  }
  return args;
}

/// The variant asked for, or the last one in the registry that can run: registries list variants from the slowest to
/// the fastest. "exact", which gives up speed for bits that do not depend on the batch, is taken only when it is asked
/// for.
const fathom::ops::Variant<SparseAttentionArgs>& chosen(const SparseAttentionArgs& args, const char* name,
                                                        const DeviceInfo& device) {
  const auto all = fathom::ops::sparse_attention_variants();
  if (name) {
    const auto* v = fathom::ops::find_variant(all, name);
    if (!v) refuse(FATHOM_BAD_ARGUMENT, "there is no variant {}", fathom::printable(name));
    if (v->backend != device.backend)
      refuse(FATHOM_BAD_ARGUMENT, "variant {} runs on the {}, the device is the other", name,
             v->backend == Backend::cpu ? "CPU" : "GPU");
    if (!v->can_run(args, device))
      refuse(FATHOM_UNSUPPORTED, "variant {} cannot run these shapes on this device", name);
    return *v;
  }
  const fathom::ops::Variant<SparseAttentionArgs>* best = nullptr;
  for (const auto& v : all)
    if (v.backend == device.backend && v.name != "exact" && v.can_run(args, device)) best = &v;
  if (!best)
    refuse(FATHOM_UNSUPPORTED,
           "no kernel takes these arguments on this device (sm_{}): q, out and pools need 16-byte aligned rows, page "
           "strides "
           "that are multiples of 16 and at most 65535 tokens",
           device.compute_capability);
  return *best;
}

}  // namespace

extern "C" {

int32_t fathom_kernels_version(void) {
  return FATHOM_KERNELS_VERSION;
}

const char* fathom_kernels_build(void) {
  return "fathom " FATHOM_VERSION ", " FATHOM_CUDA_BUILD;
}

const char* fathom_status_text(fathom_status status) {
  switch (status) {
    case FATHOM_OK:
      return "done";
    case FATHOM_BAD_ARGUMENT:
      return "bad argument";
    case FATHOM_UNSUPPORTED:
      return "not supported on this device or with these shapes";
    case FATHOM_SMALL_WORKSPACE:
      return "the workspace is too small";
    case FATHOM_NO_GPU:
      return "no GPU can be used";
    case FATHOM_CUDA_ERROR:
      return "CUDA reported an error";
    case FATHOM_INTERNAL_ERROR:
      return "internal error, please report it";
    default:
      return "unknown status";
  }
}

const char* fathom_last_error(void) {
  return last_error().c_str();
}

fathom_status fathom_device_info(int32_t ordinal, fathom_device* device) {
  return guarded([&] {
    fathom_device d = taken(device, "device", sizeof(fathom_device));
    d = {};
    d.size = sizeof(fathom_device);
    d.ordinal = ordinal;
    if (ordinal != FATHOM_CPU) {
      if (const std::string why = fathom::lab::gpu::unavailable(); !why.empty())
        refuse(FATHOM_NO_GPU, "no GPU: {}", why);
      const int count = fathom::lab::gpu::count();
      if (ordinal < 0 || ordinal >= count)
        refuse(FATHOM_BAD_ARGUMENT, "device {} does not exist: there are {}", ordinal, count);
      const DeviceInfo info = fathom::lab::gpu::describe(ordinal).info;
      d.compute_capability = info.compute_capability;
      d.sm_count = info.sm_count;
      d.shared_bytes = info.shared_bytes;
      d.l2_bytes = info.l2_bytes;
    }
    std::memcpy(device, &d, std::min(device->size, sizeof d));
  });
}

const char* fathom_sparse_attention_variant(int32_t i) {
  const auto all = fathom::ops::sparse_attention_variants();
  return i >= 0 && static_cast<size_t>(i) < all.size() ? all[static_cast<size_t>(i)].name.data() : nullptr;
}

fathom_status fathom_sparse_attention_workspace(const fathom_sparse_attention_args* args, const fathom_device* device,
                                                size_t* bytes) {
  return guarded([&] {
    if (!bytes) refuse(FATHOM_BAD_ARGUMENT, "bytes is null");
    const auto a = taken(args, "args", sizeof(fathom_sparse_attention_args));
    const DeviceInfo info = device_of(device);
    const SparseAttentionArgs op = attention_of(a);
    *bytes = 0;
    if (a.tokens == 0) return;
    const auto& variant = chosen(op, a.variant, info);
    if (variant.workspace) *bytes = variant.workspace(op, info);
  });
}

fathom_status fathom_sparse_attention(const fathom_sparse_attention_args* args, const fathom_device* device,
                                      void* workspace, size_t workspace_bytes, void* stream) {
  return guarded([&] {
    const auto a = taken(args, "args", sizeof(fathom_sparse_attention_args));
    const DeviceInfo info = device_of(device);
    const SparseAttentionArgs op = attention_of(a);
    if (a.tokens == 0) return;
    const auto& variant = chosen(op, a.variant, info);
    const size_t needed = variant.workspace ? variant.workspace(op, info) : 0;
    if (needed > workspace_bytes || (needed > 0 && !workspace))
      refuse(FATHOM_SMALL_WORKSPACE, "the workspace has {} bytes, {} are needed", workspace ? workspace_bytes : 0,
             needed);
    if (reinterpret_cast<uintptr_t>(workspace) % 256 != 0 && needed > 0)
      refuse(FATHOM_BAD_ARGUMENT, "the workspace is not 256-byte aligned");
    variant.run(op, {info, workspace, stream});
  });
}

}  // extern "C"
