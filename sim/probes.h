// The simulator's own probes: fault x outcome, and few more. Ids 1024 and up; a campaign prints
// those never reached.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "flow/runtime.h"
#include "sim/fault_list.h"

namespace weightlane::sim {

constexpr uint16_t kFirstSimProbe = 1024;

// How often each fault ended in each outcome.
class FaultHits {
 public:
  uint32_t& at(Fault fault, WorkOutcome outcome) {
    return hits_[static_cast<size_t>(fault) * kWorkOutcomes + static_cast<size_t>(outcome)];
  }
  uint32_t at(Fault fault, WorkOutcome outcome) const {
    return hits_[static_cast<size_t>(fault) * kWorkOutcomes + static_cast<size_t>(outcome)];
  }
  uint32_t of(Fault fault) const {
    uint32_t sum = 0;
    for (uint32_t i = 0; i < kWorkOutcomes; ++i) sum += at(fault, static_cast<WorkOutcome>(i));
    return sum;
  }

 private:
  std::array<uint32_t, kFaultCount * kWorkOutcomes> hits_{};
};

// The point that stands for (fault, outcome), "F1 acknowledgement lost: fully executed, error"; id
// 0 when the two never go together.
flow::ProbePoint fault_probe(Fault fault, WorkOutcome outcome);
// All that can be hit, in order of id.
std::vector<flow::ProbePoint> fault_probes();
const char* work_outcome_name(WorkOutcome outcome);

}  // namespace weightlane::sim
