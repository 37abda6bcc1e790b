// Script: a scenario as text, played in a world of its own with all checkers on.
//
//     # Figure 6: ...                    what it shows, for people
//     shards 2                           of every replica, each on a host of its own: t0-0, t0-1
//     granules 4                         of the one tensor of a shard; a READ each
//     set server.drain_ns 20000000       any setting of a plan, by its name
//     fault 1 1000                       a fault's rate, for `explore`: it may happen
//     replica t0
//     replica r0
//     t0 publish 12                      on all shards at once; goes on when all have ended
//     begin t0/0 unpublish               one shard; goes on at once
//     begin r0 replicate latest          publish N, unpublish, replicate and update (N, latest,
//                                        latest-K), close
//     await t0                           until the calls of its shards have ended
//     until proven r0/0 v12 a 2/4        until the story has a line with these words
//     crash t0-0 | restart t0-0 | pause t0-0 500 ms
//     cut t0-0 data | control | both     from everybody else; mend ends all cuts
//     run 5 s                            so much time passes
//     ----
//     what happened: one line per transition, the same whenever the script is played
//
// Every choice is the dull one unless an override says otherwise, so the order is FIFO and nothing
// fails that the script does not break.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "flow/result.h"
#include "sim/checkers.h"
#include "sim/choices.h"
#include "sim/plan.h"

namespace weightlane::sim {

struct ScriptStep {
  enum class Kind : uint8_t {
    kReplica,
    kCall,
    kBegin,
    kAwait,
    kUntil,
    kCrash,
    kRestart,
    kPause,
    kCut,
    kMend,
    kRun,
  };
  Kind kind = Kind::kRun;
  std::string who;                 // replica, shard t0/1 or host t0-1
  std::vector<std::string> words;  // what remains of the line
  Nanos span;
  size_t line = 0;
};

struct Script {
  Plan plan;
  std::vector<ScriptStep> steps;
  std::string text;      // down to the dashes, with comments
  std::string expected;  // below them
};

// kCorrupt: the line's number, and what would be right.
Result<Script> parse_script(const std::string& text);
Result<Script> read_script(const std::string& path);

struct Played {
  std::vector<std::string> transcript;
  std::optional<Violation> violation;
  std::string stuck;  // an `until` or `await` that did not come true; empty: none
  uint64_t hash = 0;
  std::vector<std::string> hosts;  // names, by HostId
};

struct PlayOptions {
  std::span<const Deviation> overrides;
  std::vector<Draw>* census = nullptr;
};

// A pure function of its arguments and the build.
Played play(const Script& script, const PlayOptions& options);

}  // namespace weightlane::sim
