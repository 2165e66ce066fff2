// The fixed texts and token spellings of the DeepSeek-V4 chat protocol.
//
// They are interface data: the model was trained on exactly these bytes, so they are never to be edited. A test checks
// their lengths and SHA-256 against DeepSeek-V4 notes, sections 6 and 6.1.
#pragma once

#include <string_view>

namespace fathom::text::protocol {

inline constexpr std::string_view kBegin = "<｜begin▁of▁sentence｜>";
inline constexpr std::string_view kEnd = "<｜end▁of▁sentence｜>";
inline constexpr std::string_view kUser = "<｜User｜>";
inline constexpr std::string_view kAssistant = "<｜Assistant｜>";
inline constexpr std::string_view kThink = "<think>";
inline constexpr std::string_view kThinkEnd = "</think>";
inline constexpr std::string_view kDsml = "｜DSML｜";
inline constexpr std::string_view kReminder = "<｜latest_reminder｜>";

/// Tasks of a message and their tokens. Only the first stands behind a whole assistant header.
struct Task {
  std::string_view name, token;
};
inline constexpr Task kTasks[] = {
    {"action", "<｜action｜>"}, {"query", "<｜query｜>"}, {"authority", "<｜authority｜>"},
    {"domain", "<｜domain｜>"}, {"title", "<｜title｜>"}, {"read_url", "<｜read_url｜>"},
};

inline constexpr std::string_view kToolResult = "<tool_result>";
inline constexpr std::string_view kToolResultEnd = "</tool_result>";

/// Stands before the schemas of the tools, one a line.
inline constexpr std::string_view kToolsBefore =
    "## Tools\n"
    "\n"
    "You have access to a set of tools to help answer the user's question. You can invoke tools by "
    "writing a \"<｜DSML｜tool_calls>\" block like the following:\n"
    "\n"
    "<｜DSML｜tool_calls>\n"
    "<｜DSML｜invoke name=\"$TOOL_NAME\">\n"
    "<｜DSML｜parameter name=\"$PARAMETER_NAME\" "
    "string=\"true|false\">$PARAMETER_VALUE</｜DSML｜parameter>\n"
    "...\n"
    "</｜DSML｜invoke>\n"
    "<｜DSML｜invoke name=\"$TOOL_NAME2\">\n"
    "...\n"
    "</｜DSML｜invoke>\n"
    "</｜DSML｜tool_calls>\n"
    "\n"
    "String parameters should be specified as is and set `string=\"true\"`. For all other types "
    "(numbers, booleans, arrays, objects), pass the value in JSON format and set "
    "`string=\"false\"`.\n"
    "\n"
    "If thinking_mode is enabled (triggered by <think>), you MUST output your complete reasoning "
    "inside <think>...</think> BEFORE any tool calls or final response.\n"
    "\n"
    "Otherwise, output directly after </think> with tool calls or final response.\n"
    "\n"
    "### Available Tool Schemas\n"
    "\n";
/// Stands behind them.
inline constexpr std::string_view kToolsAfter =
    "\n"
    "\n"
    "You MUST strictly follow the above defined tool name and parameter schemas to invoke tool "
    "calls.\n";

inline constexpr std::string_view kResponseFormat =
    "## Response Format:\n"
    "\n"
    "You MUST strictly adhere to the following schema to reply:\n";

/// Effort "max" of the preview revision and "high" of revision 0731.
inline constexpr std::string_view kEffortAbsolute =
    "Reasoning Effort: Absolute maximum with no shortcuts permitted.\n"
    "You MUST be very thorough in your thinking and comprehensively decompose the problem to resolve "
    "the root cause, rigorously stress-testing your logic against all potential paths, edge cases, "
    "and adversarial scenarios.\n"
    "Explicitly write out your entire deliberation process, documenting every intermediate step, "
    "considered alternative, and rejected hypothesis to ensure absolutely no assumption is left "
    "unchecked.\n"
    "\n";
/// Effort "max" of revision 0731.
inline constexpr std::string_view kEffortBeyond =
    "Reasoning Effort: Beyond maximum — exhaustive, relentless, and uncompromising.\n"
    "You MUST reason with the utmost depth and rigor, leaving absolutely nothing to chance: "
    "exhaustively decompose the problem into its most fundamental components, trace every causal "
    "chain to its root, and resolve the underlying cause rather than any surface symptom.\n"
    "Do not stop reasoning until you have independently verified the solution from multiple angles "
    "and are certain that no assumption remains unchecked and no error remains undiscovered.\n"
    "\n";

}  // namespace fathom::text::protocol
