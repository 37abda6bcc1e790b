// How fast whole replicas get their weights: real servers, handles and processes, end to end.
//
// One source and several readers, each a process, all told to update at once; what counts is the
// time from the first one's start to the last one's end, so it includes decisions, connects and
// seals. "chain": pipelining on, each reader passes on what it has. "fan-out": pipelining off, the
// source serves all. Beside every round the machine's own limit is measured: plain code moving the
// same number of bytes with both cores. After the last round every byte is verified.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "flow/result.h"
#include "prod/plane_bench.h"

namespace weightlane::prod {

struct ClusterBenchOptions {
  uint64_t bytes = 512ull << 20;  // of a replica
  unsigned rounds = 5;
  std::string transport = "same-host";  // or tcp
  bool pipelining = true;
  unsigned readers = 1;
  bool checksums = false;
  std::function<void(const std::string&)> progress;
};

struct ClusterBenchResult {
  PlaneBenchResult rate;         // GiB/s of all readers together
  uint64_t extra_bytes_max = 0;  // the most memory beyond its tensors that a worker had
};

Result<ClusterBenchResult> run_cluster_bench(const ClusterBenchOptions& options);

}  // namespace weightlane::prod
