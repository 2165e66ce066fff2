#include "plan/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace fathom::plan {
namespace {

constexpr double gib = 1024.0 * 1024 * 1024;

/// "1,409", "94.8", "0.52": three digits where there are fewer.
std::string short_number(double v) {
  if (v < 999.5) return fmt::format("{:.{}f}", v, v >= 99.95 ? 0 : v >= 9.995 ? 1 : 2);
  const std::string digits = fmt::format("{:.0f}", v);
  std::string out;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) out += ',';
    out += digits[i];
  }
  return out;
}

/// Whole numbers without decimals.
std::string count(double v) {
  return v == std::floor(v) && v < 1000 ? fmt::format("{:.0f}", v) : short_number(v);
}

std::string gigabytes(double bytes) {
  return bytes < 1e8 ? short_number(bytes / 1e6) + " MB" : short_number(bytes / 1e9) + " GB";
}

std::string milliseconds(double seconds) {
  return short_number(seconds * 1e3);
}

std::string split_text(const Devices& s) {
  if (s.count == 1) return "";
  return s.split == Split::tensor ? ", every expert split over them" : ", whole experts on each";
}

std::string head_lines(const Answer& a) {
  const Model& m = a.question.model;
  const Devices& s = a.question.devices;
  std::string out = fmt::format(
      "{}: {:.4g} B parameters, {:.4g} B active a token; {} of weights, {} of them routed experts of {:.4g} MB\n",
      printable(m.name), m.parameters / 1e9, m.active_parameters / 1e9, gigabytes(m.weights.total()),
      gigabytes(m.weights.routed), m.weights.per_expert / 1e6);
  out += fmt::format("{} x {}: {:.0f} GB/s, {:.1f} GiB each{}", s.count, printable(s.gpu.name), s.gpu.bandwidth / 1e9,
                     s.gpu.memory / gib, split_text(s));
  if (s.count > 1)
    out +=
        fmt::format("; {} all-reduces a step over {}, {:.3g} us each ({})", 2 * m.layers(), printable(s.gpu.link.name),
                    s.gpu.link.all_reduce_latency * 1e6, s.gpu.link.measured ? "measured" : "assumed");
  return out + "\n";
}

std::string capacity_line(const Answer& a, size_t i) {
  const Capacity& c = a.capacities[i];
  const double context = a.question.contexts[i];
  const std::string weights = fmt::format("{} of weights{} on each GPU", gigabytes(c.weights),
                                          a.question.devices.with_draft ? " and draft" : "");
  const std::string reserve =
      fmt::format("{:.3g} GiB kept for the driver, graphs and workspaces", a.question.devices.reserve / gib);
  if (c.cache < 0) return fmt::format("Does not fit: {}, {} too much ({})\n", weights, gigabytes(-c.cache), reserve);
  if (c.sequences < 1)
    return fmt::format("Does not fit: {}, {} left for the cache, and one sequence of {} tokens needs {} ({})\n",
                       weights, gigabytes(c.cache), count(context), gigabytes(c.sequence_bytes), reserve);
  return fmt::format("Fits: {}, {} left for the cache: {} sequences of {} tokens ({} tokens together) ({})\n", weights,
                     gigabytes(c.cache), count(c.sequences), count(context), short_number(c.sequences * context),
                     reserve);
}

std::string row_line(const Answer& a, const Row& r) {
  const StepBound& b = r.plain;
  std::string line =
      fmt::format("{:>6} {:>8} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}  {}", count(r.batch), count(b.distinct),
                  short_number(b.bytes() / 1e9), milliseconds(b.memory_time), milliseconds(b.matrix_time),
                  milliseconds(b.link_time), milliseconds(b.time()), short_number(b.tokens_per_second()),
                  short_number(b.tokens_per_second() / r.batch),
                  r.measured > 0 ? fmt::format("{:.0f} %", 100 * r.measured / b.tokens_per_second()) : "-", b.binds());
  if (a.question.accepted > 0) {
    const double gain = r.drafted.tokens_per_second() / b.tokens_per_second();
    line += fmt::format("; drafted {} tokens/s, {:.2f}x", short_number(r.drafted.tokens_per_second()), gain);
  }
  if (!r.fits) line += "; more than fits";
  return line + "\n";
}

}  // namespace

