// What the commands replay, explain, shrink and record do with trace files. They print to stdout,
// complain in one line to stderr, and return the program's exit status.
#pragma once

#include <functional>
#include <string>

#include "sim/trace_file.h"

namespace weightlane::sim {

constexpr int kBadArguments = 2;
int complain(const std::string& text);

struct ToolOptions {
  std::string trace;     // the file
  std::string out;       // shrink: empty: beside the trace, with .small before .trace
  std::string perfetto;  // explain: file for ui.perfetto.dev; empty: none
  uint32_t depth = 1;    // explore
  int jobs = 1;
  int64_t budget_seconds = 60;
  // Switches a planted bug on by its name, or all off ("" as name); false: there is none of that
  // name. Empty in what ships, which runs traces without their bugs.
  std::function<bool(const std::string& name)> plant;
};

int tool_replay(const ToolOptions& options);
int tool_explain(const ToolOptions& options);
int tool_shrink(const ToolOptions& options);
// `trace` is a script (script.h).
int tool_explore(const ToolOptions& options);

}  // namespace weightlane::sim
