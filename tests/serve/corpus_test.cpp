// Recorded exchanges (corpus/*.json): each request is sent again, and the answer must be the recorded one: status,
// headers, and the body or every event in its order. The in-box model decodes greedily; what changes from run to run
// (ids, times) is written the same way in both. corpus/record.sh records them anew and shows what changed.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <regex>

#include "base/file.h"
#include "lab/cpu_rates.h"
#include "serve/running_server.h"

namespace fathom::serve::test {
namespace {

namespace fs = std::filesystem;
using text::JsonValue;
using Kind = JsonValue::Kind;

const fs::path kFolder = FATHOM_SOURCE_DIR "/tests/serve/corpus";

/// Ids and times as they do not change.
std::string settled(const std::string& text) {
  static const std::regex id("[0-9a-f]{24}"),
      time("(\"(created|created_at|completed_at|seconds|age|took)\": ?)[0-9.e+-]+"),
      number("(\"(id|request_id)\": ?\")req-[^\"]*");
  return std::regex_replace(std::regex_replace(std::regex_replace(text, id, "ID"), time, "$010"), number, "$01ID");
}

/// The body as JSON if it is, else as text; a stream as its events.
std::string recorded(const Answer& a) {
  std::string headers;
  for (const auto& [name, value] : a.headers)
    for (const char* kept : {"content-type", "x-fathom-warning", "retry-after", "allow", "www-authenticate",
                             "access-control-allow-origin"})
      if (name == kept)
        headers +=
            fmt::format("{}{}: {}", headers.empty() ? "" : ", ", text::json_quoted(name), text::json_quoted(value));
  std::string body;
  if (a.header("content-type").starts_with("text/event-stream")) {
    for (size_t at = 0; at < a.body.size();) {
      const size_t end = std::min(a.body.find("\n\n", at), a.body.size());
      std::string event = a.body.substr(at, end - at), name;
      at = end + 2;
      if (event.starts_with(":")) continue;
      if (event.starts_with("event: ")) {
        name = event.substr(7, event.find('\n') - 7);
        event.erase(0, event.find('\n') + 1);
      }
      EXPECT_TRUE(event.starts_with("data: ")) << event;
      const std::string data = event.substr(6);
      body += body.empty() ? "\n" : ",\n";
      body += "     {";
      if (!name.empty()) body += fmt::format("\"event\": {}, ", text::json_quoted(name));
      body += "\"data\": " + (text::is_strict_json(data) ? data : text::json_quoted(data)) + "}";
    }
    body = "\"events\": [" + body + "]";
  } else {
    std::string bare = a.body;
    while (bare.ends_with('\n')) bare.pop_back();
    body = text::is_strict_json(bare) ? "\"body\": " + bare : "\"text\": " + text::json_quoted(a.body);
  }
  return settled(fmt::format("{{\"status\": {}, \"headers\": {{{}}},\n    {}}}", a.status, headers, body));
}

/// Log probabilities may differ in their last digits from one processor to the next.
bool same_number(const std::string& a, const std::string& b) {
  const bool whole = a.find_first_of(".e") == std::string::npos && b.find_first_of(".e") == std::string::npos;
  return whole ? a == b : std::abs(std::stod(a) - std::stod(b)) < 0.02;
}

/// Where the values first differ; empty: nowhere.
std::string difference(const JsonValue& want, const JsonValue& got, const std::string& place) {
  const auto differ = [&] { return fmt::format("{}: {} instead of {}", place, write_json(got), write_json(want)); };
  if (want.kind != got.kind || want.truth != got.truth) return differ();
  if (want.is(Kind::number) ? !same_number(want.text, got.text) : want.text != got.text) return differ();
  if (want.items.size() != got.items.size() || want.members.size() != got.members.size()) return differ();
  for (size_t i = 0; i < want.items.size(); ++i)
    if (auto d = difference(want.items[i], got.items[i], fmt::format("{}[{}]", place, i)); !d.empty()) return d;
  for (size_t i = 0; i < want.members.size(); ++i) {
    const auto& [name, value] = want.members[i];
    if (got.members[i].name != name) return differ();
    if (auto d = difference(value, got.members[i].value, place + "." + name); !d.empty()) return d;
  }
  return "";
}

/// The servers that exchanges are played against. `says` is what the stub says next.
struct Players {
  std::mutex mutex;
  std::vector<int32_t> says;
  std::unique_ptr<StubBackend> stub;
  std::unique_ptr<RunningServer> server;
  std::unique_ptr<Client> first;  // takes the only place of a full server

