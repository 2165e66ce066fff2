// The C interface as a careless program would use it.
#include <fathom/kernels.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

namespace {

struct Call {
  std::vector<uint16_t> q = std::vector<uint16_t>(2 * 4 * 512), out = std::vector<uint16_t>(2 * 4 * 512);
  std::vector<uint8_t> pool = std::vector<uint8_t>(576 * 65);
  std::vector<int32_t> index = {0, 1, 2, 3};
  fathom_device device{};
  fathom_sparse_attention_args args{};

  Call() {
    device.size = sizeof device;
    EXPECT_EQ(fathom_device_info(FATHOM_CPU, &device), FATHOM_OK);
    args.size = sizeof args;
    args.tokens = 2, args.heads = 4;
    args.q = q.data(), args.q_token_stride = 4 * 512, args.q_head_stride = 512;
    args.window = {pool.data(), 576 * 65, 64, 0, index.data(), 2, 2, nullptr};
    args.scale = 0.044f;
    args.out = out.data(), args.out_token_stride = 4 * 512, args.out_head_stride = 512;
  }
  fathom_status run() const { return fathom_sparse_attention(&args, &device, nullptr, 0, nullptr); }
};

void expect_refused(const Call& call, const char* part) {
  EXPECT_EQ(call.run(), FATHOM_BAD_ARGUMENT) << part;
  EXPECT_NE(std::string(fathom_last_error()).find(part), std::string::npos) << fathom_last_error();
  size_t bytes = 0;
  EXPECT_EQ(fathom_sparse_attention_workspace(&call.args, &call.device, &bytes), FATHOM_BAD_ARGUMENT) << part;
}

TEST(KernelsInterface, RunsAndClearsTheLastError) {
  Call call;
  call.args.q = nullptr;
  EXPECT_NE(call.run(), FATHOM_OK);
  EXPECT_STRNE(fathom_last_error(), "");
  call.args.q = call.q.data();
  EXPECT_EQ(call.run(), FATHOM_OK) << fathom_last_error();
  EXPECT_STREQ(fathom_last_error(), "");
}

TEST(KernelsInterface, NamesTheArgumentThatIsWrong) {
  const auto with = [](auto change) {
    Call call;
    change(call.args);
    return call;
  };
  using A = fathom_sparse_attention_args;
  expect_refused(with([](A& a) { a.q = nullptr; }), "q is null");
  expect_refused(with([](A& a) { a.out = nullptr; }), "out and out_codes");
  expect_refused(with([](A& a) { a.heads = 0; }), "heads");
  expect_refused(with([](A& a) { a.tokens = -1; }), "tokens");
  expect_refused(with([](A& a) { a.row_format = 7; }), "row_format");
  expect_refused(with([](A& a) { a.scale = 0; }), "scale");
  expect_refused(with([](A& a) { a.q_token_stride = 100; }), "q_token_stride");
  expect_refused(with([](A& a) { a.out_head_stride = 100; }), "out_head_stride");
  expect_refused(with([](A& a) { a.window.pool = nullptr; }), "window: pool");
  expect_refused(with([](A& a) { a.window.page_rows = 0; }), "page_rows");
  expect_refused(with([](A& a) { a.window.page_stride = 584; }), "page_stride");
  expect_refused(with([](A& a) { a.window.index_stride = 1; }), "index_stride");
  expect_refused(with([](A& a) { a.window.most_rows = -1; }), "most_rows");
  expect_refused(with([](A& a) { a.window.index = nullptr; }), "index is null");
  expect_refused(with([](A& a) { a.extra.most_rows = 5; }), "extra");
  expect_refused(with([](A& a) { a.out_codes = reinterpret_cast<uint8_t*>(a.out); }), "out_scale");
  expect_refused(with([](A& a) { a.rope_freq = &a.scale; }), "position and rope_freq");
  expect_refused(with([](A& a) { a.variant = "fastest"; }), "fastest");
}

TEST(KernelsInterface, RefusesStructsOfAnotherSize) {
  Call call;
  call.args.size = 0;
  expect_refused(call, "size");
  call.args.size = 1 << 30;
  expect_refused(call, "was not set");
  // A newer program whose extra fields are zero is served, one that uses them is not.
  struct Newer {
    fathom_sparse_attention_args known;
    int64_t added;
  } newer{call.args, 0};
  newer.known.size = sizeof newer;
  EXPECT_EQ(fathom_sparse_attention(&newer.known, &call.device, nullptr, 0, nullptr), FATHOM_OK);
  newer.added = 1;
  EXPECT_EQ(fathom_sparse_attention(&newer.known, &call.device, nullptr, 0, nullptr), FATHOM_UNSUPPORTED);
}

TEST(KernelsInterface, RefusesNullStructsAndEmptyDevices) {
  Call call;
  size_t bytes = 0;
  EXPECT_EQ(fathom_sparse_attention(nullptr, &call.device, nullptr, 0, nullptr), FATHOM_BAD_ARGUMENT);
  EXPECT_EQ(fathom_sparse_attention(&call.args, nullptr, nullptr, 0, nullptr), FATHOM_BAD_ARGUMENT);
  EXPECT_EQ(fathom_sparse_attention_workspace(&call.args, &call.device, nullptr), FATHOM_BAD_ARGUMENT);
  EXPECT_EQ(fathom_device_info(FATHOM_CPU, nullptr), FATHOM_BAD_ARGUMENT);
  call.device.ordinal = 0, call.device.sm_count = 0;
  EXPECT_EQ(fathom_sparse_attention_workspace(&call.args, &call.device, &bytes), FATHOM_BAD_ARGUMENT);
}

TEST(KernelsInterface, NoTokensIsNoWork) {
  Call call;
  call.args.tokens = 0;
  call.args.q = nullptr;
  EXPECT_EQ(call.run(), FATHOM_OK) << fathom_last_error();
}

TEST(KernelsInterface, ATokenWithoutRowsGivesZeros) {
  Call call;
  call.index = {-1, -1, -1, -1};
  call.args.window.index = call.index.data();
  std::ranges::fill(call.out, 0xFFFF);
  ASSERT_EQ(call.run(), FATHOM_OK);
  for (uint16_t v : call.out) ASSERT_EQ(v & 0x7FFF, 0);
}

TEST(KernelsInterface, SaysWhyThereIsNoGpu) {
  fathom_device device{};
  device.size = sizeof device;
  const fathom_status status = fathom_device_info(0, &device);
  if (status == FATHOM_OK) {
    EXPECT_GE(device.compute_capability, 80);
    EXPECT_GT(device.sm_count, 0);
    EXPECT_EQ(fathom_device_info(1000, &device), FATHOM_BAD_ARGUMENT);
  } else {
    EXPECT_EQ(status, FATHOM_NO_GPU);
    EXPECT_NE(std::string(fathom_last_error()).find("no GPU: "), std::string::npos);
  }
}

TEST(KernelsInterface, ListsItsVariants) {
  ASSERT_NE(fathom_sparse_attention_variant(0), nullptr);
  EXPECT_STREQ(fathom_sparse_attention_variant(0), "ref");
  EXPECT_EQ(fathom_sparse_attention_variant(1000), nullptr);
  EXPECT_EQ(fathom_sparse_attention_variant(-1), nullptr);
  Call call;
  call.args.variant = "ref";
  EXPECT_EQ(call.run(), FATHOM_OK) << fathom_last_error();
}

TEST(KernelsInterface, EveryStatusHasWords) {
  for (int s = FATHOM_OK; s <= FATHOM_INTERNAL_ERROR; ++s) EXPECT_STRNE(fathom_status_text(s), "unknown status");
  EXPECT_STREQ(fathom_status_text(99), "unknown status");
}

TEST(KernelsInterface, ExportsNothingElse) {
  FILE* pipe = popen("nm -D --defined-only '" FATHOM_KERNELS_LIBRARY "'", "r");
  ASSERT_NE(pipe, nullptr);
  char line[512];
  int symbols = 0;
  while (std::fgets(line, sizeof line, pipe)) {
    const std::string text = line;
    const size_t name = text.rfind(' ');
    EXPECT_EQ(text.compare(name + 1, 7, "fathom_"), 0) << text;
    ++symbols;
  }
  EXPECT_EQ(pclose(pipe), 0);
  EXPECT_EQ(symbols, 8);
}

}  // namespace
