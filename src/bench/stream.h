// What a streamed answer of the chat and completions APIs means for a record.
#pragma once

#include <string>
#include <string_view>

#include "bench/record.h"

namespace fathom::bench {

/// Takes the bytes of a text/event-stream body as they come, in pieces of any size.
class AnswerStream {
 public:
  explicit AnswerStream(RequestRecord& record) : record_(record) {}

  /// `now`: seconds of the level at which the bytes arrived.
  void feed(std::string_view bytes, double now);
  /// The body is complete. A stream that did not say [DONE] and gave no finish reason is an error of the record.
  void finish(double now);

 private:
  void line(std::string_view text, double now);

  RequestRecord& record_;
  std::string pending_, text_;
  bool done_ = false;
};

/// The one answer of a server that does not stream.
void read_answer(std::string_view body, double now, RequestRecord& record);

/// Message of an error body, or its beginning; with the HTTP status in front.
std::string error_text(int status, std::string_view body);

/// Id of the first model in the answer of /v1/models; empty when there is none.
std::string first_model(std::string_view body);

struct RequestText {
  std::string model, prompt;
  int64_t max_tokens = 0;
  double temperature = 0;
  bool chat = true, ignore_end = true;
};
/// The JSON body of a streamed request.
std::string request_body(const RequestText& r);

}  // namespace fathom::bench
