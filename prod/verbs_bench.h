// How fast the verbs plane is, beside `ib_read_bw -e` (perftest) on the same device with the same
// message size and depth: what `weightlane bench --transport verbs` shows.
//
// A child process is the source, this one the reader, as ib_read_bw's client and server are. Every
// round moves all the bytes once by each, in turns; what is told are medians. Runs wherever there
// is an RDMA device; tests/rxe/bench runs it in the Soft-RoCE guest, where only the ratio means
// anything.
#pragma once

#include <vector>

#include "flow/result.h"
#include "prod/plane_bench.h"

namespace weightlane::prod {

// Uses bytes, rounds and progress of the options. kUnreachable: no device here, or no ib_read_bw;
// kCorrupt: what was read is not what was there. Forks: call it before this process has threads.
Result<std::vector<PlaneBenchResult>> run_verbs_bench(const PlaneBenchOptions& options);

}  // namespace weightlane::prod
