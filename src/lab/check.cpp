#include "lab/check.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>

namespace fathom::lab {

Target cpu_target() {
  Target target;
  target.device.backend = ops::Backend::cpu;
  const long cache = sysconf(_SC_LEVEL3_CACHE_SIZE);
  target.device.l2_bytes = cache > 0 ? cache : 32 << 20;  // the last level is what "cold" must exceed
  return target;
}

Target gpu_target() {
  return {gpu::current().info, Guards::zones};
}

double relative_l2(const Buffer& buffer, std::span<const std::byte> got, const std::vector<double>& truth) {
  double error = 0, norm = 0;
  for (size_t i = 0; i < truth.size(); ++i) {
    const double g = element(buffer.type, got.data(), static_cast<int64_t>(i)), w = truth[i];
    if (std::isnan(w)) continue;  // the truth has nothing to say here
    if (g == w) {
      norm += std::isfinite(w) ? w * w : 0;
      continue;
    }  // infinities that agree
    if (!std::isfinite(g) || !std::isfinite(w)) return INFINITY;
    error += (g - w) * (g - w), norm += w * w;
  }
  return norm > 0 ? std::sqrt(error / norm) : std::sqrt(error);
}

Expected expect(const Case& c) {
  const Implementation* ref = c.find("ref");
  if (!ref) throw std::logic_error(c.op + " has no variant ref");
  const Target target = cpu_target();
  Placement place(c, ops::Backend::cpu, Guards::none);
  place.load(c);
  Workspace workspace(ops::Backend::cpu, ref->workspace(place.addresses(), target.device));
  ref->run(place.addresses(), {target.device, workspace.data(), nullptr});
  Expected expected{place.fetch(), {}};
  const Addresses at = c.host_addresses();
  for (const Truth& t : c.truths) expected.truths.push_back(t.values(at));
  return expected;
}

Verdict judge(const Case& c, Contents& got, const Expected& expected) {
  Verdict verdict;
  const auto bad = [&](std::string message) {
    if (verdict.ok) verdict.message = std::move(message);
    verdict.ok = false;
  };
  for (size_t i = 0; i < c.buffers.size(); ++i) {
    if (c.buffers[i].role == Role::in) continue;
    const Difference d = compare(c.buffers[i], got[i], expected.contents[i]);
    if (c.buffers[i].tolerance.kind != Tolerance::Kind::by_property)  // codes without their scales say nothing
      verdict.relative_l2 = std::max(verdict.relative_l2, d.relative_l2);
    verdict.worst_ulp = std::max(verdict.worst_ulp, d.worst_ulp);
    if (!d.ok) bad(d.message);
  }
  for (size_t i = 0; i < c.truths.size(); ++i) {
    const Truth& t = c.truths[i];
    const Buffer& b = c.buffers[static_cast<size_t>(t.buffer)];
    const double error = relative_l2(b, got[static_cast<size_t>(t.buffer)], expected.truths[i]);
    verdict.truth_l2 = std::max(verdict.truth_l2, error);
    if (!(error <= t.limit))
      bad(fmt::format("{}: relative L2 {:.3g} against double precision, limit {:.3g}", b.name, error, t.limit));
  }
  Contents want = expected.contents;
  for (const auto& property : c.properties)
    if (std::string wrong = property(addresses_of(got), addresses_of(want)); !wrong.empty()) bad(std::move(wrong));
  return verdict;
}

namespace {

void run_once(const Implementation& variant, const Addresses& addresses, const Target& target, void* workspace) {
  if (variant.backend == ops::Backend::cpu) return variant.run(addresses, {target.device, workspace, nullptr});
  gpu::run_on_stream([&](void* stream) { variant.run(addresses, {target.device, workspace, stream}); });
}

}  // namespace

Verdict check(const Case& c, const Implementation& variant, const Expected& expected, const Target& target) try {
  Placement place(c, variant.backend, target.guards);
  place.load(c);
  Workspace workspace(variant.backend, variant.workspace(place.addresses(), target.device));
  run_once(variant, place.addresses(), target, workspace.data());
  Contents got = place.fetch();
  if (std::string wrong = place.damage(c, got); !wrong.empty()) return {false, wrong};
  Verdict verdict = judge(c, got, expected);
  if (!verdict.ok) return verdict;

  const auto same_bits = [&](std::string_view what) {
    const Contents again = place.fetch();
    for (size_t i = 0; i < got.size() && verdict.ok; ++i) {
      if (again[i] == got[i]) continue;
      const auto at = std::mismatch(got[i].begin(), got[i].end(), again[i].begin()).first - got[i].begin();
      verdict.ok = false;
      verdict.message = fmt::format("{}: {} gave other bits, from byte {} on", c.buffers[i].name, what, at);
    }
  };
  place.load(c);
  run_once(variant, place.addresses(), target, workspace.data());
  same_bits("a second run on the same inputs");
  if (c.change_neighbours && verdict.ok) {
    Case changed = c;
    c.change_neighbours(changed);
    place.load(changed);
    run_once(variant, place.addresses(), target, workspace.data());
    Contents after = place.fetch();
    verdict.message = c.first_token_kept(addresses_of(got), addresses_of(after));
    verdict.ok = verdict.message.empty();
  }
  if (!variant.run_token || !verdict.ok) return verdict;
  place.load(c);
  // A smaller batch may want more scratch memory than a large one (a finer split), so there is room to spare.
  Workspace alone(variant.backend, 4 * variant.workspace(place.addresses(), target.device) + (1 << 20));
  for (int64_t t = 0; t < c.tokens; ++t) {
    const auto run = [&](void* stream) {
      variant.run_token(place.addresses(), t, {target.device, alone.data(), stream});
    };
    if (variant.backend == ops::Backend::cpu)
      run(nullptr);
    else
      gpu::run_on_stream(run);
  }
  same_bits("running each token alone");
  if (!verdict.ok) return verdict;
  // Scratch memory serves launches of all sizes: what single tokens have left there must not matter.
  place.load(c);
  run_once(variant, place.addresses(), target, alone.data());
  same_bits("a run in scratch memory that single tokens have used");
  return verdict;
} catch (const gpu::Failure&) {
  throw;
} catch (const std::exception& e) {
  return {false, fmt::format("threw: {}", e.what())};
}

}  // namespace fathom::lab
