// The check behind `fathom check --drafts`: it passes where drafts change nothing, and notices where they do.
#include "engine/draft_check.h"

#include <gtest/gtest.h>

#include "cache/model_support.h"
#include "engine/engine.h"

namespace fathom::test {
namespace {

const LoadedModel& fairy() {
  static const auto model = load_model(source_dir() / "models/fairy", LoadOptions{true, {}, {}});
  return *model;
}

TEST(DraftCheck, OfSixtyPromptsFindsTheTokensAndTheStreamedTextOfPlainDecoding) {
  const CheckResult r = drafts_change_nothing(fairy(), {"cpu", kSanitized ? 4 : 60});
  EXPECT_EQ(r.verdict, Verdict::passed) << r.detail;
  EXPECT_NE(r.detail.find(": 0 differ"), std::string::npos) << r.detail;
}

TEST(DraftCheck, NoticesDraftsThatAreTakenForRight) {
  const CheckResult r = drafts_change_nothing(fairy(), {"cpu", 4, 0.5});
  EXPECT_EQ(r.verdict, Verdict::failed);
  EXPECT_EQ(r.detail.find(": 0 differ"), std::string::npos) << r.detail;
}

TEST(DraftCheck, IsSkippedWithoutDrafts) {
  const auto plain = load_model(source_dir() / "models/fairy");
  EXPECT_EQ(drafts_change_nothing(*plain, {}).verdict, Verdict::skipped);
}

}  // namespace
}  // namespace fathom::test
