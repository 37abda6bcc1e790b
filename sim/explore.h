// Exhaustive exploration of a script: every schedule that differs from FIFO in at most `depth`
// choices, one after the other, all checkers on.
//
// A choice is: which ready task goes next; whether a message, a connect or a READ takes its least
// or its longest time; when a READ is executed and lands; each fault whose rate the script sets.
// The search is stateless: a schedule is the list of its deviations, and its children deviate once
// more, later than all of them. Two lists that lead to the very same run (equal hashes of all
// events) have the same children, so the second is not followed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/choices.h"
#include "sim/script.h"

namespace weightlane::sim {

struct ExploreOptions {
  uint32_t depth = 1;
  int jobs = 1;
};

struct Explored {
  uint64_t schedules = 0;
  uint64_t same = 0;        // of these: runs seen before, not followed
  uint64_t choices = 0;     // of the FIFO run, that could come out otherwise
  uint64_t violations = 0;  // the first in the order of the tree is kept
  std::vector<Deviation> failing;
  std::string promise;
  std::string text;
};

Explored explore(const Script& script, const ExploreOptions& options);

}  // namespace weightlane::sim
