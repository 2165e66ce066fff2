#include "ops/embed/embed.h"

#include <fmt/format.h>

#include "lab/cases/cases.h"
#include "lab/cases/common.h"

namespace fathom::lab {

namespace {

Case make(int64_t tokens, int64_t vocabulary, int64_t d, bool ragged, Rng& rng) {
  Case c;
  c.op = "embed";
  const Strides table = ragged ? strided(vocabulary, d, 8, rng) : dense(vocabulary, d);
  const Strides streams = ragged ? strided(4 * tokens, d, 8, rng) : dense(4 * tokens, d);
  const auto table_slot = c.in<bf16>("table", table.elements());
  fill_normal(table_slot.values, 0.02f, rng);
  const auto ids = c.in<int32_t>("ids", tokens);
  for (int32_t& id : ids.values) id = static_cast<int32_t>(rng.chance(0.1) ? vocabulary - 1 : rng.below(vocabulary));
  const auto out = c.out<bf16>("streams", streams.elements(), Tolerance::exact(), streams.stride);
  c.cost = {static_cast<double>(tokens) * static_cast<double>(4 + 2 * d + 8 * d), 0, Unit::fp32};
  c.shape = fmt::format("T={} V={} d={}", tokens, vocabulary, d);
  c.bind<ops::EmbedArgs>(ops::embed_variants(), [=](const Addresses& a) {
    ops::EmbedArgs args;
    args.table = view2<const bf16>(table_slot.at(a), table);
    args.ids = View<const int32_t, 1>(ids.at(a), tokens);
    args.streams = view3<bf16>(out.at(a), tokens, 4, streams);
    return args;
  });
  return c;
}

}  // namespace

OpCases embed_cases() {
  const auto random = [](uint64_t seed) {
    Rng rng(seed);
    return make(some_tokens(rng), rng.between(1, 300), 8 * rng.between(1, 70), true, rng);
  };
  const auto timed = [](std::string_view, int64_t batch, uint64_t seed) {
    Rng rng(seed);
    return make(batch, 16384, 4096, false, rng);
  };
  return {"embed", "token rows into four streams", [] { return names_of(ops::embed_variants()); }, random, {"step"},
          timed};
}

}  // namespace fathom::lab
