// Counts every operator new and delete of the process, coroutine frames among them (alloc_count.cc
// replaces them), so that a test can say "no allocation per wake-up" and "nothing is left after the
// cancellation". Atomics, because sanitizers and the benchmark library have threads.
#pragma once

#include <cstdint>

namespace weightlane::flow::testing {

int64_t allocations_made();
int64_t allocations_live();

}  // namespace weightlane::flow::testing
