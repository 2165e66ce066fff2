// The choice of tokens: the kernel, run on emulated threads, and the fast variant of the processor against the
// reference.
#define FATHOM_GPU_EMULATOR
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "ops/gpu_emulator.h"

#include "ops/choose/choose_kernel.cuh"
#include "ops/choose/draw_kernel.cuh"

namespace fathom::ops {

void choose_ref(const ChooseArgs& a, const Launch&);
void choose_cpu(const ChooseArgs& a, const Launch&);

namespace {

#ifdef FATHOM_SANITIZED
constexpr bool kSanitized = true;  // emulated threads are slower still
#else
constexpr bool kSanitized = false;
#endif

struct Rows {
  std::vector<float> logits;
  std::vector<RowSampling> sampling;
  int64_t vocabulary;

  ChooseArgs args(std::vector<int32_t>& token) const {
    token.assign(logits.size() / static_cast<size_t>(vocabulary), -9);
    const auto rows = static_cast<int64_t>(token.size());
    ChooseArgs a{View<const float, 2>(logits.data(), rows, vocabulary), {}, View<int32_t, 1>(token.data(), rows)};
    if (!sampling.empty()) a.sampling = View<const RowSampling, 1>(sampling.data(), rows);
    return a;
  }
};

std::vector<int32_t> by_reference(const Rows& r) {
  std::vector<int32_t> token;
  choose_ref(r.args(token), {});
  std::vector<int32_t> fast;
  choose_cpu(r.args(fast), {});
  EXPECT_EQ(fast, token);
  return token;
}

/// The launches in order, on a GPU of so many SMs, on the exchange that earlier launches have left.
std::vector<int32_t> by_kernel(const Rows& r, uint32_t seed, int sm_count, std::vector<choose::Exchange>& exchange) {
  std::vector<int32_t> token;
  const ChooseArgs a = r.args(token);
  const auto rows = static_cast<int>(token.size());
  if (exchange.size() < token.size()) exchange.assign(token.size(), choose::Exchange{});
  const choose::Parts parts = choose::parts_of(r.vocabulary, rows, sm_count);
  const auto launch =
      [&]<typename Shared>(void (*block)(const ChooseArgs&, choose::Parts, choose::Exchange*, Shared&)) {
        device::emulator::run_grid(
            parts.count, rows, 1, choose::kThreads, sizeof(Shared), false, seed,
            [&](std::byte* shared) { block(a, parts, exchange.data(), *reinterpret_cast<Shared*>(shared)); });
      };
  if (r.sampling.empty()) {
    launch(choose::largest_block<true>);
  } else {
    launch(choose::largest_block<false>);
    launch(choose::weigh_block);
    launch(choose::draw_block);
  }
  return token;
}

TEST(Choose, TakesTheLargestLogitTheLowestIdAmongEqualsAndMarksRowsThatAreNotFinite) {
  std::mt19937 random(5);
  Rows r{std::vector<float>(7 * 9003), {}, 9003};
  for (float& v : r.logits) v = static_cast<float>(random() % 1000) / 100 - 5;  // many ties
  const auto row = [&](int64_t i) { return r.logits.begin() + i * r.vocabulary; };
  row(2)[4000] = NAN;
  row(3)[0] = INFINITY;
  row(4)[r.vocabulary - 1] = 99;
  std::fill(row(5), row(6), -7.0f);
  const auto want = by_reference(r);
  std::vector<choose::Exchange> exchange;
  for (const int sm_count : {132, 8}) EXPECT_EQ(by_kernel(r, 3, sm_count, exchange), want);
  EXPECT_EQ(want[2], kRowNotFinite);
  EXPECT_EQ(want[3], kRowNotFinite);
  EXPECT_EQ(want[4], r.vocabulary - 1);
  EXPECT_EQ(want[5], 0);
}

/// Every filter and every pair of them, and none.
std::vector<RowSampling> all_filters(std::mt19937_64& random) {
  std::vector<RowSampling> all;
  for (const int32_t top_k : {0, 1, 7, 300, 1 << 30})
    for (const double top_p : {1.0, 0.95, 0.4, 1e-9})
      for (const double min_p : {0.0, 0.05, 0.99}) {
        RowSampling how{1.4426950f / (0.3f + static_cast<float>(random() % 100) / 50), top_k, top_p, min_p,
                        random() >> 11};
        if (random() % 8 == 0) how.random = (uint64_t{1} << 53) - 1;
        if (random() % 8 == 0) how.random = 0;
        all.push_back(how);
      }
  return all;
}

TEST(Choose, DrawsTheSameTokenOnEveryDeviceWithAnyFilters) {
  std::mt19937_64 random(17);
  std::vector<choose::Exchange> exchange(64);  // serves launches of all shapes
  for (const int64_t vocabulary : {1, 5, 515, 3001, 20003}) {
    if (kSanitized && vocabulary > 4000) continue;
    Rows r{{}, all_filters(random), vocabulary};
    std::shuffle(r.sampling.begin(), r.sampling.end(), random);  // a part of them, another one for each
    r.sampling.resize(vocabulary > 1000 ? 8 : 20);
    for (size_t i = 0; i < r.sampling.size(); ++i) {
      const bool ties = random() % 4 == 0;
      const float spread = random() % 3 == 0 ? 30.0f : 8.0f;  // of candidates, in powers of e
      for (int64_t v = 0; v < vocabulary; ++v) {
        const float x = static_cast<float>(random() % 10000) / 10000;
        r.logits.push_back(ties ? std::floor(x * 6) : -spread * x + (x < 0.002f ? 3 : 0));
      }
    }
    const auto want = by_reference(r);
    const auto got = by_kernel(r, 11, vocabulary == 3001 ? 4 : 132, exchange);
    int64_t drawn = 0;
    for (size_t i = 0; i < want.size(); ++i) {
      if (got[i] == kRowNotDrawn && vocabulary > choose::kMostCandidates) continue;  // left to the caller
      EXPECT_EQ(got[i], want[i]) << "row " << i << " of " << vocabulary;
      ++drawn;
    }
    EXPECT_GE(drawn, static_cast<int64_t>(want.size()) / 2);
  }
}

/// Rows that are not finite, greedy ones, ones with and without filters, and ones with more candidates than a variant
/// holds, in turn on the same exchange: what a row leaves there must not reach the row that comes next.
TEST(Choose, RowsOfAllKindsBesideEachOtherAndInTurnDoNotDisturbEachOther) {
  constexpr int64_t kVocabulary = 5003;
  std::mt19937_64 random(29);
  enum Kind { nan, infinite, greedy, drawn, filtered, too_many, kinds };
  const auto add = [&](Rows& r, Kind kind) {
    const auto first = static_cast<int64_t>(r.logits.size());
    for (int64_t v = 0; v < kVocabulary; ++v)
      r.logits.push_back(kind == too_many ? 1.0f : static_cast<float>(random() % 10000) / 400);
    float& some = r.logits[static_cast<size_t>(first + static_cast<int64_t>(random() % kVocabulary))];
    if (kind == nan) some = NAN;
    if (kind == infinite) some = INFINITY;
    const float scale = kind == greedy ? 0 : 1.4426950f;
    if (kind == filtered)
      r.sampling.push_back({scale, 40, 0.9, 0.01, random() >> 11});
    else if (kind == too_many)
      r.sampling.push_back({scale, 0, 0.99, 0, random() >> 11});
    else
      r.sampling.push_back({scale, 0, 1, 0, random() >> 11});
  };
  std::vector<choose::Exchange> exchange(kinds);
  for (int round = 0; round < (kSanitized ? 1 : 3); ++round) {
    Rows r{{}, {}, kVocabulary};
    std::vector<Kind> kind;
    for (int i = 0; i < kinds; ++i) add(r, kind.emplace_back(static_cast<Kind>((i + round) % kinds)));
    const auto want = by_reference(r), got = by_kernel(r, 7 + static_cast<uint32_t>(round), 132, exchange);
    for (size_t i = 0; i < kind.size(); ++i) {
      if (kind[i] == nan || kind[i] == infinite) {
        EXPECT_EQ(want[i], kRowNotFinite);
      }
      EXPECT_EQ(got[i], kind[i] == too_many ? kRowNotDrawn : want[i]) << "round " << round << ", kind " << kind[i];
    }
  }
}

TEST(Choose, SharesOfTheDrawsAreTheProbabilities) {
  const std::vector<double> share = {0.5, 0.25, 0.125, 0.125};
  std::vector<float> logits;
  for (const double s : share) logits.push_back(static_cast<float>(std::log(s)));
  std::mt19937_64 random(23);
  Rows r{{}, {}, 4};
  for (int i = 0; i < 40000; ++i) {
    r.logits.insert(r.logits.end(), logits.begin(), logits.end());
    r.sampling.push_back({1.4426950f, 0, 1, 0, random() >> 11});
  }
  std::vector<int32_t> token;
  choose_cpu(r.args(token), {});
  std::vector<double> count(4);
  for (const int32_t id : token) ++count[static_cast<size_t>(id)];
  for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(count[i] / 40000, share[i], 5 * std::sqrt(0.25 / 40000));
}

}  // namespace
}  // namespace fathom::ops
