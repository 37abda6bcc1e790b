// A failure as a text file: what it takes to see the same run again, and one line of story.
//
//     weightlane-trace 1
//     about    the server's timer spun ...    the story for people, as many lines as it takes; may
//     be
//                                              missing
//     story    P1 at 3.204 s, replica r2 shard 1: granule 17 has another publication's bytes
//     build    3f2c...            of the binary; the hash binds that build only
//     scenario default
//     seed     4711
//     bug      skip-seal          the planted bug that it takes (weightlane-sim-bugs); may be
//     missing promise  P1                 or "none": a run kept for its hash hash     0x8c6e...
//     events   5120
//     config   shards 3           one line per setting; what is missing is drawn from the seed
//     choice   35 12 4 2 sim.data.delay      stream, draw, outcomes, outcome, name; only those not
//     fault    crash host 7 at 1.502 s         for people: the choices say the same
//
// Lines start with a word and a blank; unknown words are an error, so a typing mistake is no
// silence.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "flow/result.h"
#include "sim/choices.h"

namespace weightlane::sim {

struct TraceChoice {
  StreamId stream;
  uint64_t index = 0;
  uint32_t n = 0;
  uint32_t value = 0;
  std::string name;
  bool operator==(const TraceChoice&) const = default;
};

struct TraceFile {
  std::vector<std::string> about;
  std::string story;
  std::string build;
  std::string scenario;
  uint64_t seed = 0;
  std::string bug;  // empty: none
  std::string promise = "none";
  uint64_t hash = 0;
  uint64_t events = 0;
  std::vector<std::pair<std::string, std::string>> config;
  std::vector<TraceChoice> choices;
  std::vector<std::string> faults;
  bool operator==(const TraceFile&) const = default;
};

std::string format_trace(const TraceFile& trace);
// kCorrupt: the line's number, and what would be right.
Result<TraceFile> parse_trace(const std::string& text);

// kInvalidArgument: the file cannot be read or written; names it.
Result<TraceFile> read_trace(const std::string& path);
Result<Done> write_trace(const std::string& path, const TraceFile& trace);

// The linker's build id of this program, in hex; "unknown" if it has none.
std::string build_id();

}  // namespace weightlane::sim