  explicit Players(const std::string& kind) {
    ServeOptions o = quiet_options();
    if (kind == "fairy") {
      server = std::make_unique<RunningServer>(o);
      return;
    }
    stub = std::make_unique<StubBackend>(
        [this](const GenerationRequest& r) {
          const std::lock_guard lock(mutex);
          auto out = says;
          if (r.max_tokens > 0 && static_cast<int64_t>(out.size()) > r.max_tokens) out.resize(r.max_tokens);
          return out;
        },
        1);
    say("done");
    if (kind == "full") o.max_waiting = 0, stub->paused = true;
    if (kind == "keys") o.api_keys = {"secret"}, o.max_body_mib = 1, o.cors_origins = {"https://page.example"};
    server = std::make_unique<RunningServer>(*stub, o);
    if (kind != "full") return;
    first = std::make_unique<Client>(server->port());
    first->send(post_text("/v1/completions", R"({"prompt":"a"})"));
    while (server->server().service().snapshot().live == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  ~Players() {
    if (stub) stub->paused = false;
  }

  void say(const std::string& text) {
    const std::lock_guard lock(mutex);
    says = ids_of(text);
    says.push_back(static_cast<int32_t>(fairy().config().eos_ids[0]));
  }

  Answer play(const JsonValue& exchange) {
    if (const JsonValue* text = exchange.find("says")) say(text->text);
    const JsonValue& request = *exchange.find("request");
    Client client(server->port());
    if (const JsonValue* raw = request.find("raw")) {
      const JsonValue* fill = request.find("fill");  // so many more bytes
      client.send(raw->text + (fill ? std::string(std::stoul(fill->text), 'x') : ""));
      return client.read();
    }
    std::string body, headers;
    if (const JsonValue* json = request.find("body")) body = write_json(*json);
    if (const JsonValue* text = request.find("text")) body = text->text;
    if (const JsonValue* more = request.find("headers"))
      for (const auto& [name, value] : more->members) headers += name + ": " + value.text + "\r\n";
    std::string bytes = post_text(request.find("path")->text, body, headers);
    if (const JsonValue* method = request.find("method")) bytes = method->text + bytes.substr(4);
    client.send(bytes);
    return client.read();
  }
};

/// A file again, with the answers of now.
void write_corpus(const fs::path& file, const std::string& kind, const JsonValue& exchanges,
                  const std::vector<std::string>& answers) {
  std::ofstream out(file, std::ios::binary);
  out << "{\"server\": " << text::json_quoted(kind) << ", \"exchanges\": [";
  for (size_t i = 0; i < answers.size(); ++i) {
    out << (i ? ",\n" : "\n") << " {";
    for (const auto& [name, value] : exchanges.items[i].members)
      if (name != "response") out << text::json_quoted(name) << ": " << write_json(value) << ",\n  ";
    out << "\"response\": " << answers[i] << "}";
  }
  out << "\n]}\n";
}

class Corpus : public testing::TestWithParam<std::string> {};

TEST_P(Corpus, IsAnsweredAsRecorded) {
  const fs::path file = kFolder / (GetParam() + ".json");
  const JsonValue all = json(read_file(file, 1 << 24));
  const std::string kind = at(all, "server");
  const JsonValue& exchanges = *all.find("exchanges");
  ASSERT_FALSE(exchanges.items.empty());
  Players players(kind);
  std::vector<std::string> answers;
  // Vectors of another width add in another order, and a greedy choice between nearly equal tokens may go the other
  // way.
  const bool same_bits = kind != "fairy" || lab::cpu_instruction_set() == std::string_view("AVX3");
  std::string others;
  for (const JsonValue& exchange : exchanges.items) {
    answers.push_back(recorded(players.play(exchange)));
    if (std::getenv("CORPUS_WRITE")) continue;
    const JsonValue* want = exchange.find("response");
    ASSERT_TRUE(want) << at(exchange, "name");
    const std::string other = difference(*want, json(answers.back()), "response");
    if (same_bits || other.empty())
      EXPECT_EQ(other, "") << at(exchange, "name");
    else
      others += "; " + at(exchange, "name") + ": " + other;
  }
  if (!others.empty()) GTEST_SKIP() << "other tokens than with the vectors that recorded them (AVX3)" << others;
  if (const char* folder = std::getenv("CORPUS_WRITE"))
    write_corpus(fs::path(folder) / file.filename(), kind, exchanges, answers);
}

std::vector<std::string> corpus_files() {
  std::vector<std::string> out;
  for (const auto& entry : fs::directory_iterator(kFolder))
    if (entry.path().extension() == ".json") out.push_back(entry.path().stem().string());
  std::sort(out.begin(), out.end());
  return out;
}

INSTANTIATE_TEST_SUITE_P(Recorded, Corpus, testing::ValuesIn(corpus_files()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace fathom::serve::test
