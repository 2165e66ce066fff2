// The lab must notice every way in which a variant can be wrong. The op here doubles T rows of 8 bf16 numbers.
#include "lab/check.h"

#include <gtest/gtest.h>

#include "lab/cases/common.h"
#include "lab/session.h"
#include "lab/timing.h"

namespace fathom::lab {
namespace {

struct DoubleArgs {
  View<const bf16, 2> x;
  View<bf16, 2> y;  // rows may be strided
  bf16* beyond = nullptr;
};

void twice(const DoubleArgs& a, const ops::Launch&) {
  for (int64_t t = 0; t < a.x.size[0]; ++t)
    for (int64_t i = 0; i < a.x.size[1]; ++i) a.y(t, i) = to_bf16(2 * to_float(a.x(t, i)));
}

using Body = void (*)(const DoubleArgs&, const ops::Launch&);

Case doubling(Body run, Tolerance tolerance = Tolerance::exact()) {
  static ops::Variant<DoubleArgs> variants[2];
  variants[0] = {"ref", ops::Backend::cpu, ops::always<DoubleArgs>, nullptr, twice};
  variants[1] = {"other", ops::Backend::cpu, ops::always<DoubleArgs>,
                 [](const DoubleArgs&, const ops::DeviceInfo&) -> size_t { return 64; }, run};
  Rng rng(5);
  Case c;
  c.op = "double";
  const Strides rows{3, 8, 12};
  const auto x = c.in<bf16>("x", 24);
  fill_normal(x.values, 1.0f, rng);
  const auto y = c.out<bf16>("y", rows.elements(), tolerance, rows.stride);
  c.bind<DoubleArgs>(
      ops::Variants<DoubleArgs>(variants),
      [=](const Addresses& a) {
        return DoubleArgs{View<const bf16, 2>(x.at(a), int64_t{3}, int64_t{8}), view2<bf16>(y.at(a), rows),
                          y.at(a) + rows.elements()};
      },
      [](DoubleArgs a, int64_t t) {
        a.x = a.x.rows(t, 1), a.y = a.y.rows(t, 1);
        return a;
      },
      3);
  return c;
}

Verdict verdict_of(Body run, Tolerance tolerance = Tolerance::exact()) {
  const Case c = doubling(run, tolerance);
  return check(c, *c.find("other"), expect(c), cpu_target());
}

void expect_caught(Body run, const char* words, Tolerance tolerance = Tolerance::exact()) {
  const Verdict v = verdict_of(run, tolerance);
  EXPECT_FALSE(v.ok);
  EXPECT_NE(v.message.find(words), std::string::npos) << v.message;
}

TEST(Check, PassesWhatIsRight) {
  const Verdict v = verdict_of(twice);
  EXPECT_TRUE(v.ok) << v.message;
}

TEST(Check, CatchesAWrongElement) {
  expect_caught(
      [](const DoubleArgs& a, const ops::Launch& l) {
        twice(a, l);
        a.y(a.y.size[0] - 1, 7).bits ^= 1;
      },
      "y: element");
}

TEST(Check, CatchesAnElementThatIsNotWritten) {
  const Body run = [](const DoubleArgs& a, const ops::Launch&) {
    for (int64_t t = 0; t < a.x.size[0]; ++t)
      for (int64_t i = 0; i < 7; ++i) a.y(t, i) = to_bf16(2 * to_float(a.x(t, i)));
  };
  expect_caught(run, "not written", Tolerance::bf16_ulp(1000));
  expect_caught(run, "not written", Tolerance::relative_l2(1000));
  expect_caught(run, "not written", Tolerance::by_property());
}

TEST(Check, CatchesAWriteBetweenRows) {
  expect_caught(
      [](const DoubleArgs& a, const ops::Launch& l) {
        twice(a, l);
        (&a.y(0, 0))[9] = bf16{0};
      },
      "column 9", Tolerance::relative_l2(1000));
}

TEST(Check, CatchesAWriteBehindTheBuffer) {
  expect_caught(
      [](const DoubleArgs& a, const ops::Launch& l) {
        twice(a, l);
        a.beyond[3] = bf16{0};
      },
      "memory outside");
}

TEST(Check, CatchesAChangedInput) {
  expect_caught(
      [](const DoubleArgs& a, const ops::Launch& l) {
        twice(a, l);
        const_cast<bf16&>(a.x(0, 0)).bits ^= 1;
      },
      "input was changed");
}

TEST(Check, CatchesResultsThatDependOnTheLastRun) {
  expect_caught(
      [](const DoubleArgs& a, const ops::Launch& l) {
        twice(a, l);
        auto* runs = static_cast<int32_t*>(l.workspace);  // zero at the first run only
        if (++*runs == 2) a.y(0, 0).bits ^= 1;
      },
      "second run");
}

TEST(Check, CatchesResultsThatDependOnTheBatch) {
  expect_caught(
      [](const DoubleArgs& a, const ops::Launch& l) {
        twice(a, l);
        if (a.x.size[0] == 1) a.y(0, 0).bits ^= 1;
      },
      "each token alone");
}

TEST(Check, CatchesResultsThatDependOnOtherTokens) {
  Case c = doubling([](const DoubleArgs& a, const ops::Launch& l) {
    twice(a, l);
    if (to_float(a.x(2, 0)) == 77) a.y(0, 0).bits ^= 1;
  });
  c.change_neighbours = [](Case& changed) {
    reinterpret_cast<bf16*>(changed.buffers[0].bytes.data())[16] = to_bf16(77);
  };
  c.first_token_kept = [](const Addresses& before, const Addresses& after) -> std::string {
    return std::equal(before[1], before[1] + 16, after[1]) ? "" : "token 0 changed";
  };
  const Verdict v = check(c, *c.find("other"), expect(c), cpu_target());
  EXPECT_FALSE(v.ok);
  EXPECT_EQ(v.message, "token 0 changed");
}

TEST(Check, TurnsAnExceptionIntoAVerdict) {
  expect_caught([](const DoubleArgs&, const ops::Launch&) { throw std::runtime_error("no such instruction"); },
                "no such instruction");
}

TEST(Check, ABf16StepIsCountedInSteps) {
  const Body one_step = [](const DoubleArgs& a, const ops::Launch& l) {
    twice(a, l);
    for (int64_t t = 0; t < a.y.size[0]; ++t) ++a.y(t, 3).bits;
  };
  EXPECT_TRUE(verdict_of(one_step, Tolerance::bf16_ulp(1, 0)).ok);
  expect_caught(
      [](const DoubleArgs& a, const ops::Launch& l) {
        twice(a, l);
        for (int64_t t = 0; t < a.y.size[0]; ++t) a.y(t, 3).bits += 2;
      },
      "2 steps of bf16", Tolerance::bf16_ulp(1, 0));
}

TEST(Check, ElementsThatCancelAreJudgedByTheSizeThatTheirOwnRowIsTakenFor) {
  const std::vector<bf16> want = {to_bf16(1e-3f), to_bf16(1e-3f), to_bf16(1e-3f)};
  const auto verdict = [&](size_t changed, std::vector<double> least) {
    Buffer b{"y", Role::out, DType::bf16, Tolerance::bf16_ulp(1, 1e-3, std::move(least)), 1, 256, {}};
    std::vector<bf16> got = want;
    got[changed] = to_bf16(1.5e-3f);
    b.bytes.resize(want.size() * sizeof(bf16));
    return compare(b, std::as_bytes(std::span(got)), std::as_bytes(std::span(want))).ok;
  };
  EXPECT_FALSE(verdict(0, {}));
  EXPECT_TRUE(verdict(0, {1, 0.1}));
  EXPECT_FALSE(verdict(1, {1, 0.1}));
  EXPECT_FALSE(verdict(2, {1, 0.1}));
  EXPECT_TRUE(verdict(2, {0.1, 1}));
}

TEST(Check, OneBadRowFailsEvenWhenTheWholeIsClose) {
  Buffer b{"y", Role::out, DType::f32, Tolerance::relative_l2(1e-2), 4, 256, {}};
  std::vector<float> want(4000, 1.0f), got = want;
  for (int i = 0; i < 4; ++i) got[static_cast<size_t>(i)] = 1.05f;
  b.bytes.resize(want.size() * 4);
  const Difference d = compare(b, std::as_bytes(std::span(got)), std::as_bytes(std::span(want)));
  EXPECT_LT(d.relative_l2, 1e-2);
  EXPECT_FALSE(d.ok);
  EXPECT_NE(d.message.find("row 0"), std::string::npos) << d.message;
}

TEST(Check, InfinitiesMustAgree) {
  Buffer b{"lse", Role::out, DType::f32, Tolerance::relative_l2(1), 2, 256, {}};
  const float inf = std::numeric_limits<float>::infinity();
  const std::vector<float> want = {-inf, 1}, same = want, other = {1, 1};
  EXPECT_TRUE(compare(b, std::as_bytes(std::span(same)), std::as_bytes(std::span(want))).ok);
  EXPECT_FALSE(compare(b, std::as_bytes(std::span(other)), std::as_bytes(std::span(want))).ok);
}

TEST(Check, BuffersLieWhereTheCaseSays) {
  Case c = doubling(twice);
  c.buffers[0].align = 2;
  c.buffers[1].align = 32;
  const Placement place(c, ops::Backend::cpu, Guards::zones);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(place.addresses()[0]) % 4, 2u);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(place.addresses()[1]) % 64, 32u);
}

