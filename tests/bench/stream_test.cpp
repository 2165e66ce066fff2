// Answers as servers send them, cut anywhere.
#include "bench/stream.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "base/error.h"
#include "bench/workload.h"

namespace fathom::bench {
namespace {

const std::string chat =
    ": keep-alive\n\n"
    "data: {\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\r\n\r\n"
    "data: {\"choices\":[{\"index\":0,\"delta\":{\"reasoning_content\":\"hm\"}}]}\n\n"
    "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"Hello \xe4\xb8\x96\"}}]}\n\n"
    "data:{\"choices\":[{\"index\":0,\"delta\":{\"tool_calls\":[{\"index\":0}]}}]}\n\n"
    "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n"
    "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":9,"
    "\"prompt_tokens_details\":{\"cached_tokens\":4},\"completion_tokens_details\":{\"reasoning_tokens\":2}}}\n\n"
    "data: [DONE]\n\n";

RequestRecord read(const std::string& text) {
  RequestRecord r;
  AnswerStream stream(r);
  stream.feed(text, 1.5);
  stream.finish(2);
  return r;
}

TEST(AnswerStream, CountsPiecesWithOutputAndReadsUsage) {
  const RequestRecord r = read(chat);
  EXPECT_EQ(r.error, "");
  EXPECT_EQ(r.pieces.size(), 3u) << "thinking, content and calls are output, a role is not";
  EXPECT_EQ(r.prompt_tokens, 7);
  EXPECT_EQ(r.output_tokens, 9);
  EXPECT_EQ(r.cached_tokens, 4);
  EXPECT_EQ(r.reasoning_tokens, 2);
  EXPECT_EQ(r.finish, "stop");
  EXPECT_DOUBLE_EQ(r.tokens_a_piece(), 3);
}

RC_GTEST_PROP(AnswerStream, DoesNotDependOnHowTheBytesAreCut, ()) {
  RequestRecord r;
  AnswerStream stream(r);
  for (size_t at = 0; at < chat.size();) {
    const auto n = std::min(chat.size() - at, *rc::gen::inRange<size_t>(1, 40));
    stream.feed(std::string_view(chat).substr(at, n), 1);
    at += n;
  }
  stream.finish(2);
  RC_ASSERT(r.error.empty());
  RC_ASSERT(r.pieces.size() == 3u);
  RC_ASSERT(r.output_tokens == 9);
}

TEST(AnswerStream, CompletionsCarryText) {
  const RequestRecord r = read(
      "data: {\"choices\":[{\"text\":\"a\"}]}\n\ndata: "
      "{\"choices\":[{\"text\":\"b\",\"finish_reason\":\"length\"}]}\n");
  EXPECT_EQ(r.pieces.size(), 2u);
  EXPECT_EQ(r.output_tokens, -1);
  EXPECT_EQ(r.tokens(), 2);
  EXPECT_EQ(r.error, "");
}

TEST(AnswerStream, WhatGoesWrongIsAnErrorOfTheRecord) {
  EXPECT_NE(read("data: {\"choices\":[{\"text\":\"a\"}]}\n\n").error.find("ended before"), std::string::npos);
  EXPECT_NE(read("data: {\"error\":{\"message\":\"out of pages\"}}\n\n").error.find("out of pages"), std::string::npos);
  EXPECT_NE(read("data: {\"error\":\"bad\"}\n\n").error.find("bad"), std::string::npos);
  EXPECT_NE(read("data: oops\n\n").error.find("not a JSON object: oops"), std::string::npos);
  EXPECT_NE(read("").error, "");
  EXPECT_NE(read("data: [1]\n\ndata: [DONE]\n").error, "");
  EXPECT_EQ(read("data: {\"choices\":7,\"usage\":[]}\n\ndata: [DONE]\n").pieces.size(), 0u);
}

TEST(Answer, WithoutAStreamIsOnePiece) {
  RequestRecord r;
  read_answer(R"({"choices":[{"message":{"content":"hi"},"finish_reason":"stop"}],"usage":{"completion_tokens":5}})", 3,
              r);
  EXPECT_EQ(r.pieces, std::vector<double>{3});
  EXPECT_EQ(r.output_tokens, 5);
  EXPECT_EQ(error_text(429, R"({"error":{"message":"too many"}})"), "HTTP 429: too many");
  EXPECT_EQ(error_text(502, "<html>"), "HTTP 502: <html>");
  EXPECT_EQ(first_model(R"({"data":[{"id":"m"}]})"), "m");
  EXPECT_EQ(first_model("{}"), "");
}

TEST(RequestBody, NamesWhatIsAskedFor) {
  const std::string body = request_body({.model = "m", .prompt = "a\"b", .max_tokens = 3, .chat = false});
  EXPECT_NE(body.find(R"("prompt":"a\"b")"), std::string::npos) << body;
  EXPECT_NE(body.find(R"("ignore_eos":true)"), std::string::npos);
  EXPECT_NE(body.find(R"("include_usage":true)"), std::string::npos);
  EXPECT_EQ(request_body({.ignore_end = false}).find("ignore_eos"), std::string::npos);
}

TEST(Workload, IsTheSameForTheSameSeedAndStartsDifferently) {
  for (const Content kind : {Content::prose, Content::code, Content::structured, Content::random}) {
    WorkloadOptions o;
    o.content = kind, o.input = {100, 200}, o.seed = 3;
    const Workload a(o), b(o);
    EXPECT_EQ(a.prompt(5).text, b.prompt(5).text);
    EXPECT_NE(a.prompt(5).text.substr(0, 12), a.prompt(6).text.substr(0, 12));
    EXPECT_GT(a.prompt(5).text.size(), 300u);
  }
}

TEST(Workload, SharedPrefixesAreSharedAndLengthsFollowWhatWasSeen) {
  WorkloadOptions o;
  o.shared_prefix = true, o.input = {100, 100}, o.output = {5, 9};
  Workload w(o);
  EXPECT_EQ(w.prompt(1).text, w.prompt(2).text);
  w.calibrate(1000, 500);
  EXPECT_EQ(w.prompt(1).text.size(), 200u);
  for (uint64_t i = 0; i < 50; ++i) {
    EXPECT_GE(w.prompt(i).max_tokens, 5);
    EXPECT_LE(w.prompt(i).max_tokens, 9);
  }
}

TEST(Workload, BadLengthsAreErrors) {
  EXPECT_EQ(parse_lengths("--input", "7").high, 7);
  EXPECT_EQ(parse_lengths("--input", "7..9").low, 7);
  for (const char* bad : {"", "0", "-1", "9..7", "a", "1..", "..2", "1...2", "99999999999999999999", "1 "})
    EXPECT_THROW(parse_lengths("--input", bad), Error) << bad;
}

TEST(Loops, AreFoundAtTheEndOfATextOnly) {
  EXPECT_TRUE(ends_in_loop("and so Run. Run. Run. Run. Run. Run. Run. Run."));
  EXPECT_TRUE(ends_in_loop(std::string(40, 'a')));
  EXPECT_FALSE(ends_in_loop("Run. Run. Run. Run. Run. Run. and then it stopped"));
  EXPECT_FALSE(ends_in_loop("a title\n----------------------------"));
  EXPECT_FALSE(ends_in_loop(""));
}

}  // namespace
}  // namespace fathom::bench