Answer answer(Question question) {
  Answer a;
  a.question = std::move(question);
  const Question& q = a.question;
  for (const double context : q.contexts) {
    a.capacities.push_back(capacity(q.model, q.devices, context));
    for (const double batch : q.batches) {
      Row r{batch, context, bound(q.model, q.devices, batch, context), {}, 0, batch <= a.capacities.back().sequences};
      if (q.accepted > 0) r.drafted = bound(q.model, q.devices, batch, context, q.accepted);
      for (const Measured& m : q.measured)
        if (m.batch == batch && (m.context == 0 || m.context == context)) r.measured = m.tokens_per_second;
      a.rows.push_back(r);
    }
  }
  return a;
}

std::string text_report(const Answer& a) {
  const Question& q = a.question;
  std::string out = head_lines(a);
  for (size_t i = 0; i < q.contexts.size(); ++i) {
    out += fmt::format("\nContext {}. {}", count(q.contexts[i]), capacity_line(a, i));
    out +=
        fmt::format("{:>6} {:>8} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}  {}\n", "batch", "experts", "GB/step",
                    "bytes ms", "math ms", "links ms", "step ms", "tokens/s", "each", "measured", "binds");
    for (size_t k = 0; k < q.batches.size(); ++k) out += row_line(a, a.rows[i * q.batches.size() + k]);
  }
  out +=
      "\nBounds: every byte once at data-sheet bandwidth, no launch or idle time. --explain shows how they come "
      "about.\n";
  if (q.accepted > 0)
    out += fmt::format("Speculation: {} draft tokens a request verified with one more, {:.3g} of them come out.\n",
                       q.model.draft.block, q.accepted);
  return out;
}