TEST(Timing, JudgesWhatItTimed) {
  const Case c = doubling(twice);
  Contents got;
  const Timing t = time_case(c, *c.find("other"), cpu_target(), Heat::warm, {0.01, 1 << 20}, &got);
  EXPECT_GT(t.seconds, 0);
  EXPECT_GE(t.samples, 3);
  EXPECT_TRUE(judge(c, got, expect(c)).ok);
}

TEST(Timing, TheFloorIsTheLargerOfBytesAndOperations) {
  Ceilings c;
  c.copy = 100, c.fp32 = 10, c.bf16 = 50;
  EXPECT_DOUBLE_EQ(floor_seconds({1000, 100, Unit::bf16}, c), 10);
  EXPECT_DOUBLE_EQ(floor_seconds({100, 1000, Unit::bf16}, c), 20);
  EXPECT_DOUBLE_EQ(floor_seconds({100, 1000, Unit::fp8}, c), 20);  // no fp8 unit: the next wider one
  EXPECT_DOUBLE_EQ(floor_seconds({100, 1000, Unit::fp32}, c), 100);
}

TEST(Session, RefusesNamesThatDoNotExist) {
  const auto refused = [](Options o, const char* words) {
    try {
      Session session(o);
      ADD_FAILURE() << words;
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find(words), std::string::npos) << e.what();
    }
  };
  refused({.ops = {"attention"}}, "no operation attention");
  refused({.ops = {"embed"}, .variants = {"fast"}}, "no variant fast");
  refused({.ops = {"embed"}, .shapes = {"tiny"}}, "no shape tiny");
  if (!gpu::unavailable().empty()) refused({.ops = {"embed"}, .as = "gb10"}, "needs a GPU");
}

