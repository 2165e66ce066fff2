// A plan as people and programs read it: what fits, the bound of each batch and context, and the formulas behind.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "plan/bound.h"

namespace fathom::plan {

/// A measured rate to put beside its bound.
struct Measured {
  double batch = 0, context = 0;  // context 0: any
  double tokens_per_second = 0;
};

struct Question {
  Model model;
  Devices devices;
  std::vector<double> batches, contexts;
  double accepted = 0;  // tokens of a request that come out of a verification; 0: no speculation
  std::vector<Measured> measured;
};

struct Row {
  double batch = 0, context = 0;
  StepBound plain;
  StepBound drafted;    // when the question has `accepted`
  double measured = 0;  // tokens a second; 0: none
  bool fits = true;     // that many sequences of that context
};

struct Answer {
  Question question;
  std::vector<Capacity> capacities;  // one for each context
  std::vector<Row> rows;             // contexts x batches
};

Answer answer(Question question);

std::string text_report(const Answer& a);
/// Every number of the first row with its formula.
std::string explanation(const Answer& a);
/// One JSON document, schema "fathom-plan-1" (docs/planning.md), ends with a newline.
std::string json_report(const Answer& a);

/// One line for each GPU of the table: the fewest of them that hold the model, and what they bound.
std::string survey(const Model& m, const GpuTable& table, const Devices& like, double context);

/// Shares of the tokens from a file with one line for each expert, "ID COUNT" or "COUNT" alone; '#' starts a comment.
/// Throws Error with the line.
Routing read_routing(const std::filesystem::path& file, int experts);

/// Results of `fathom bench --json` (or any file with "levels": [{"concurrency", "output_tokens_per_second"}]).
std::vector<Measured> read_measured(const std::filesystem::path& file);

}  // namespace fathom::plan