std::string explanation(const Answer& a) {
  const Question& q = a.question;
  const Model& m = q.model;
  const Devices& s = q.devices;
  const Row& r = a.rows.front();
  const StepBound& b = r.plain;
  const ModelConfig& c = m.config;
  std::string out =
      fmt::format("\nHow the first row (batch {}, context {}) comes about\n", count(r.batch), count(r.context));
  const auto line = [&](const char* name, const std::string& formula) {
    out += fmt::format("  {:<20}{}\n", name, formula);
  };
  if (s.routing.empty())
    line("experts a layer", fmt::format("E (1 - (1 - k/E)^T) = {} (1 - (1 - {}/{})^{:.0f}) = {:.4g}", c.num_experts,
                                        c.experts_per_token, c.num_experts, b.tokens, b.distinct));
  else
    line("experts a layer",
         fmt::format("sum over experts of 1 - (1 - k share)^T, T = {:.0f}: {:.4g}", b.tokens, b.distinct));
  line("expert bytes", fmt::format("{} layers x {:.0f} bytes x {:.4g} = {}", m.layers(), m.weights.per_expert,
                                   b.distinct, gigabytes(b.expert_bytes)));
  line("other weights", fmt::format("{:.0f} bytes of split and {:.0f} of repeated tensors = {}", m.weights.split,
                                    m.weights.replicated, gigabytes(b.fixed_bytes)));
  line("cache",
       fmt::format("batch x ({} CSA ((min({},n) + min({},n/4)) 584 + n/4 {:.0f}) + {} HCA (min({},n) + n/128) 584 + "
                   "{} window min({},n) 584) = {:.4g} MB",
                   m.csa_layers, c.window, c.index_topk, s.index_row, m.hca_layers, c.window, m.window_layers, c.window,
                   b.cache_bytes / 1e6));
  line("of one device", fmt::format("split / {} + repeated + experts of the fullest device + cache = {}", s.count,
                                    gigabytes(b.device_bytes)));
  line("bytes ms", fmt::format("{} / {:.0f} GB/s = {} ms", gigabytes(b.device_bytes), s.gpu.bandwidth / 1e9,
                               milliseconds(b.memory_time)));
  const double rate = s.gpu.fp8 > 0 ? s.gpu.fp8 : s.gpu.bf16;
  line("math ms",
       fmt::format("({:.4g} GFLOP of products / {:.0f} TFLOP/s + {:.4g} of attention and index / {:.0f}) / {} = {} ms",
                   b.product_flops / 1e9, rate / 1e12, b.attention_flops / 1e9, s.gpu.bf16 / 1e12, s.count,
                   milliseconds(b.matrix_time)));
  if (s.count > 1)
    line("links ms", fmt::format("{} x ({:.3g} us + 2 ({} - 1)/{} x T x {} x 4 bytes / {:.0f} GB/s) = {} ms",
                                 2 * m.layers(), s.gpu.link.all_reduce_latency * 1e6, s.count, s.count, c.hidden_size,
                                 s.gpu.link.bandwidth / 1e9, milliseconds(b.link_time)));
  line("step ms", fmt::format("max(bytes, math) + links = {}", milliseconds(b.time())));
  line("tokens/s", fmt::format("{:.0f} / step = {}", b.tokens_out, short_number(b.tokens_per_second())));
  if (q.accepted > 0)
    line("drafted",
         fmt::format("weights of T = {:.0f} tokens {} + draft {} ({:.4g} MB once, {:.4g} MB x {} tokens, experts of "
                     "{} stages); {:.3g} tokens a request: {} tokens/s",
                     r.drafted.tokens, gigabytes(r.drafted.fixed_bytes + r.drafted.expert_bytes),
                     gigabytes(r.drafted.draft_bytes), m.draft.once / 1e6, m.draft.each / 1e6, m.draft.block,
                     m.draft.stages, q.accepted, short_number(r.drafted.tokens_per_second())));
  line("cache of a sequence",
       fmt::format("{:.4g} MB (window rings, compressor state) + {:.0f} bytes a token = {:.4g} MB",
                   cache_bytes_fixed(m) / 1e6, cache_bytes_per_token(m, s.index_row),
                   a.capacities.front().sequence_bytes / 1e6));
  return out;
}

std::string survey(const Model& m, const GpuTable& table, const Devices& like, double context) {
  std::string out = fmt::format("{}: {} of weights. The fewest GPUs that hold it with one sequence of {} tokens:\n",
                                printable(m.name), gigabytes(m.weights.total()), count(context));
  out += fmt::format("{:<16} {:>5} {:>12} {:>14} {:>12} {:>12} {:>12}\n", "GPU", "count", "cache GB", "cache tokens",
                     "batch 1", "batch 16", "batch 64");
  for (const Gpu& gpu : table.all()) {
    Devices s = like;
    s.gpu = gpu;
    bool found = false;
    for (s.count = 1; s.count <= m.config.o_groups && !found; ++s.count) {
      if (m.config.o_groups % s.count != 0) continue;
      const Capacity c = capacity(m, s, context);
      if (!c.fits()) continue;
      found = true;
      const auto rate = [&](double batch) { return short_number(bound(m, s, batch, context).tokens_per_second()); };
      out += fmt::format("{:<16} {:>5} {:>12} {:>14} {:>12} {:>12} {:>12}\n", printable(gpu.name), s.count,
                         short_number(c.cache / 1e9), short_number(c.sequences * context), rate(1), rate(16), rate(64));
    }
    if (!found)
      out += fmt::format("{:<16} does not fit {} of them, the most it can be divided over\n", printable(gpu.name),
                         m.config.o_groups);
  }
  return out + "Bounds in tokens/s. --gpu NAME [--count N] shows one of them in full.\n";
}

}  // namespace fathom::plan
