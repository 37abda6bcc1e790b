// The reader of scripts: a line is taken apart by blanks, and refused with its number when it makes
// no sense.
#include "sim/script.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>

namespace weightlane::sim {
namespace {

using Kind = ScriptStep::Kind;

constexpr const char* kDashes = "----";

std::vector<std::string> words_of(const std::string& line) {
  std::istringstream in(line);
  std::vector<std::string> words;
  for (std::string word; in >> word;) words.push_back(word);
  return words;
}

bool number(const std::string& text, uint64_t& value) {
  char* end = nullptr;
  errno = 0;
  value = std::strtoull(text.c_str(), &end, 10);
  return errno == 0 && !text.empty() && *end == '\0' && text[0] != '-';
}

// "5 s", "20 ms", "300 us".
bool span_of(const std::vector<std::string>& words, size_t at, Nanos& span) {
  uint64_t count = 0;
  if (words.size() != at + 2 || !number(words[at], count)) return false;
  const auto wide = static_cast<int64_t>(count);
  if (words[at + 1] == "s") {
    span = seconds(wide);
  } else if (words[at + 1] == "ms") {
    span = millis(wide);
  } else if (words[at + 1] == "us") {
    span = micros(wide);
  } else {
    return false;
  }
  return true;
}

// Settings. Empty: understood; else what would be right.
std::optional<std::string> read_setting(const std::vector<std::string>& words, Plan& plan) {
  uint64_t value = 0;
  if (words[0] == "shards" || words[0] == "granules") {
    if (words.size() != 2 || !number(words[1], value) || value == 0 || value > 64)
      return words[0] + " NUMBER";
    if (words[0] == "shards") plan.shards = static_cast<uint32_t>(value);
    if (words[0] == "granules") plan.granules[0] = static_cast<uint32_t>(value);
    return "";
  }
  if (words[0] == "set") {
    if (words.size() != 3 || !number(words[2], value) || !set_plan(plan, words[1], value))
      return "set SETTING NUMBER, a setting of a plan, as traces have them";
    return "";
  }
  if (words[0] == "fault") {
    if (words.size() != 3 || !number(words[2], value) ||
        !set_plan(plan, "fault." + words[1], value))
      return "fault NUMBER PER-MILLION";
    return "";
  }
  return std::nullopt;
}

std::string read_step(const std::vector<std::string>& words, ScriptStep& step) {
  const std::string& first = words[0];
  const bool named = words.size() >= 2;
  if (named) step.who = words[1];
  const auto rest = [&words, &step](size_t from) {
    step.words.assign(words.begin() + static_cast<ptrdiff_t>(from), words.end());
  };
  if (first == "replica") {
    step.kind = Kind::kReplica;
    return words.size() == 2 ? "" : "replica NAME";
  }
  if (first == "await" || first == "crash" || first == "restart") {
    step.kind = first == "await" ? Kind::kAwait : first == "crash" ? Kind::kCrash : Kind::kRestart;
    return words.size() == 2 ? "" : first + " NAME";
  }
  if (first == "until") {
    step.kind = Kind::kUntil;
    rest(1);
    return named ? "" : "until WORDS of a line";
  }
  if (first == "pause") {
    step.kind = Kind::kPause;
    return named && span_of(words, 2, step.span) ? "" : "pause HOST 500 ms";
  }
  if (first == "cut") {
    step.kind = Kind::kCut;
    rest(2 <= words.size() ? 2 : words.size());
    const bool known =
        step.words.size() == 1 &&
        (step.words[0] == "data" || step.words[0] == "control" || step.words[0] == "both");
    return known ? "" : "cut HOST data, control or both";
  }
  if (first == "mend") {
    step.kind = Kind::kMend;
    return words.size() == 1 ? "" : "mend";
  }
  if (first == "run") {
    step.kind = Kind::kRun;
    return span_of(words, 1, step.span) ? "" : "run 5 s";
  }
  const size_t at = first == "begin" ? 1 : 0;
  step.kind = at == 1 ? Kind::kBegin : Kind::kCall;
  constexpr const char* kCalls =
      "REPLICA or SHARD, and publish N, unpublish, replicate or update "
      "(N, latest, latest-K), or close; or a step: replica, begin, "
      "await, until, crash, restart, pause, cut, mend, run";
  if (words.size() < at + 2) return kCalls;
  step.who = words[at];
  rest(at + 1);
  const std::string& call = step.words[0];
  const bool alone = call == "unpublish" || call == "close";
  const bool versioned = call == "publish" || call == "replicate" || call == "update";
  return (alone && step.words.size() == 1) || (versioned && step.words.size() == 2) ? "" : kCalls;
}

}  // namespace

Result<Script> parse_script(const std::string& text) {
  Script script;
  Plan& plan = script.plan;
  plan.tensors = 1;
  plan.granules[0] = 4;
  plan.handle.slice_bytes = plan.world.data.granule_bytes;
  plan.handle.window_bytes = plan.world.data.granule_bytes;
  plan.world.data.pieces_most = 1;
  plan.world.order = ReadyOrder::kRandom;  // FIFO, as long as every choice is the dull one
  plan.world.bandwidth.nic_tx = plan.world.bandwidth.nic_rx = 64u << 20;  // a granule: 1 ms
  std::istringstream in(text);
  size_t number = 0;
  bool below = false;
  for (std::string line; std::getline(in, line);) {
    ++number;
    if (below) {
      script.expected += line + "\n";
      continue;
    }
    below = line == kDashes;
    if (below) continue;
    script.text += line + "\n";
    const std::string bare = line.substr(0, line.find('#'));
    const std::vector<std::string> words = words_of(bare);
    if (words.empty()) continue;
    std::optional<std::string> wanted = read_setting(words, plan);
    if (!wanted) {
      ScriptStep step;
      step.line = number;
      wanted = read_step(words, step);
      script.steps.push_back(std::move(step));
    }
    if (!wanted->empty())
      return Error{ErrorCode::kCorrupt, "line " + std::to_string(number) + ": '" + line +
                                            "' is not right here: " + *wanted};
  }
  return script;
}

Result<Script> read_script(const std::string& path) {
  std::ifstream in(path);
  if (!in)
    return Error{ErrorCode::kInvalidArgument, path + ": cannot be read: " + std::strerror(errno)};
  std::ostringstream text;
  text << in.rdbuf();
  Result<Script> script = parse_script(text.str());
  if (!script.ok()) return Error{script.error().code, path + ": " + script.error().message};
  return script;
}

}  // namespace weightlane::sim