TEST(Session, ChecksAndTimesOneOp) {
  Options o;
  o.ops = {"quantize"}, o.variants = {"ref"}, o.batches = {2}, o.cases = 3, o.seconds = 0.01;
  Session session(o);
  int checks = 0, timings = 0;
  session.check([&](const CheckRow& r) {
    ++checks;
    EXPECT_EQ(r.passed, 3);
    EXPECT_EQ(r.failed, 0);
  });
  EXPECT_EQ(checks, 1);
  session.time([&](const TimingRow& r) {
    ++timings;
    EXPECT_EQ(r.failure, "");
    EXPECT_EQ(r.judged, "reference");
    EXPECT_GT(r.floor, 0);
  });
  EXPECT_EQ(timings, 4);  // two shapes, cold and warm
}

TEST(Cases, TheSameSeedGivesTheSameCase) {
  for (const OpCases& op : all_ops()) {
    const Case a = op.random(3), b = op.random(3), other = op.random(4);
    ASSERT_EQ(a.buffers.size(), b.buffers.size());
    bool differs = other.buffers.size() != a.buffers.size() || other.shape != a.shape;
    for (size_t i = 0; i < a.buffers.size(); ++i) {
      EXPECT_EQ(a.buffers[i].bytes, b.buffers[i].bytes) << op.op;
      if (!differs) differs = a.buffers[i].bytes != other.buffers[i].bytes;
    }
    EXPECT_TRUE(differs) << op.op;
  }
}

}  // namespace
}  // namespace fathom::lab
