// How fast the planes of one machine are, each beside the best that plain code reaches on the same
// memory: the figures of `weightlane bench`.
//
// A child process is the source, this one the reader. In every round each yardstick and our plane
// move all the bytes once, in turns, so that a busy machine is busy for all of them; what is told
// are medians over the rounds, and of the yardsticks the best shape's.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "flow/result.h"

namespace weightlane::prod {

struct PlaneBenchOptions {
  uint64_t bytes = 1ull << 30;          // moved once per measurement
  uint64_t slice_bytes = 4ull << 20;    // one READ
  uint64_t window_bytes = 64ull << 20;  // READs in flight
  unsigned rounds = 5;
  unsigned tcp_streams = 0;                          // 0: the plane's default
  unsigned copy_threads = 0;                         // likewise
  std::vector<std::string> cases;                    // of plane_bench_cases(); empty: all
  std::function<void(const std::string&)> progress;  // "tcp: round 2 of 5"; may be empty
};

struct PlaneBenchResult {
  std::string name;      // "same-host-shared+checksums"
  double gib_per_s = 0;  // ours
  std::string limit;     // "process_vm_readv, 1 MiB, 2 threads"
  double limit_gib_per_s = 0;
  double ratio = 0;
  unsigned median_of = 0;
};

// "same-host", "same-host-shared", "tcp", each also with "+checksums".
std::vector<std::string> plane_bench_cases();

// kInvalidArgument: a case that is none; kResourceExhausted, kUnreachable, kCorrupt: what was read
// is not what was there. Forks: call it before this process has threads.
Result<std::vector<PlaneBenchResult>> run_plane_bench(const PlaneBenchOptions& options);

}  // namespace weightlane::prod
